"""`tff-mf export-model`: a trained model as files."""

import pathlib

import rich_click as click

from ..output.present import Facts, Paragraph
from . import _options
from ._screens import Answer


@_options.command()
@click.argument("run", metavar="RUN")
@_options.option("out", required=True)
def export_model(run: str, out: str) -> Answer:
    """Write the trained model of a run as SavedModel and for TensorFlow Lite, with its final privacy report.

    RUN is the folder of a finished run of `tff-mf train`, or of a finished deployment. None of the server's state is
    written.
    """
    from tff_mf.base import required_packages

    required_packages.packages("Exporting", "tensorflow", "tensorflow_privacy", "tensorflow_federated")
    from .. import bundles
    from ..output import progress

    # Before TensorFlow is loaded, so that errors come at once.
    folder = pathlib.Path(run)
    bundles.check_trained(folder)
    bundles.check_new_folder(pathlib.Path(out))

    from ..bundles import publishing

    with progress.bar("export-model", 3):
        result = publishing.export_model(folder, pathlib.Path(out))
    rows = [
        ("guarantee", result["headline"]),
        ("parameters", f"{result['parameters']:,}"),
        ("TensorFlow Lite", result["lite"] or f"none: {result['lite_reason']}"),
    ]
    written = Paragraph(f"wrote the model of {run}, with its privacy report, to {out}")
    return Answer({"out": out, **result}, [written, Facts(rows)])
