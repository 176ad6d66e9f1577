"""Writes reports to the folder of a run."""

import json
import pathlib
from collections.abc import Mapping
from typing import Any

from ..output.files import write_atomically
from ..run_folder.names import PLANNED, PLANNED_TEXT, REPORT, REPORT_TEXT
from ._build import build
from ._markdown import markdown


def names(*, realised: bool) -> tuple[str, str]:
    """Returns the names of the JSON file and of the Markdown file."""
    return (REPORT, REPORT_TEXT) if realised else (PLANNED, PLANNED_TEXT)


def write(folder: pathlib.Path, *, realised: bool) -> dict[str, Any]:
    """Builds a run's report, writes it as JSON and as Markdown, and returns it.

    Args:
        folder: The run's folder, with `run.json` and, for the final report, its logs.
        realised: Whether to write the final report; else the planned report.

    Raises:
        InputValueError: If `run.json` is missing or damaged, or `answers.json` is damaged.
    """
    report = build(folder, realised=realised)
    as_json, as_markdown = names(realised=realised)
    write_atomically(folder / as_json, as_text(report))
    write_atomically(folder / as_markdown, markdown(report))
    return report


def as_text(report: Mapping[str, Any]) -> str:
    """Returns the text of `report.json` for a report; files are compared with it byte by byte."""
    return json.dumps(report, indent=1, ensure_ascii=False) + "\n"
