"""Checks the stored report of a run against the files of the run."""

import os
import pathlib
from collections.abc import Mapping
from typing import Any

from tff_mf import strict_json, validation

from ..output.locks import FOLDER_LOCK
from ..run_folder.names import (
    ANSWERS,
    CHECKPOINTS,
    LEDGER,
    METRICS,
    MODEL,
    PARTICIPATION,
    REPORT,
    REPORT_TEXT,
    STATE,
    SUMMARY,
)
from ._agreement import differences, of_its_time, other_than_held
from ._build import VERSION, build, digest
from ._files import as_text, names, write
from ._findings import CRITICAL, WARNING, Finding
from ._folder import on_folder
from ._markdown import markdown
from ._schema import problem

# Files that a run writes once it begins.
_OF_A_RUN = (
    LEDGER,
    PARTICIPATION,
    METRICS,
    SUMMARY,
    MODEL,
    REPORT,
    REPORT_TEXT,
    CHECKPOINTS,
    FOLDER_LOCK,
    STATE,
)
_NOTHING_RAN = "no file of a run that began is here: a run whose files were removed looks the same"


def has_begun(folder: pathlib.Path) -> bool:
    """Returns whether a folder has a file that a run writes once it begins."""
    return any(os.path.lexists(folder / name) for name in _OF_A_RUN)


def check(folder: pathlib.Path, *, held: str | None = None) -> list[Finding]:
    """Returns all findings on a run: its recomputed report's, and the differences to the stored report.

    Formal guarantee: given the digest of the run's report, kept out of reach of anybody who can write to the folder, no
    finding is critical only if the stored report is unchanged and follows from the files: stating another ε by changing
    them takes a collision of SHA-256. Without the digest, a folder in which every file was rewritten, as another run
    would have written it, is not detected.

    Args:
        folder: The run's folder. If it has a log, the run has ended or was interrupted.
        held: The digest of the run's report, as printed when it was written; `None` if it was not kept.

    Raises:
        InputValueError: If `run.json` is missing or damaged, `answers.json` is damaged, or the digest is not a digest.
    """
    if held is not None:
        validation.digest("digest", held)
    realised = has_begun(folder)
    recomputed = build(folder, realised=realised)
    found = [*on_folder(folder), *(Finding(**each) for each in recomputed["findings"])]
    as_json, _ = names(realised=realised)
    if not realised:
        found.insert(0, Finding(severity=WARNING, field="rounds", text=_NOTHING_RAN))
        if not os.path.lexists(folder / as_json):
            severity = WARNING if held is None else CRITICAL
            return [Finding(severity=severity, field="report", text="there is no report to check"), *found]
    stored, damage = _stored(folder / as_json)
    if damage:
        text = f"{as_json} is missing or damaged: {damage}; write it with tff-mf report"
        return [_critical(text), *found]
    if other := of_another_version(stored, as_json):
        return [_critical(other), *found]
    found += _inconsistent(folder, stored, realised=realised)
    if held is not None:
        found += other_than_held(folder, stored, recomputed, held)
    if not isinstance(stored, dict):
        return found
    differing = differences(stored, recomputed)
    found += _of_its_time(folder, stored, realised=realised) if differing else []
    return found + (_inconsistent_plan(folder) if realised else [])


def has_report(folder: pathlib.Path) -> bool:
    """Returns whether a folder has the final report or, if no run began there, the planned report."""
    return os.path.lexists(folder / names(realised=has_begun(folder))[0])


def is_current(folder: pathlib.Path) -> bool:
    """Returns whether a folder has a report that follows from its files, or did so before answers or audit were added.

    Such a report was not edited, and can be rewritten with the new answers or the new audit.

    Raises:
        InputValueError: If `run.json` is missing or damaged, or `answers.json` is damaged.
    """
    wrong = any(each.severity == CRITICAL and each.field == "report" for each in check(folder))
    return has_report(folder) and not wrong


def write_anew(folder: pathlib.Path) -> dict[str, Any]:
    """Rewrites the final report of a run, and its planned report if it has one, with the current answers and audit."""
    realised = has_begun(folder)
    if realised and os.path.lexists(folder / names(realised=False)[0]):
        write(folder, realised=False)
    return write(folder, realised=realised)


