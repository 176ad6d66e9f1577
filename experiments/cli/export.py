"""`tff-mf export`: a deployment, or a trained model, as files."""

import pathlib
from typing import Any

import rich_click as click

from tff_mf.base import required_packages
from tff_mf.base.errors import InputValueError

from ..output.console import Facts, Markdown
from . import _options
from ._screens import Answer


@_options.command
@click.argument("run", metavar="RUN")
@_options.options("out", required=("out",))
@click.option("--model-only", is_flag=True, help="Write the trained model of RUN alone, with its final privacy report.")
@click.option(
    "--longest-round",
    type=float,
    metavar="MINUTES",
    default=15.0,
    show_default=True,
    help="Minutes of the longest round: devices wait for min-sep of them.",
)
@_options.options("population")
@click.option("--task-name", metavar="NAME", help="Name of the task for devices; by default derived from the settings.")
def export(run: str, out: str, model_only: bool, **more: Any) -> Answer:
    """Write a deployment: graphs for server and devices, artifact, planned report, policy and SHA256SUMS.

    RUN is a folder of `tff-mf train`; `training.export` exports one of `private_fed_avg`, whose `model_fn` is in no
    folder. A deployment starts from the beginning, with the whole cohort and all of its noise.

    With --model-only, RUN is a finished run of `tff-mf train`, or a finished deployment, and its trained model is
    written as SavedModel and for TensorFlow Lite; none of the server's state is.
    """
    if model_only and (more["population"] is not None or more["task_name"] is not None):
        raise click.UsageError("--model-only is for RUN and --out alone: devices are no part of a model.")
    required_packages.packages("Exporting", "tensorflow", "tensorflow_privacy", "tensorflow_federated")
    from ..guard.export import check_trained
    from ..output.files import check_new_folder
    from ..runs import folders, names

    # All before TensorFlow is loaded, so that errors come at once.
    source, folder = pathlib.Path(run), pathlib.Path(out)
    if folders.read_record(source).settings is None:
        raise InputValueError(
            f"run={run!r} is no run of tff-mf train: open one of private_fed_avg with its model_fn, and call "
            "training.export(folder), or training.model() for the trained model, whose weights are in "
            f"{names.MODEL} of an ended run; aggregators.export_process exports a process of your own."
        )
    check_new_folder(folder)
    if model_only:
        check_trained(source)
        return _of_model(source, folder)
    return _deployment(source, folder, **more)


def _deployment(run: pathlib.Path, out: pathlib.Path, **more: Any) -> Answer:
    """Writes a deployment of a run."""
    from ..output import console

    with console.bar("export", 4):
        from .. import reports, train

        made = train.write(run, out, **more)
    graph = max(stage["graph_bytes"] for stage in made.graphs["stages"].values())
    lite = made.graphs["lite"]
    facts = {
        "out": str(out),
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
    page = Markdown(reports.markdown(made.planned, appendix=False))
    return Answer(facts, [f"wrote a deployment to {out}.", Facts(rows), page])


def _of_model(run: pathlib.Path, out: pathlib.Path) -> Answer:
    """Writes the trained model of a run."""
    from ..output import console

    with console.bar("export", 3):
        from .. import train

        result = train.write_model(run, out)
    rows = [
        ("guarantee", result["headline"]),
        ("parameters", f"{result['parameters']:,}"),
        ("TensorFlow Lite", result["lite"] or f"none: {result['lite_reason']}"),
    ]
    written = f"wrote the model of {run}, with its privacy report, to {out}"
    return Answer({"out": str(out), **result}, [written, Facts(rows)])
