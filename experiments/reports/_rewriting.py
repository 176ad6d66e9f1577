"""When the report of a run may be written anew: where nothing that it says would be lost in silence."""

import pathlib
from typing import Any

from tff_mf.base.errors import InputError, InputValueError

from ..runs.ledger import read_ledger
from ..runs.names import AUDIT, LEDGER, PLANNED
from ._check import Stored, check, has_begun, inconsistent_plan, write
from ._evidence import CRITICAL, Finding, found

# What a report may differ in from the one that is written now.
_EXPLAINED = ("report_version", "report_answers")


def contradictions(folder: pathlib.Path) -> list[Finding]:
    """Returns why the report in a folder must not be written anew: it, or a file that it is about, was edited.

    Nothing contradicts a report that there is not, one of another version of the format, nor one that was written
    before answers changed, before the audit, or before further rounds of the same run.
    """
    stored = Stored(folder)
    if not stored.exists:
        return []
    explained = (*_EXPLAINED, *(("report_differs", "report_other_files") if _went_on(folder) else ()))
    # Whatever else explains a difference: an audit that failed must not go in silence.
    audited = stored.report.get("audit") is not None
    lost = [found(CRITICAL, "report", "report_differs", file=stored.as_json, name="audit")]
    return (lost if audited and not (folder / AUDIT).exists() else []) + [
        each
        for each in check(folder)
        if each.severity == CRITICAL
        and each.field == "report"
        and each.code not in explained
        # A process was killed when it had written the plan anew; the plan is checked by itself.
        and each.values.get("names") != [PLANNED]
    ]


def _went_on(folder: pathlib.Path) -> bool:
    """Returns whether a run was not over when its report was written, and no earlier line of its ledger changed."""
    try:
        ledger = read_ledger(folder / LEDGER)
    except InputError:
        return False
    before = ledger.chain[:-1] if ledger.ended else ledger.chain
    report = Stored(folder, realised=True).report
    return bool(report) and report.get("ledger_head") in (None, *before)


def stored_digest(folder: pathlib.Path) -> str | None:
    """Returns the digest that the report in a folder has; `None` if there is no report, or a damaged one."""
    return Stored(folder).report.get("digest")


def refuse_contradicted(folder: pathlib.Path) -> list[Finding]:
    """Raises if the report in a folder must not be written anew: what it says otherwise would be lost.

    Returns:
        Findings on its page, which follows from it, and may be written anew: a process that was killed may have written
        one of the two.

    Raises:
        InputValueError: If there are other `contradictions`, or a file of the run is missing or damaged.
    """
    differing = contradictions(folder)
    if wrong := [each for each in differing if not each.code.startswith("page_")]:
        stored, more = Stored(folder), f" (and {len(wrong) - 1} more)" if len(wrong) > 1 else ""
        raise InputValueError(
            f"path={str(folder)!r}: the report is not overwritten, since the folder contradicts it: "
            f"{wrong[0].text}{more}. "
            f"`tff-mf report {folder} --check` lists all of it; put back what was edited, or move {stored.as_json} and "
            f"{stored.as_markdown} away to report the folder as it is now."
        )
    return differing


def write_anew(folder: pathlib.Path) -> dict[str, Any]:
    """Rewrites the report of a run with the current answers and audit.

    The planned report of a run that began stays as it was, since the final report has its hash, unless it has other
    answers, or is of another version of the format.
    """
    begun = has_begun(folder)
    if begun and any(each.code in _EXPLAINED for each in inconsistent_plan(folder)):
        write(folder, realised=False)
    return write(folder, realised=begun)
