"""Checks a report that somebody handed over against the files it is about."""

import os
import pathlib
from typing import Any

from tff_mf import _validate

from ..output import strict_json
from ..run_folder.ledger import LEDGER
from ..run_folder.participation_log import PARTICIPATION
from ._build import build, digest
from ._earlier import differences, of_its_time, other_than_held, other_version, perhaps_reworded
from ._evidence import METRICS
from ._files import as_text, names, write
from ._findings import CRITICAL, WARNING, Finding
from ._markdown import markdown
from ._schema import problems
from ._summarised import MODEL, SUMMARY
from .questions import ANSWERS

# Whatever of these is there was written by a run that began.
_OF_A_RUN = (
    LEDGER,
    PARTICIPATION,
    METRICS,
    SUMMARY,
    MODEL,
    "report.json",
    "report.md",
    "checkpoints",
    ".lock",
    "state",
)
_NOTHING_RAN = "nothing ran here, by its files: a run of which they were removed looks the same"


def has_begun(folder: pathlib.Path) -> bool:
    """Returns whether a folder has anything that a run writes once it begins."""
    return any(os.path.lexists(folder / name) for name in _OF_A_RUN)


def check(folder: pathlib.Path, *, held: str | None = None) -> list[Finding]:
    """Returns all findings on a run: those of its report, recomputed, and how the report on disk differs from it.

    Formal guarantee: with the digest of the run's report, held where nobody who can write to the folder reaches it, no
    finding is critical only if the report says what it said then, and what follows from the files: whoever states
    another ε by changing them has found a collision of SHA-256. Without it, whoever writes every file anew as another
    run would have, is not found out.

    Args:
        folder: The run's folder. A run that has a log is over, or was broken off.
        held: The digest of the run's report, as printed when it was written; `None` if nobody kept it.

    Raises:
        InputValueError: If the folder has no intact configuration, or answers that are none, or the digest is none.
    """
    if held is not None:
        _validate.digest("digest", held)
    realised = has_begun(folder)
    recomputed = build(folder, realised=realised)
    found = [Finding(**each) for each in recomputed["findings"]]
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
    found += _inconsistent(folder, stored, realised=realised)
    if held is not None:
        found += other_than_held(folder, stored, recomputed, held)
    if not isinstance(stored, dict):
        return found
    differing = differences(stored, recomputed)
    found += _of_its_time(folder, stored, realised=realised) if differing else []
    return found + (_inconsistent_plan(folder) if realised else [])


def has_report(folder: pathlib.Path) -> bool:
    """Returns whether a folder has the report of what ran there or, if nothing did, of its plan."""
    return os.path.lexists(folder / names(realised=has_begun(folder))[0])


def is_current(folder: pathlib.Path) -> bool:
    """Returns whether a folder has a report that follows from its files, or from those of its time.

    Whoever writes such a report anew, since an answer or an audit was added, replaces nothing that was edited.

    Raises:
        InputValueError: If the folder has no intact configuration, or answers that are none.
    """
    wrong = any(each.severity == CRITICAL and each.field == "report" for each in check(folder))
    return has_report(folder) and not wrong


def write_anew(folder: pathlib.Path) -> dict[str, Any]:
    """Writes a run's report anew, and its plan's if there is one, with the answers and the audit of now."""
    realised = has_begun(folder)
    if realised and os.path.lexists(folder / names(realised=False)[0]):
        write(folder, realised=False)
    return write(folder, realised=realised)


def _of_its_time(folder: pathlib.Path, stored: dict[str, Any], *, realised: bool) -> list[Finding]:
    """Returns what is wrong with a report that does not follow from the files as they are.

    Formal guarantee: no finding is critical only if the report follows from all files but `answers.json` and
    `audit.json`, with answers of its own that are those of now, or missing, and no other audit than there is: then it
    states no figure that is not stated now.
    """
    as_json, _ = names(realised=realised)
    earlier = of_its_time(folder, stored, realised=realised)
    anew = "tff-mf report writes it anew"
    if earlier is None:
        return [_critical(f"{as_json} is no report of this release: {anew}")]
    text = f"than the run's files: it was edited, or they were{perhaps_reworded(stored)}"
    if earlier.differing:
        return [_critical(f"{as_json} says another {name} {text}") for name in earlier.differing]
    if earlier.answered_otherwise:
        other = ", ".join(earlier.answered_otherwise)
        return [_critical(f"{as_json} has another answer to {other} than {ANSWERS} has now: {anew}")]
    later = " and ".join(earlier.later)
    return [Finding(severity=WARNING, field="report", text=f"{as_json} is older than {later}: {anew}")]


def _inconsistent_plan(folder: pathlib.Path) -> list[Finding]:
    """Returns what is wrong with the planned report of a run that began: it states an ε too.

    It may be older than the answers and the audit of today, and is computed anew with those that it had.
    """
    as_json, as_markdown = names(realised=False)
    if not (folder / as_json).exists() and not (folder / as_markdown).exists():
        return []
    stored, damage = _stored(folder / as_json)
    if damage:
        return [_critical(f"{as_json} is missing or damaged: {damage}")]
    found = _inconsistent(folder, stored, realised=False)
    if found or not isinstance(stored, dict):
        return found
    earlier = of_its_time(folder, stored, realised=False)
    if earlier is None:
        return [_critical(f"{as_json} is no planned report")]
    if earlier.answered_otherwise:
        other = earlier.answered_otherwise[0]
        return [_critical(f"{as_json} has another answer to {other} than there is now: write it anew (--planned)")]
    text = f"than the run was set to: it was edited, or is of another run{perhaps_reworded(stored)}"
    return [_critical(f"{as_json} says another {name} {text}") for name in earlier.differing]


def _stored(path: pathlib.Path) -> tuple[Any, str]:
    """Returns what a report on disk says, and what keeps it from being read."""
    try:
        return strict_json.loads(path.read_text(encoding="utf-8")), ""
    except (OSError, ValueError, RecursionError) as error:
        return None, str(error)


def _inconsistent(folder: pathlib.Path, stored: Any, *, realised: bool) -> list[Finding]:
    """Returns what is wrong with a report and its Markdown, by themselves."""
    as_json, as_markdown = names(realised=realised)
    found = [_critical(f"{as_json}: {text}") for text in problems(stored)]
    if not isinstance(stored, dict):
        return found
    if stored.get("digest") != digest(stored):
        found.append(_critical(f"{as_json} was edited: its digest is not that of what it says"))
    if stored.get("kind") != ("realised" if realised else "planned"):
        found.append(_critical(f"{as_json} is of another kind: {stored.get('kind')!r:.80}"))
    if (folder / as_json).read_bytes() != as_text(stored).encode(errors="surrogatepass"):
        found.append(_critical(f"{as_json} was edited: tff-mf report writes the same in other bytes"))
    try:
        shown = (folder / as_markdown).read_bytes().decode()
    except FileNotFoundError:
        return [*found, Finding(severity=WARNING, field="report", text=f"{as_markdown} is missing")]
    except (OSError, ValueError) as error:
        return [*found, _critical(f"{as_markdown} is damaged: {error}")]
    if not _fits(stored) or shown != markdown(stored):
        other = other_version(stored)
        text = (
            f"was worded by {other}, and cannot be checked by this release: tff-mf report writes it anew"
            if other
            else f"says something else than {as_json}: it was edited"
        )
        found.append(_critical(f"{as_markdown} {text}"))
    return found


def _fits(report: Any) -> bool:
    """Returns whether a report is as the schema says."""
    return next(problems(report), None) is None


def _critical(text: str) -> Finding:
    return Finding(severity=CRITICAL, field="report", text=text)
