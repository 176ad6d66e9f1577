"""Checks a report that somebody handed over against the files it is about."""

import hmac
import json
import os
import pathlib
from typing import Any

from tff_mf.errors import InputError, InputValueError

from ..ledger import LEDGER
from ..participation_log import PARTICIPATION
from . import _strict
from ._build import build, digest
from ._evidence import METRICS
from ._files import as_text, names
from ._findings import CRITICAL, WARNING, Finding
from ._markdown import markdown
from ._questions import checked, read_answers
from ._schema import problems
from ._summarised import MODEL, SUMMARY

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
        found += _other_than_held(stored, recomputed, held)
    if not isinstance(stored, dict):
        return found
    for name in _differing(stored, recomputed):
        found.append(_critical(f"{as_json} says another {name} than the run's files: it was edited, or they were"))
    return found + (_inconsistent_plan(folder) if realised else [])


def _other_than_held(stored: Any, recomputed: dict[str, Any], held: str) -> list[Finding]:
    """Returns what is wrong if the report, or what follows from the files, is not the one whose digest was kept."""
    if not (len(held) == 64 and all(each in "0123456789abcdef" for each in held)):
        raise InputValueError(f"digest={held!r} is no digest of a report: 64 hexadecimal digits, in lower case.")
    said = (stored.get("digest") if isinstance(stored, dict) else None, recomputed["digest"])
    if all(isinstance(each, str) and hmac.compare_digest(each.encode(), held.encode()) for each in said):
        return []
    text = "the digest is not the one that was held: this is another run, or its files or its report were changed"
    return [Finding(severity=CRITICAL, field="digest", text=text)]


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
    try:
        answers = checked({each["name"]: each["answer"] for each in stored["questions"]}, as_json)
        other = [name for name, now in read_answers(folder).items() if answers[name] not in (None, now)]
        if other:
            return [
                _critical(f"{as_json} has another answer to {other[0]} than there is now: write it anew (--planned)")
            ]
        recomputed = build(folder, realised=False, answers=answers, audited=stored["audit"] != "none")
    except (InputError, KeyError, TypeError) as error:
        return [_critical(f"{as_json} is no planned report: {error}")]
    # Of the answers of its time only what they said is known.
    for report in (stored, recomputed):
        report["files"] = {name: each for name, each in report["files"].items() if name != "answers.json"}
    return [
        _critical(f"{as_json} says another {name} than the run was set to: it was edited, or is of another run")
        for name in _differing(stored, recomputed)
    ]


def _stored(path: pathlib.Path) -> tuple[Any, str]:
    """Returns what a report on disk says, and what keeps it from being read."""
    try:
        return _strict.loads(path.read_text(encoding="utf-8")), ""
    except (OSError, ValueError, RecursionError) as error:
        return None, str(error)


def _differing(stored: dict[str, Any], recomputed: dict[str, Any]) -> list[str]:
    """Returns the fields in which two reports differ, but for the digest."""
    kept = json.loads(json.dumps(recomputed))
    return [name for name in kept if name != "digest" and _exact(stored.get(name)) != _exact(kept[name])]


def _exact(value: Any) -> str:
    """Returns a value as text, in which 1, 1.0 and true are three."""
    return json.dumps(value, sort_keys=True)


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
        found.append(_critical(f"{as_markdown} says something else than {as_json}: it was edited"))
    return found


def _fits(report: Any) -> bool:
    """Returns whether a report is as the schema says."""
    return next(problems(report), None) is None


def _critical(text: str) -> Finding:
    return Finding(severity=CRITICAL, field="report", text=text)
