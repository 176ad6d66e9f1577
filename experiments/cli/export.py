"""`tff-mf export`: a deployment, or a trained model, as files."""

import pathlib
from typing import Any

import rich_click as click

from tff_mf.base import required_packages, validation
from tff_mf.base.errors import InputValueError

from ..output.console import Facts, Markdown
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
def export(source: str, out: str, model_only: bool, grid: int | str | None, **more: Any) -> Answer:
    """Write a deployment: graphs for server and devices, artifact, planned report, policy and SHA256SUMS.

    RUN is a folder of `tff-mf train` or `private_fed_avg`, CONFIG a TOML file of the settings of `tff-mf train`; --grid
    is theirs if not given. A deployment starts from the beginning, with the whole cohort and all of its noise. Of a run
    of `private_fed_avg`, whose `model_fn` is not in its folder, the graphs for devices are left out.

    With --model-only, RUN is a finished run of `tff-mf train`, or a finished deployment, and its trained model is
    written as SavedModel and for TensorFlow Lite; none of the server's state is.
    """
    if model_only:
        _options.check_together({"model_only": {"source", "out", "as_json"}})
        return _of_model(pathlib.Path(source), pathlib.Path(out))
    # First, so that wrong values are refused before a data set is made.
    validation.positive("round_minutes", more["round_minutes"])
    if more["population"] is not None:
        validation.whole("population", more["population"])
    required_packages.packages("Exporting", "tensorflow", "tensorflow_privacy", "tensorflow_federated")
    from ..guard import export as exporting
    from ..output import progress
    from ..output.files import check_new_folder
    from ..runs import run_record

    if more["task_name"] is not None:
        exporting.check_task_name(more["task_name"])
    run, folder = pathlib.Path(source), pathlib.Path(out)
    check_new_folder(folder)
    record = run_record.begun_record(run) if run.is_dir() else None
    of_settings = record is None or record.settings is not None
    with progress.bar("export", 4):
        if of_settings:
            from ..training import deployment

            settings = deployment.read_source(run, grid=grid)
            made = deployment.write(settings, folder, **more)
        else:
            if grid is not None:
                raise InputValueError(f"grid={grid!r} goes with settings of tff-mf train: leave it out.")
            from ..guard import private_training

            made = private_training.export_server(run, folder, **more)
    without = "" if of_settings else " Graphs for devices need its model_fn: training.export(folder) writes them too."
    graph = max(stage["graph_bytes"] for stage in made.graphs["stages"].values())
    lite = made.graphs.get("lite", {"path": None, "reason": "no graphs for devices"})
    facts = {
        "out": str(folder),
        "task_name": made.policy.task_name,
        "timer_hours": made.policy.timer_seconds / 3600,
        "largest_graph_bytes": graph,
        "lite": lite["path"],
        "lite_reason": lite["reason"] or None,
        "planned": made.planned.as_json(),
    }
    rows = [
        ("a device", f"waits {facts['timer_hours']:g} h between its rounds, by its timer"),
        ("largest graph", f"{graph / 1e6:.1f} MB"),
        ("Lite graph", lite["path"] or f"none: {lite['reason']}"),
    ]
    from .. import reports

    page = Markdown(reports.markdown(made.planned, appendix=False))
    return Answer(facts, [f"wrote a deployment to {folder}.{without}", Facts(rows), page])


def _of_model(run: pathlib.Path, out: pathlib.Path) -> Answer:
    """Writes the trained model of a run."""
    required_packages.packages("Exporting", "tensorflow", "tensorflow_privacy", "tensorflow_federated")
    from ..output import progress
    from ..output.files import check_new_folder
    from ..training import deployment

    # Before TensorFlow is loaded, so that errors come at once.
    deployment.check_trained(run)
    check_new_folder(out)
    with progress.bar("export", 3):
        result = deployment.write_model(run, out)
    rows = [
        ("guarantee", result["headline"]),
        ("parameters", f"{result['parameters']:,}"),
        ("TensorFlow Lite", result["lite"] or f"none: {result['lite_reason']}"),
    ]
    written = f"wrote the model of {run}, with its privacy report, to {out}"
    return Answer({"out": str(out), **result}, [written, Facts(rows)])
