"""Reports older than an answer, an audit, or this release: whether they follow from the files of their time."""

import dataclasses
import hmac
import json
import pathlib
import re
from collections.abc import Mapping
from typing import Any

import tff_mf
from tff_mf import _validate
from tff_mf.errors import InputError

from ._audited import AUDIT
from ._build import build, digest
from ._findings import CRITICAL, Finding
from ._summarised import VERSION
from .questions import ANSWERS, checked, read_answers

_NONE = "none"
_VERSION = re.compile(rf"tff-mf {VERSION}")
_HASH = re.compile("[0-9a-f]{64}")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Earlier:
    """How a report differs from the one that follows from the files, with the answers and the audit of its time.

    Attributes:
        differing: The fields in which it differs all the same.
        answered_otherwise: Questions to which it has another answer than there is now, and not none.
        later: The files that were written after it.
    """

    differing: list[str]
    answered_otherwise: list[str]
    later: list[str]


def of_its_time(folder: pathlib.Path, stored: Mapping[str, Any], *, realised: bool) -> Earlier | None:
    """Returns how a stored report differs from what follows with its own answers, or `None` if it is no report.

    A report without an audit is of before there was one; of answers of its time only what they said is known.

    Args:
        folder: The run's folder.
        stored: The report on disk.
        realised: Whether it is that of a run that is over.
    """
    try:
        given = {each["name"]: each["answer"] for each in stored["questions"]}
        answers, now = checked(given, "report"), read_answers(folder)
        audited = stored["audit"] != _NONE
        recomputed = build(folder, realised=realised, answers=answers, audited=audited)
        # A report of before the audit knows no hash of it.
        found = [_without_later(stored, audited=True), _without_later(recomputed, audited=audited)]
    except (InputError, KeyError, TypeError, AttributeError):
        return None
    later = [AUDIT] if not audited and (folder / AUDIT).exists() else []
    if answers != now or stored["files"].get(ANSWERS) != recomputed["files"].get(ANSWERS):
        later.insert(0, ANSWERS)
    return Earlier(
        differing=differences(*found),
        answered_otherwise=[name for name, answer in now.items() if answers[name] not in (None, answer)],
        later=later,
    )


def differences(stored: Mapping[str, Any], recomputed: Mapping[str, Any]) -> list[str]:
    """Returns the fields in which two reports differ, but for the digest and for the release that wrote them."""
    kept = json.loads(json.dumps(recomputed))
    said = _of_release(stored, kept)
    names = [*kept, *(name for name in said if name not in kept)]
    return [name for name in names if name != "digest" and _exact(said.get(name)) != _exact(kept.get(name))]


def other_version(stored: Mapping[str, Any]) -> str:
    """Returns the release that a report says it was written by, or an empty text if it is this one."""
    accountant = stored.get("accountant")
    version = accountant.get("version") if isinstance(accountant, Mapping) else None
    there = isinstance(version, str) and _VERSION.fullmatch(version)
    return str(version) if there and version != f"tff-mf {tff_mf.__version__}" else ""


def perhaps_reworded(stored: Any) -> str:
    """Returns what to add where a report by another release differs, perhaps in its wording; else an empty text."""
    other = other_version(stored) if isinstance(stored, Mapping) else ""
    return (
        f". It says that {other} wrote it: if only the wording differs, write it anew with tff-mf report"
        if other
        else ""
    )


def other_than_held(folder: pathlib.Path, stored: Any, recomputed: Mapping[str, Any], held: str) -> list[Finding]:
    """Returns what is wrong if the report, or what follows from the files, is not the one whose digest was kept.

    Args:
        folder: The run's folder.
        stored: The report on disk.
        recomputed: What follows from the files.
        held: The digest that was kept.

    Raises:
        InputValueError: If it is no digest.
    """
    _validate.digest("digest", held)
    as_stored = _of_release(recomputed, stored) if isinstance(stored, dict) else recomputed
    said = (stored.get("digest") if isinstance(stored, dict) else None, digest(as_stored))
    if all(isinstance(each, str) and hmac.compare_digest(each.encode(), held.encode()) for each in said):
        return []
    text = "the digest is not the one that was held: this is another run, or its files or its report were changed"
    if recomputed["audit"] != _NONE:
        before = _without_later(build(folder, realised=recomputed["kind"] == "realised", audited=False), audited=False)
        before["files"] = {name: each for name, each in recomputed["files"].items() if name != AUDIT}
        if hmac.compare_digest(digest(_of_release(before, stored)).encode(), held.encode()):
            text = (
                f"the digest that was held is of the report before {AUDIT} was there; all else is as it was: hold the "
                "digest that tff-mf audit printed"
            )
            return [Finding(severity=CRITICAL, field="digest", text=text)]
    text += perhaps_reworded(stored)
    return [Finding(severity=CRITICAL, field="digest", text=text)]


def _of_release(report: Mapping[str, Any], like: Any) -> dict[str, Any]:
    """Returns a report as the release would have signed it that wrote another one: its name is no part of a claim."""
    found = dict(report)
    own, other = (each.get("accountant") if isinstance(each, Mapping) else None for each in (report, like))
    if isinstance(own, Mapping) and isinstance(other, Mapping) and "version" in own:
        named = [str(each.get("version")) for each in (own, other)]
        if all(map(_VERSION.fullmatch, named)):
            found["accountant"] = {**own, "version": other["version"]}
    return found


def _without_later(report: Mapping[str, Any], *, audited: bool) -> dict[str, Any]:
    """Returns a report without the hashes of files that may be of after it; what is no hash stays, and differs."""
    left_out = (ANSWERS,) if audited else (ANSWERS, AUDIT)
    kept = {name: each for name, each in report["files"].items() if name not in left_out or not _is_hash(each)}
    return {**report, "files": kept}


def _is_hash(value: Any) -> bool:
    return isinstance(value, str) and bool(_HASH.fullmatch(value))


def _exact(value: Any) -> str:
    """Returns a value as text, in which 1, 1.0 and true are three."""
    return json.dumps(value, sort_keys=True)
