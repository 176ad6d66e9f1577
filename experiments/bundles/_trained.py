"""Checks that a run has a model and a report that can be published, without the ten seconds of TensorFlow's import."""

import pathlib

from tff_mf.errors import InputValueError

from .. import reports
from ..run_folder.folders import readable_folder
from ..run_folder.names import MODEL, REPORT, REPORT_TEXT


def check_trained(run: pathlib.Path) -> None:
    """Raises unless a run has a model, and the report that follows from its files.

    Raises:
        InputValueError: If it does not.
    """
    readable_folder(run)
    for name in (MODEL, REPORT, REPORT_TEXT):
        if not (run / name).is_file():
            raise InputValueError(f"run={str(run)!r} has no {name}: it has not ended.")
    check_report(run)


def check_report(run: pathlib.Path) -> None:
    """Raises unless the report of a run follows from its files, answers and audit included."""
    about = [each for each in reports.check(run) if each.field in ("report", "model")]
    wrong = [each.text for each in about if each.severity == "critical"]
    if wrong:
        raise InputValueError(f"run={str(run)!r} has a report that does not follow from its files: {wrong[0]}.")
    if about:
        raise InputValueError(
            f"run={str(run)!r}: {about[0].text}. Run `tff-mf report {run}` first: the model is published with its "
            "report, which must contain everything that is known by now."
        )
