"""What the server does: it trains until all rounds are released; started again, it goes on where it was stopped."""

import pathlib
from collections.abc import Mapping

from flwr.app import Array, ArrayRecord, ConfigRecord, Context, MetricRecord
from flwr.serverapp import Grid, ServerApp

import tff_mf
from next_word import task
from tff_mf.experiments import flower
from tff_mf.experiments.flower import cohorts

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Runs the rounds that are left, and writes the model and the report."""
    config = context.run_config
    rounds, delta = int(config["rounds"]), float(config["delta"])
    population, clients_per_round = int(config["population"]), int(config["clients-per-round"])
    sampling = flower.sampling_of(config).drawn_by(population=population, clients_per_round=clients_per_round)
    folder = pathlib.Path(str(config["out"]))
    # A resumed run needs the very mechanism that it began with.
    stored = folder / "mechanism.safetensors"
    mechanism = (
        tff_mf.load(stored)
        if stored.exists()
        else tff_mf.optimize_blt(rounds=rounds, participation=sampling.schema(rounds), buffers=2)
    )
    sigma = float(config["noise-multiplier"])
    initial = ArrayRecord({name: Array(value) for name, value in task.initial_model().items()})
    plan = tff_mf.plan(
        mechanism=mechanism,
        rounds=rounds,
        sampling=sampling,
        delta=delta,
        clients_per_round=clients_per_round,
        population=population,
        clip_norm=float(config["clip-norm"]),
        secret_cohorts=bool(config["secret-cohorts"]),
        epsilon=None if sigma else float(config["epsilon"]),
        noise_multiplier=sigma or None,
    )
    simulation = bool(config["simulation"])
    held_out = task.held_out(population)

    def measured(number: int, arrays: ArrayRecord) -> MetricRecord:
        model = {name: array.numpy() for name, array in arrays.items()}
        return MetricRecord({"accuracy": task.accuracy(model, held_out)})

    with flower.open_strategy(
        folder,
        plan,
        settings=_settings(config),
        initial_arrays=initial,
        identify=cohorts.by_partition if simulation else cohorts.by_public_key,
        nodes=_nodes(config, population, simulation=simulation),
        population=population,
        simulation=simulation,
    ) as strategy:
        result = strategy.start(grid, train_config=ConfigRecord(), evaluate_fn=measured)
        report = strategy.end()
    measures = result.evaluate_metrics_serverapp
    print(report)
    print(f"accuracy on held-out modules: {measures[rounds]['accuracy']:.3f}" if rounds in measures else "", flush=True)


def _nodes(config: Mapping[str, object], population: int, *, simulation: bool) -> list[str] | None:
    """Returns the identities of all nodes, if they are known."""
    if simulation:
        return [f"partition-{index}" for index in range(population)]
    path = str(config["identities"])
    return pathlib.Path(path).read_text(encoding="utf-8").split() if path else None


def _settings(config: Mapping[str, object]) -> flower.FlowerSettings:
    """Returns optimizer and waiting times of the app's configuration."""
    return flower.FlowerSettings(
        optimizer=flower.ServerOptimizer(
            learning_rate=float(config["server-learning-rate"]), momentum=float(config["server-momentum"])
        ),
        # With a grid, nodes reply in integers.
        replies="model" if config["grid"] == "none" else "integers",
        floating_point=config["grid"] == "none",
        waiting=flower.Waiting(
            nodes_seconds=float(config["nodes-seconds"]),
            replies_seconds=float(config["replies-seconds"]),
            poll_seconds=0.2,
        ),
    )