def of_another_version(stored: Any, as_json: str) -> str:
    """Returns that a report is of another version of the format, in words, or an empty text."""
    version = stored.get("report") if isinstance(stored, Mapping) else VERSION
    if type(version) is int and version != VERSION:
        return f"{as_json} has version {version}, and this release checks {VERSION}: write it again with tff-mf report"
    return ""


def _of_its_time(folder: pathlib.Path, stored: dict[str, Any], *, realised: bool) -> list[Finding]:
    """Returns findings on a report that does not follow from the current files.

    Formal guarantee: no finding is critical only if the report follows from all files but `answers.json` and
    `audit.json`, each of its answers is missing or the current one, and it has no audit or the current one: then it
    states no figure that the current report does not state.
    """
    as_json, _ = names(realised=realised)
    earlier = of_its_time(folder, stored, realised=realised)
    anew = "tff-mf report rewrites it"
    if earlier is None:
        return [_critical(f"{as_json} is not a report of this release: {anew}")]
    if earlier.differing:
        return [_critical(_differs(name, as_json)) for name in earlier.differing]
    if earlier.answered_otherwise:
        other = ", ".join(earlier.answered_otherwise)
        return [_critical(f"{as_json} and {ANSWERS} answer {other} differently: {anew}")]
    later = " and ".join(earlier.later)
    return [Finding(severity=WARNING, field="report", text=f"{as_json} is older than {later}: {anew}")]


def _inconsistent_plan(folder: pathlib.Path) -> list[Finding]:
    """Returns findings on the planned report of a run that began: it states an ε too.

    It may be older than the current answers and audit, and is recomputed with the answers that it has.
    """
    as_json, as_markdown = names(realised=False)
    if not (folder / as_json).exists() and not (folder / as_markdown).exists():
        return []
    stored, damage = _stored(folder / as_json)
    damage = f"{as_json} is missing or damaged: {damage}" if damage else of_another_version(stored, as_json)
    if damage:
        return [_critical(damage)]
    found = _inconsistent(folder, stored, realised=False)
    if found or not isinstance(stored, dict):
        return found
    earlier = of_its_time(folder, stored, realised=False)
    if earlier is None:
        return [_critical(f"{as_json} is not a planned report")]
    if earlier.answered_otherwise:
        other = earlier.answered_otherwise[0]
        return [_critical(f"{as_json} and {ANSWERS} answer {other} differently: rewrite it (--planned)")]
    return [_critical(_differs(name, as_json)) for name in earlier.differing]


def _differs(name: str, as_json: str) -> str:
    return f"`{name}` in {as_json} does not match the value recomputed from the run's files: one of them was edited"


def _stored(path: pathlib.Path) -> tuple[Any, str]:
    """Returns a stored report, and why it cannot be read; an empty text if it can."""
    try:
        return strict_json.loads(path.read_text(encoding="utf-8")), ""
    except (OSError, ValueError, RecursionError) as error:
        return None, str(error)


def _inconsistent(folder: pathlib.Path, stored: Any, *, realised: bool) -> list[Finding]:
    """Returns findings on a stored report and its Markdown, without the other files."""
    as_json, as_markdown = names(realised=realised)
    found = [_critical(f"{as_json}: {text}")] if (text := problem(stored)) else []
    if not isinstance(stored, dict):
        return found
    if stored.get("digest") != digest(stored):
        found.append(_critical(f"{as_json} was edited: its digest does not match its content"))
    if stored.get("kind") != ("realised" if realised else "planned"):
        found.append(_critical(f"{as_json} has the wrong kind: {stored.get('kind')!r:.80}"))
    if (folder / as_json).read_bytes() != as_text(stored).encode(errors="surrogatepass"):
        found.append(_critical(f"{as_json} was edited: tff-mf report writes the same content in other bytes"))
    try:
        shown = (folder / as_markdown).read_bytes().decode()
    except FileNotFoundError:
        return [*found, Finding(severity=WARNING, field="report", text=f"{as_markdown} is missing")]
    except (OSError, ValueError) as error:
        return [*found, _critical(f"{as_markdown} is damaged: {error}")]
    if text or shown != markdown(stored):
        found.append(_critical(f"{as_markdown} does not match {as_json}: it was edited"))
    return found


def _critical(text: str) -> Finding:
    return Finding(severity=CRITICAL, field="report", text=text)
