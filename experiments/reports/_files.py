"""Writes reports to the folder of a run."""

import json
import pathlib
from collections.abc import Mapping
from typing import Any

from tff_mf import strict_json

from ..output.files import write_atomically
from ..run_folder.names import PLANNED, PLANNED_TEXT, REPORT, REPORT_TEXT
from ._agreement import differences
from ._build import build, digest
from ._markdown import markdown


def names(*, realised: bool) -> tuple[str, str]:
    """Returns the names of the JSON file and of the Markdown file."""
    return (REPORT, REPORT_TEXT) if realised else (PLANNED, PLANNED_TEXT)


def write(folder: pathlib.Path, *, realised: bool) -> dict[str, Any]:
    """Builds a run's report, writes it as JSON and as Markdown, and returns it.

    A report that is there and agrees with the files stays as it is: on another machine its figures have other last
    bits, and its digest, which was kept elsewhere, would be another one.

    Args:
        folder: The run's folder, with `run.json` and, for the final report, its logs.
        realised: Whether to write the final report; else the planned report.

    Raises:
        InputValueError: If `run.json` is missing or damaged, or `answers.json` is damaged.
    """
    report = build(folder, realised=realised)
    as_json, as_markdown = names(realised=realised)
    stored = _stored(folder / as_json)
    if stored is not None and not differences(stored, report):
        report = {**stored, "digest": digest(stored)}
    write_atomically(folder / as_json, as_text(report))
    write_atomically(folder / as_markdown, markdown(report))
    return report


def _stored(path: pathlib.Path) -> dict[str, Any] | None:
    """Returns the object in a file of JSON; `None` if there is none."""
    try:
        stored = strict_json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return None
    return stored if isinstance(stored, dict) else None


def as_text(report: Mapping[str, Any]) -> str:
    """Returns the text of `report.json` for a report; files are compared with it byte by byte."""
    return json.dumps(report, indent=1, ensure_ascii=False) + "\n"
