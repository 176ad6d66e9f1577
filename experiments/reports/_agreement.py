"""Whether a stored report agrees with the one that follows from the files, as they are or as they were."""

import dataclasses
import hmac
import pathlib
import re
from collections.abc import Mapping
from typing import Any

from tff_mf import validation
from tff_mf.errors import InputError

from ..output import agreement
from ..run_folder.names import ANSWERS, AUDIT
from ._audited import NO_AUDIT
from ._build import build, digest
from ._findings import CRITICAL, Finding
from ._summarised import VERSION
from ._words import words
from .questions import ANSWERED_BY, checked, read_answers

# Sections with figures that another machine recomputes with other last bits. All others repeat files.
_COMPUTED = ("claim", "noise", "accountant", "grid")
_VERSION = re.compile(rf"tff-mf {VERSION}")
_HASH = re.compile("[0-9a-f]{64}")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Earlier:
    """How a report differs from the one that follows from the files, with the answers and the audit of its time.

    Attributes:
        differing: The fields that differ even so.
        answered_otherwise: Questions that it answers, but differently from the answers now.
        later: The files that were written after it.
    """

    differing: list[str]
    answered_otherwise: list[str]
    later: list[str]


def of_its_time(folder: pathlib.Path, stored: Mapping[str, Any], *, realised: bool) -> Earlier | None:
    """Returns how a stored report differs from what follows with its own answers; `None` if it is not a report.

    A report without an audit was written before there was one. Of the answers at its time, only those that it repeats
    are known.

    Args:
        folder: The run's folder.
        stored: The report on disk.
        realised: Whether it is the final report; else the planned report.
    """
    try:
        given = {each["name"]: each["answer"] for each in stored["questions"]}
        answers = checked({**given, ANSWERED_BY.name: stored["about"][ANSWERED_BY.name]}, "report")
        now, audited = read_answers(folder), stored["audit"] != NO_AUDIT
        recomputed = build(folder, realised=realised, answers=answers, audited=audited)
        # A report from before the audit does not have its hash.
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
    """Returns the fields in which two reports do not agree, except for the digest.

    Formal guarantee: if there are none, each figure of the stored report agrees with the recomputed one by the rule of
    its name in `agreement`, its texts show those stored figures, and all else is equal but for the release that wrote
    it. So no ε that it states is smaller than the recomputed one by more than 1e-9 of it.

    Args:
        stored: The report to check.
        recomputed: The report that follows from the files, on this machine.
    """
    expected = _in_figures_of(stored, recomputed)
    names = [name for name in dict.fromkeys([*expected, *stored]) if name != "digest"]
    return [
        name
        for name in names
        if (name in stored) != (name in expected) or not agreement.same(stored.get(name), expected.get(name))
    ]


def other_than_held(folder: pathlib.Path, stored: Any, recomputed: Mapping[str, Any], held: str) -> list[Finding]:
    """Returns a finding if the report, or the one that follows from the files, does not have the digest that was kept.

    Args:
        folder: The run's folder.
        stored: The report on disk.
        recomputed: The report that follows from the files.
        held: The digest that was kept.

    Raises:
        InputValueError: If it is not a digest.
    """
    validation.digest("digest", held)
    has_it = isinstance(stored, dict) and _is_held(stored.get("digest"), held)
    if has_it and _has_digest(recomputed, stored, held):
        return []
    text = "the digest is not the one that was kept: this is another run, or its files or its report were changed"
    if recomputed["audit"] != NO_AUDIT:
        before = _without_later(build(folder, realised=recomputed["kind"] == "realised", audited=False), audited=False)
        before["files"] = {name: each for name, each in recomputed["files"].items() if name != AUDIT}
        if _has_digest(before, stored, held):
            text = (
                f"the digest that was kept belongs to the report before {AUDIT} was written, and nothing else changed: "
                "keep the digest that tff-mf audit printed"
            )
    return [Finding(severity=CRITICAL, field="digest", text=text)]


def _has_digest(recomputed: Mapping[str, Any], stored: Any, held: str) -> bool:
    """Returns whether a recomputed report has a digest, in the figures of the stored one as far as they agree."""
    return _is_held(digest(_in_figures_of(stored, recomputed)), held)


def _in_figures_of(stored: Any, recomputed: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a recomputed report with the stored figures that agree, texts that show them, and the stored release."""
    if not isinstance(stored, Mapping):
        return dict(recomputed)
    found = {
        name: agreement.adopted(stored.get(name), value, name) if name in _COMPUTED else value
        for name, value in recomputed.items()
    }
    accountant = stored.get("accountant")
    if isinstance(accountant, Mapping) and _VERSION.fullmatch(str(accountant.get("version"))):
        found["accountant"] = {**found["accountant"], "version": accountant["version"]}
    return {**found, **words(found)}


def _is_held(found: Any, held: str) -> bool:
    return isinstance(found, str) and hmac.compare_digest(found.encode(), held.encode())


def _without_later(report: Mapping[str, Any], *, audited: bool) -> dict[str, Any]:
    """Returns a report without the hashes of files that may be newer; a value that is not a hash stays, and differs."""
    left_out = (ANSWERS,) if audited else (ANSWERS, AUDIT)
    kept = {name: each for name, each in report["files"].items() if name not in left_out or not _is_hash(each)}
    return {**report, "files": kept}


def _is_hash(value: Any) -> bool:
    return isinstance(value, str) and bool(_HASH.fullmatch(value))
