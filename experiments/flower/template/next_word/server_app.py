"""What the server does: it trains until all rounds are released; started again, it goes on where it was stopped."""

import pathlib
from collections.abc import Mapping

from flwr.app import Array, ArrayRecord, ConfigRecord, Context, MetricRecord
from flwr.serverapp import Grid, ServerApp

import tff_mf
from next_word import data, task
from tff_mf.experiments import flower, reports
from tff_mf.experiments.flower import cohorts

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Runs the rounds that are left, and writes the model and the report."""
    config = context.run_config
    rounds, delta = int(config["rounds"]), float(config["delta"])
    participation = flower.sampling_of(config).schema(rounds)
    folder = pathlib.Path(str(config["out"]))
    # A resumed run needs the very mechanism that it began with.
    stored = folder / "mechanism.safetensors"
    given = str(stored) if stored.exists() else str(config["mechanism"])
    mechanism = (
        tff_mf.load(given) if given else tff_mf.optimize_blt(rounds=rounds, participation=participation, buffers=2)
    )
    sigma = float(config["noise-multiplier"])
    initial = ArrayRecord({name: Array(value) for name, value in task.initial_model().items()})
    plan = flower.plan_run(
        folder,
        initial_arrays=initial,
        grid=config["grid"],
        mechanism=mechanism,
        rounds=rounds,
        sampling=participation,
        delta=delta,
        clients_per_round=int(config["clients-per-round"]),
        epsilon=None if sigma else float(config["epsilon"]),
        noise_multiplier=sigma or None,
        restart_every=int(config["restart-every"]) or None,
    )
    simulation, population = bool(config["simulation"]), int(config["population"])
    held_out = data.held_out(population)

    def measured(number: int, arrays: ArrayRecord) -> MetricRecord:
        model = {name: array.numpy() for name, array in arrays.items()}
        return MetricRecord({"accuracy": task.accuracy(model, held_out)})

    with flower.open_strategy(
        folder,
        plan,
        settings=_settings(config, integers=plan.grid is not None),
        initial_arrays=initial,
        identify=cohorts.by_partition if simulation else cohorts.by_public_key,
        population=population,
        simulation=simulation,
    ) as strategy:
        result = strategy.start(grid, train_config=ConfigRecord(), evaluate_fn=measured)
        report = strategy.end()
    measures = result.evaluate_metrics_serverapp
    print(reports.headline(report))
    print(f"accuracy on held-out modules: {measures[rounds]['accuracy']:.3f}" if rounds in measures else "")
    print(f"digest: {report['digest']}", flush=True)


def _settings(config: Mapping[str, object], *, integers: bool) -> flower.FlowerSettings:
    """Returns clip norm, optimizer and waiting times of the app's configuration."""
    return flower.FlowerSettings(
        clip_norm=float(config["clip-norm"]),
        optimizer=flower.ServerOptimizer(
            learning_rate=float(config["server-learning-rate"]), momentum=float(config["server-momentum"])
        ),
        # With a grid, nodes reply in integers.
        replies="integers" if integers else "model",
        waiting=flower.Waiting(
            nodes_seconds=float(config["nodes-seconds"]),
            replies_seconds=float(config["replies-seconds"]),
            poll_seconds=0.2,
        ),
    )
