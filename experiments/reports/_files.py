"""Where reports are written."""

import json
import pathlib
from collections.abc import Mapping
from typing import Any

from ..output import files
from ._build import build
from ._markdown import markdown


def names(*, realised: bool) -> tuple[str, str]:
    """Returns the names of the JSON file and of the Markdown file."""
    stem = "report" if realised else "planned"
    return f"{stem}.json", f"{stem}.md"


def write(folder: pathlib.Path, *, realised: bool) -> dict[str, Any]:
    """Builds a run's report, writes it as JSON and as Markdown, and returns it.

    Args:
        folder: The run's folder, with its configuration and, if it is over, its logs.
        realised: Whether the run is over.

    Raises:
        InputValueError: If the folder has no intact configuration, or answers that are none.
    """
    report = build(folder, realised=realised)
    as_json, as_markdown = names(realised=realised)
    files.write_atomically(folder / as_json, as_text(report))
    files.write_atomically(folder / as_markdown, markdown(report))
    return report


def as_text(report: Mapping[str, Any]) -> str:
    """Returns what `report.json` holds for a report, to the byte."""
    return json.dumps(report, indent=1, ensure_ascii=False) + "\n"
