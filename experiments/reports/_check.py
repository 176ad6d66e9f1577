"""Checks a report that somebody handed over against the files it is about."""

import json
import pathlib
from typing import Any

from ..ledger import LEDGER
from ._build import build, digest
from ._files import names
from ._findings import CRITICAL, WARNING, Finding
from ._markdown import markdown
from ._schema import problems


def check(folder: pathlib.Path) -> list[Finding]:
    """Returns all findings on a run: those of its report, recomputed, and how the report on disk differs from it.

    Args:
        folder: The run's folder. A run that has a ledger is over, or was broken off.

    Raises:
        InputValueError: If the folder has no intact configuration, or answers that are none.
    """
    realised = (folder / LEDGER).exists() or (folder / "report.json").exists()
    recomputed = build(folder, realised=realised)
    found = [Finding(**each) for each in recomputed["findings"]]
    as_json, _ = names(realised=realised)
    try:
        stored = json.loads((folder / as_json).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        text = f"{as_json} is missing or damaged: {error}; write it with tff-mf report"
        return [Finding(severity=CRITICAL, field="report", text=text), *found]
    found += _inconsistent(folder, stored, realised=realised)
    if not isinstance(stored, dict):
        return found
    for name in recomputed:
        if name == "digest" or _plain(stored.get(name)) == _plain(recomputed[name]):
            continue
        text = f"{as_json} says another {name} than the run's files: it was edited, or they were"
        found.append(Finding(severity=CRITICAL, field="report", text=text))
    return found + (_inconsistent_plan(folder) if realised else [])


def _inconsistent_plan(folder: pathlib.Path) -> list[Finding]:
    """Returns what is wrong with the planned report of a run that is over: it states an ε too."""
    as_json, _ = names(realised=False)
    if not (folder / as_json).exists():
        return []
    try:
        stored = json.loads((folder / as_json).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        return [Finding(severity=CRITICAL, field="report", text=f"{as_json} is damaged: {error}")]
    return _inconsistent(folder, stored, realised=False)


def _inconsistent(folder: pathlib.Path, stored: Any, *, realised: bool) -> list[Finding]:
    """Returns what is wrong with a report and its Markdown, by themselves."""
    as_json, as_markdown = names(realised=realised)
    found = [Finding(severity=CRITICAL, field="report", text=f"{as_json}: {text}") for text in problems(stored)]
    if not isinstance(stored, dict):
        return found
    if stored.get("digest") != digest(stored):
        text = f"{as_json} was edited: its digest is not that of what it says"
        found.append(Finding(severity=CRITICAL, field="report", text=text))
    try:
        shown = (folder / as_markdown).read_text(encoding="utf-8")
    except FileNotFoundError:
        return [*found, Finding(severity=WARNING, field="report", text=f"{as_markdown} is missing")]
    except (OSError, ValueError) as error:
        return [*found, Finding(severity=CRITICAL, field="report", text=f"{as_markdown} is damaged: {error}")]
    if not _fits(stored) or shown != markdown(stored):
        text = f"{as_markdown} says something else than {as_json}: it was edited"
        found.append(Finding(severity=CRITICAL, field="report", text=text))
    return found


def _fits(report: Any) -> bool:
    """Returns whether a report is as the schema says."""
    return next(problems(report), None) is None


def _plain(value: Any) -> Any:
    """Returns what is left of a value after it was in a file."""
    return json.loads(json.dumps(value))
