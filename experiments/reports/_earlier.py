"""Reports that are older than an answer, an audit or this release: whether they follow from the files of their time."""

import dataclasses
import hmac
import json
import pathlib
import re
from collections.abc import Mapping
from typing import Any

import tff_mf
from tff_mf import validation
from tff_mf.errors import InputError

from ..run_folder.names import ANSWERS, AUDIT
from ._arithmetic import ARITHMETIC
from ._assumptions import CHOICE_OF_SETTINGS
from ._audited import NO_AUDIT
from ._build import build, digest
from ._findings import ASSUMED, CRITICAL, Finding
from ._randomness import as_randomness_was
from ._summarised import VERSION
from ._wording import as_arithmetic_was, in_earlier_words
from .questions import checked, read_answers

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
        answers, now = checked(given, "report"), read_answers(folder)
        audited = stored["audit"] != NO_AUDIT
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
    """Returns the fields in which two reports differ, except for the digest, the release, and the words of the release.

    Formal guarantee: that of `in_earlier_words`: a field that does not differ has the figures of the recomputed report.

    Args:
        stored: The report to check.
        recomputed: The report that follows from the files, by this release.
    """
    kept = json.loads(json.dumps(recomputed))
    forms = [each for form in _forms(kept, stored) for each in (form, in_earlier_words(form))]
    said = _of_release(stored, kept)
    names = [*kept, *(name for name in said if name not in kept)]
    return [
        name
        for name in names
        if name != "digest" and _exact(said.get(name)) not in [_exact(form.get(name)) for form in forms]
    ]


def other_version(stored: Mapping[str, Any]) -> str:
    """Returns the release that wrote a report, according to the report; an empty text if it is this one."""
    accountant = stored.get("accountant")
    version = accountant.get("version") if isinstance(accountant, Mapping) else None
    there = isinstance(version, str) and _VERSION.fullmatch(version)
    return str(version) if there and version != f"tff-mf {tff_mf.__version__}" else ""


def perhaps_reworded(stored: Any) -> str:
    """Returns a remark for a report by another release, which can differ in its wording only; else an empty text."""
    other = other_version(stored) if isinstance(stored, Mapping) else ""
    return (
        f". According to it, {other} wrote it: if only the wording differs, tff-mf report rewrites it" if other else ""
    )


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
                f"the digest that was kept is that of the report before {AUDIT} was written, and nothing else changed: "
                "keep the digest that tff-mf audit printed"
            )
            return [Finding(severity=CRITICAL, field="digest", text=text)]
    return [Finding(severity=CRITICAL, field="digest", text=text + perhaps_reworded(stored))]


def _has_digest(recomputed: Mapping[str, Any], stored: Any, held: str) -> bool:
    """Returns whether a recomputed report has a digest, in the words of this release or of earlier ones."""
    found = _of_release(recomputed, stored)
    forms = [each for form in _forms(found, stored) for each in (form, in_earlier_words(form))]
    return any(_is_held(digest(each), held) for each in forms)


def _forms(recomputed: Mapping[str, Any], stored: Any) -> list[Mapping[str, Any]]:
    """Returns a report that was recomputed and, for one that another release wrote, without what came later.

    Formal guarantee: only an assumption that is always stated as assumed is left out, and the generator of the noise is
    described as it was; no figure changes.
    """
    if not (isinstance(stored, Mapping) and other_version(stored)):
        return [recomputed]
    forms = [recomputed]
    for later in (ARITHMETIC, CHOICE_OF_SETTINGS):
        named = [each for each in forms[-1]["assumptions"] if each["name"] != later or each["state"] != ASSUMED]
        forms.append({**as_arithmetic_was(forms[-1]), "assumptions": named})
    return [each for form in forms for each in (form, as_randomness_was(form))]


def _is_held(found: Any, held: str) -> bool:
    return isinstance(found, str) and hmac.compare_digest(found.encode(), held.encode())


def _of_release(report: Mapping[str, Any], like: Any) -> dict[str, Any]:
    """Returns a report with the release that wrote another one, which is not part of the claim."""
    found = dict(report)
    own, other = (each.get("accountant") if isinstance(each, Mapping) else None for each in (report, like))
    if isinstance(own, Mapping) and isinstance(other, Mapping) and "version" in own:
        named = [str(each.get("version")) for each in (own, other)]
        if all(map(_VERSION.fullmatch, named)):
            found["accountant"] = {**own, "version": other["version"]}
    return found


def _without_later(report: Mapping[str, Any], *, audited: bool) -> dict[str, Any]:
    """Returns a report without the hashes of files that may be newer; a value that is not a hash stays, and differs."""
    left_out = (ANSWERS,) if audited else (ANSWERS, AUDIT)
    kept = {name: each for name, each in report["files"].items() if name not in left_out or not _is_hash(each)}
    return {**report, "files": kept}


def _is_hash(value: Any) -> bool:
    return isinstance(value, str) and bool(_HASH.fullmatch(value))


def _exact(value: Any) -> str:
    """Returns a value as text, which is different for 1, 1.0 and true."""
    return json.dumps(value, sort_keys=True)
