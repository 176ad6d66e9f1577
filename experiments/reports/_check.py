"""Writes the report of a run, and checks a stored one against the files of the run."""

import dataclasses
import hmac
import json
import os
import pathlib
import re
from collections.abc import Mapping
from typing import Any

from tff_mf.base import strict_json, validation
from tff_mf.base.errors import InputError

from ..output import agreement
from ..output.files import FOLDER_LOCK, write_atomically
from ..run_folder.names import (
    ANSWERS,
    AUDIT,
    CHECKPOINTS,
    LEDGER,
    METRICS,
    MODEL,
    PARTICIPATION,
    PLANNED,
    PLANNED_TEXT,
    REPORT,
    REPORT_TEXT,
    SUMMARY,
)
from ._build import VERSION, build, digest
from ._evidence import CRITICAL, NO_AUDIT, WARNING, Finding, on_folder
from ._judgement import recomputed_words
from ._markdown import markdown
from ._schema import problem
from ._summarised import RELEASE
from .questions import ANSWERED_BY, checked, read_answers

# Sections with figures that another machine recomputes with other last bits. All others repeat files.
_COMPUTED = ("claim", "noise", "accountant", "grid")
_VERSION = re.compile(rf"tff-mf {RELEASE}")
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
    return {**found, **recomputed_words(found)}


def _is_held(found: Any, held: str) -> bool:
    return isinstance(found, str) and hmac.compare_digest(found.encode(), held.encode())


def _without_later(report: Mapping[str, Any], *, audited: bool) -> dict[str, Any]:
    """Returns a report without the hashes of files that may be newer; a value that is not a hash stays, and differs."""
    left_out = (ANSWERS,) if audited else (ANSWERS, AUDIT)
    kept = {name: each for name, each in report["files"].items() if name not in left_out or not _is_hash(each)}
    return {**report, "files": kept}


def _is_hash(value: Any) -> bool:
    return isinstance(value, str) and bool(_HASH.fullmatch(value))


def names(*, realised: bool) -> tuple[str, str]:
    """Returns the names of the JSON file and of the Markdown file."""
    return (REPORT, REPORT_TEXT) if realised else (PLANNED, PLANNED_TEXT)


def write(folder: pathlib.Path, *, realised: bool) -> dict[str, Any]:
    """Builds a run's report, writes it as JSON and as Markdown, and returns it.

    A report that is there and agrees with the files stays as it is: on another machine its figures have other last
    bits, and its digest, which was kept elsewhere, would be another one.

    Args:
        folder: The run's folder, with `run.json` and, for the final report, its logs.
        realised: Whether to write the final report; else the planned report.

    Raises:
        InputValueError: If `run.json` is missing or damaged, or `answers.json` is damaged.
    """
    report = build(folder, realised=realised)
    as_json, as_markdown = names(realised=realised)
    stored = _stored(folder / as_json)
    if stored is not None and not differences(stored, report):
        report = {**stored, "digest": digest(stored)}
    write_atomically(folder / as_json, as_text(report))
    write_atomically(folder / as_markdown, markdown(report))
    return report


def _stored(path: pathlib.Path) -> dict[str, Any] | None:
    """Returns the object in a file of JSON; `None` if there is none."""
    try:
        stored = strict_json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return None
    return stored if isinstance(stored, dict) else None


def as_text(report: Mapping[str, Any]) -> str:
    """Returns the text of `report.json` for a report; files are compared with it byte by byte."""
    return json.dumps(report, indent=1, ensure_ascii=False) + "\n"


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
    stored, damage = _check_stored(folder / as_json)
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
    stored, damage = _check_stored(folder / as_json)
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


def _check_stored(path: pathlib.Path) -> tuple[Any, str]:
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
