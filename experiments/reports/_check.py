"""The report of a run: built from its files, written, and a stored one compared with what follows from the files."""

import json
import os
import pathlib
from collections.abc import Mapping
from typing import Any

from tff_mf.base import strict_json

from ..output import agreement, typed
from ..output.files import FOLDER_LOCK, write_atomically
from ..output.present import markdown as rendered
from ..runs import names
from ..runs.folders import readable_folder
from ._document import document
from ._evidence import CRITICAL, WARNING, Finding, found, gather
from ._facts import VERSION, facts, problem
from ._judgement import judge
from ._other_files import on_folder, published

# Files that a run writes once it begins.
_OF_A_RUN = (
    *(names.LEDGER, names.METRICS, names.SUMMARY, names.MODEL),
    *(names.REPORT, names.REPORT_TEXT, names.CHECKPOINTS, FOLDER_LOCK),
)


def build(folder: pathlib.Path, *, realised: bool) -> dict[str, Any]:
    """Returns the report of a run, computed from the files in its folder alone.

    Formal guarantee: the report contains a finite ε only if each assumption of the report holds or cannot be checked,
    and no finding is critical; the ε is rounded up in texts. Unless each question is answered, the claim is
    provisional.

    Args:
        folder: The run's folder.
        realised: Whether to build the final report, from the logs of the run; else the planned report.
    """
    readable_folder(folder)
    return facts(judge(gather(folder, realised=realised), summarised=True))


def markdown(report: Mapping[str, Any]) -> str:
    """Returns the page of a report: Markdown of all facts that may be published."""
    return rendered(document(published(report)))


def as_text(report: Mapping[str, Any]) -> str:
    """Returns the text of `report.json` for a report."""
    return json.dumps(report, indent=1, ensure_ascii=False) + "\n"


def differences(stored: Mapping[str, Any], recomputed: Mapping[str, Any]) -> list[str]:
    """Returns the facts in which two reports do not agree, except for the release that wrote them.

    Formal guarantee: if there are none, no ε, μ or sensitivity of the stored report is smaller than the recomputed one
    by more than 1e-9 of it, no noise multiplier is larger by more than that, and hashes, names and whole numbers are
    equal.
    """
    accountant = stored.get("accountant")
    version = accountant.get("version") if isinstance(accountant, Mapping) else None
    return agreement.differing(stored, {**recomputed, "accountant": {**recomputed["accountant"], "version": version}})


def write(folder: pathlib.Path, *, realised: bool) -> dict[str, Any]:
    """Builds a run's report, writes it as JSON and as Markdown, and returns it.

    A report that is there and agrees with the files stays as it is: on another machine its figures have other last
    bits.

    Args:
        folder: The run's folder, with `run.json` and, for the final report, its logs.
        realised: Whether to write the final report; else the planned report.
    """
    report = build(folder, realised=realised)
    as_json, as_markdown = _names(realised=realised)
    try:
        stored = strict_json.loads((folder / as_json).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        stored = None
    if isinstance(stored, dict) and not differences(stored, report):
        report = stored
    else:
        write_atomically(folder / as_json, as_text(report))
    write_atomically(folder / as_markdown, markdown(report))
    return report


def has_begun(folder: pathlib.Path) -> bool:
    """Returns whether a folder has a file that a run writes once it begins."""
    return any(os.path.lexists(folder / name) for name in _OF_A_RUN)


def has_report(folder: pathlib.Path) -> bool:
    """Returns whether a folder has the final report or, if no run began there, the planned report."""
    return os.path.lexists(folder / _names(realised=has_begun(folder))[0])


def check(folder: pathlib.Path) -> list[Finding]:
    """Returns all findings on a run: its recomputed report's, and the differences to the stored report.

    Formal guarantee: no finding is critical only if the stored report follows from the files: no ε, μ or sensitivity
    that it states is smaller than the recomputed one by more than 1e-9 of it, and the files are those that it has the
    hashes of. Whoever rewrites the whole folder is not detected: `sha256sum` protects a folder that is handed on.

    Args:
        folder: The run's folder. If it has a log, the run has ended or was interrupted.

    Raises:
        InputValueError: If `run.json` is missing or damaged, or `answers.json` is damaged.
    """
    begun = has_begun(folder)
    recomputed = build(folder, realised=begun)
    findings = [*on_folder(folder), *typed.convert(recomputed["findings"], list[Finding])]
    if begun:
        return [*findings, *_of_stored(folder, recomputed, realised=True)]
    findings.insert(0, found(WARNING, "rounds", "nothing_ran"))
    if not has_report(folder):
        return [found(WARNING, "report", "report_missing"), *findings]
    return [*findings, *_of_stored(folder, recomputed, realised=False)]


def _of_stored(folder: pathlib.Path, recomputed: Mapping[str, Any], *, realised: bool) -> list[Finding]:
    """Returns findings where the stored report does not follow from the files, or its page not from the report."""
    as_json, as_markdown = _names(realised=realised)

    def wrong(code: str, **values: Any) -> list[Finding]:
        return [found(CRITICAL, "report", code, file=as_json, **values)]

    try:
        stored = strict_json.loads((folder / as_json).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        return wrong("report_damaged", why=str(error))
    version = stored.get("report") if isinstance(stored, dict) else None
    if type(version) is int and version != VERSION:
        return wrong("report_version", version=version, checked=VERSION)
    if why := problem(stored):
        return wrong("report_schema", why=why)
    if differing := differences(stored, recomputed):
        files = agreement.differing(stored["files"], recomputed["files"])
        return wrong("report_differs", names=[name for name in differing if name != "files"] + files)
    try:
        page = (folder / as_markdown).read_bytes().decode()
    except FileNotFoundError:
        return [found(WARNING, "report", "page_missing", file=as_markdown)]
    except (OSError, ValueError) as error:
        return [found(WARNING, "report", "page_damaged", file=as_markdown, why=str(error))]
    if page != markdown(stored):
        return [found(WARNING, "report", "page_other", file=as_markdown, report=as_json)]
    return []


def _names(*, realised: bool) -> tuple[str, str]:
    return (names.REPORT, names.REPORT_TEXT) if realised else (names.PLANNED, names.PLANNED_TEXT)
