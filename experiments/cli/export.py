"""`tff-mf export`: a deployment, or a trained model, as files."""

import pathlib

import rich_click as click

from tff_mf.base import required_packages, validation
from tff_mf.numerics import digits

from ..output.console import Facts
from ..runs.names import PLANNED
from . import _options
from ._screens import Answer


@_options.command
@click.argument("source", metavar="RUN|CONFIG")
@_options.option("out", required=True)
@click.option("--model-only", is_flag=True, help="Write the trained model of RUN alone, with its final privacy report.")
@click.option(
    "--longest-round",
    "round_minutes",
    type=float,
    metavar="MINUTES",
    default=15.0,
    show_default=True,
    help="Minutes of the longest round: devices wait for min-sep of them.",
)
@_options.option("population")
@click.option("--task-name", metavar="NAME", help="Name of the task for devices; by default derived from the settings.")
@_options.option("grid")
@_options.option("insecure_seed")
def export(
    source: str,
    out: str,
    model_only: bool,
    round_minutes: float,
    population: int | None,
    task_name: str | None,
    grid: int | str | None,
    insecure_seed: int | None,
) -> Answer:
    """Write a deployment: graphs for server and devices, artifact, planned report, policy and SHA256SUMS.

    RUN is a folder of `tff-mf train`, CONFIG a TOML file of its settings; --grid is theirs if not given. A deployment
    starts from the beginning, with the whole cohort and all of its noise.

    With --model-only, RUN is a finished run, or a finished deployment, and its trained model is written as SavedModel
    and for TensorFlow Lite; none of the server's state is.
    """
    if model_only:
        _options.check_together({"model_only": {"source", "out", "as_json"}})
        return _of_model(pathlib.Path(source), pathlib.Path(out))
    # First, so that wrong values are refused before a data set is made.
    validation.positive("round_minutes", round_minutes)
    if population is not None:
        validation.whole("population", population)
    required_packages.packages("Exporting", "tensorflow", "tensorflow_privacy", "tensorflow_federated")
    from .. import bundles
    from ..output import progress

    if task_name is not None:
        bundles.check_task_name(task_name)
    folder = pathlib.Path(out)
    bundles.check_new_folder(folder)
    found = bundles.read_source(pathlib.Path(source), insecure_seed=insecure_seed, grid=grid)

    from .. import reports
    from ..bundles import building

    with progress.bar("export", 4):
        made = building.export(found, folder, round_minutes=round_minutes, population=population, task_name=task_name)
    planned, privacy = reports.read(folder / PLANNED), found.privacy
    k, b = privacy.participation.max_participations, privacy.participation.min_sep
    facts = {
        "out": str(folder),
        "test_only": privacy.insecure,
        "clients_per_round": privacy.clients_per_round,
        "noise_multiplier": privacy.noise_multiplier,
        "epsilon": planned.claim.epsilon,
        "delta": privacy.delta,
        "state": planned.claim.state,
        "headline": planned.headline,
        "min_sep": b,
        "max_participations": k,
        "timer_hours": made["timer_hours"],
        "task_name": made["task_name"],
        "largest_graph_bytes": max(stage["graph_bytes"] for stage in made["stages"].values()),
        "grid": made["grid"],
        "lite": made["lite"]["path"],
        "lite_reason": made["lite"]["reason"] or None,
    }
    grid, often = facts["grid"], f"in at most {k} rounds, at least {b} apart" if k > 1 else "in one round"
    numbers = "floats: the guarantee holds for real numbers only, and --grid auto closes the difference"
    if grid is not None:
        numbers = (
            f"integers of {grid['bits']} bits; at most {grid['max_clients']} clients in a sum of {grid['integers']}"
        )
    rows = [
        ("guarantee", planned.headline),
        # Rounded down: the bundle has at least this noise.
        (
            "a round",
            f"{privacy.clients_per_round} clients, noise multiplier σ {digits.downwards(privacy.noise_multiplier)}",
        ),
        ("a device", f"takes part {often}; its timer runs {facts['timer_hours']:g} h"),
        ("numbers", numbers),
        ("largest graph", f"{facts['largest_graph_bytes'] / 1e6:.1f} MB"),
        ("Lite graph", facts["lite"] or f"none: {facts['lite_reason']}"),
    ]
    test_only = ": TEST ONLY, without privacy" if privacy.insecure else ""
    return Answer(facts, [f"wrote a deployment to {folder}{test_only}", Facts(rows)])


def _of_model(run: pathlib.Path, out: pathlib.Path) -> Answer:
    """Writes the trained model of a run."""
    required_packages.packages("Exporting", "tensorflow", "tensorflow_privacy", "tensorflow_federated")
    from .. import bundles
    from ..output import progress

    # Before TensorFlow is loaded, so that errors come at once.
    bundles.check_trained(run)
    bundles.check_new_folder(out)

    from ..bundles import publishing

    with progress.bar("export", 3):
        result = publishing.export_model(run, out)
    rows = [
        ("guarantee", result["headline"]),
        ("parameters", f"{result['parameters']:,}"),
        ("TensorFlow Lite", result["lite"] or f"none: {result['lite_reason']}"),
    ]
    written = f"wrote the model of {run}, with its privacy report, to {out}"
    return Answer({"out": str(out), **result}, [written, Facts(rows)])
