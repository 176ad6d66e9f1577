"""The report of a run: built from its files, written, and a stored one checked against the files."""

import hashlib
import hmac
import json
import os
import pathlib
import re
from collections.abc import Mapping
from typing import Any

from tff_mf.base import strict_json, validation
from tff_mf.base.errors import InputError

from ..output import agreement, typed
from ..output.files import FOLDER_LOCK, write_atomically
from ..output.present import markdown as rendered
from ..output.text import up
from ..runs import statements
from ..runs.folders import readable_folder
from ..runs.names import (
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
from ._document import document
from ._evidence import CRITICAL, WARNING, Finding, found, gather
from ._facts import VERSION, digest, facts, problem
from ._judgement import judge
from ._other_files import RELEASE, on_folder, published
from .questions import checked, read_answers

# A bound of ε in a text, in whichever words.
_BOUND = re.compile(r"ε\s*[≤=<]\s*(\d+(?:\.\d+)?)")


def build(
    folder: pathlib.Path, *, realised: bool, answers: Mapping[str, Any] | None = None, audited: bool = True
) -> dict[str, Any]:
    """Returns the report of a run, computed from the files in its folder alone.

    Formal guarantee: the report contains a finite ε only if each assumption of the report holds or cannot be checked,
    and no finding is critical; the ε is rounded up in texts. Unless each question is answered, the claim is
    provisional.

    Args:
        folder: The run's folder.
        realised: Whether to build the final report, from the logs of the run; else the planned report.
        answers: Answers to use instead of those in the folder, to rebuild a report that is older than they are.
        audited: Whether to read the audit.

    Raises:
        InputValueError: If `run.json` is missing or damaged, or `answers.json` is damaged.
    """
    readable_folder(folder)
    evidence = gather(folder, realised=realised, answers=answers)
    return sealed(facts(judge(evidence, audited=audited, summarised=True)))


def markdown(report: Mapping[str, Any]) -> str:
    """Returns the page of a report: Markdown of all facts that may be published, without its own hashes."""
    return rendered(document(published(report), hashes=False))


def sealed(report: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the facts of a report with the hash of its page and its digest."""
    own = {name: value for name, value in report.items() if name not in ("page", "digest")}
    found = {**own, "page": page_hash(markdown(own))}
    return {**found, "digest": digest(found)}


def page_hash(page: str) -> str:
    """Returns the hash of a page, which a report has, so that its digest protects the page too."""
    return hashlib.sha256(page.encode()).hexdigest()


def page_fits(report: Mapping[str, Any], page: str) -> bool:
    """Returns whether a page is the one that a report has the hash of, and bounds no ε otherwise than the report does.

    Its words are not compared: another release has others.
    """
    figures = [report["claim"][name] for name in ("epsilon", "epsilon_of_a_person", "epsilon_as_run")]
    # What people wrote may look like a bound.
    written = _BOUND.findall(json.dumps(report, ensure_ascii=False))
    known = {*written, *statements.TIER_BOUNDS, *(up(each) for each in figures if each is not None)}
    return report["page"] == page_hash(page) and set(_BOUND.findall(page)) <= known


# Sections with figures that another machine recomputes with other last bits. All others repeat files.
_COMPUTED = ("claim", "noise", "accountant", "grid")
_VERSION = re.compile(rf"tff-mf {RELEASE}")
_HASH = re.compile("[0-9a-f]{64}")


def differences(stored: Mapping[str, Any], recomputed: Mapping[str, Any]) -> list[str]:
    """Returns the facts in which two reports do not agree, except for the digest and the hash of the page.

    Formal guarantee: if there are none, each figure of the stored report agrees with the recomputed one by the rule of
    its name in `agreement`, and all else is equal but for the release that wrote it. So no ε that it states is smaller
    than the recomputed one by more than 1e-9 of it.

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
    """
    validation.digest("digest", held)
    has_it = isinstance(stored, dict) and _is_held(stored.get("digest"), held)
    if has_it and _is_held(digest(_in_figures_of(stored, recomputed)), held):
        return []
    if recomputed["audit"] is not None:
        before = _without_later(build(folder, realised=recomputed["kind"] == "realised", audited=False), audited=False)
        before["files"] = {name: each for name, each in recomputed["files"].items() if name != AUDIT}
        # Its page followed from these facts, in the words of this release.
        if _is_held(sealed(_in_figures_of(stored, before))["digest"], held):
            return [found(CRITICAL, "digest", "digest_before_audit", file=AUDIT)]
    return [found(CRITICAL, "digest", "digest_other")]


def _in_figures_of(stored: Any, recomputed: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a recomputed report with the stored figures that agree, and the stored release and hash of its page.

    The page is compared by its hash alone, since another release has other words.
    """
    if not isinstance(stored, Mapping):
        return dict(recomputed)
    same = {
        name: agreement.adopted(stored.get(name), value, name) if name in _COMPUTED else value
        for name, value in recomputed.items()
    }
    accountant, page = stored.get("accountant"), stored.get("page")
    if isinstance(accountant, Mapping) and _VERSION.fullmatch(str(accountant.get("version"))):
        same["accountant"] = {**same["accountant"], "version": accountant["version"]}
    return same | ({"page": page} if _is_hash(page) else {})


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
    bits, and its digest, which was kept elsewhere, would be another one. The same holds for its page, whose words
    another release chose.

    Args:
        folder: The run's folder, with `run.json` and, for the final report, its logs.
        realised: Whether to write the final report; else the planned report.

    Raises:
        InputValueError: If `run.json` is missing or damaged, or `answers.json` is damaged.
    """
    report = build(folder, realised=realised)
    as_json, as_markdown = names(realised=realised)
    stored, _ = stored_report(folder, as_json)
    if isinstance(stored, dict) and not differences(stored, report):
        report = {**stored, "digest": digest(stored)}
        if _page(folder / as_markdown) == report["page"]:
            write_atomically(folder / as_json, as_text(report))
            return report
        report = sealed(report)
    write_atomically(folder / as_json, as_text(report))
    write_atomically(folder / as_markdown, markdown(report))
    return report


def _page(path: pathlib.Path) -> str:
    """Returns the hash of a page; an empty text if there is none."""
    try:
        return page_hash(path.read_bytes().decode())
    except (OSError, ValueError):
        return ""


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
    findings = [*on_folder(folder), *typed.convert(recomputed["findings"], list[Finding])]
    as_json, _ = names(realised=realised)
    if not realised:
        findings.insert(0, found(WARNING, "rounds", "nothing_ran"))
        if not os.path.lexists(folder / as_json):
            return [found(WARNING if held is None else CRITICAL, "report", "report_missing"), *findings]
    stored, wrong = stored_report(folder, as_json)
    if wrong is not None:
        return [wrong, *findings]
    findings += _inconsistent(folder, stored, realised=realised, is_held=held is not None)
    if held is not None:
        findings += other_than_held(folder, stored, recomputed, held)
    if not isinstance(stored, dict):
        return findings
    differing = differences(stored, recomputed)
    findings += _of_its_time(folder, stored, realised=realised) if differing else []
    return findings + (inconsistent_plan(folder) if realised else [])


def has_report(folder: pathlib.Path) -> bool:
    """Returns whether a folder has the final report or, if no run began there, the planned report."""
    return os.path.lexists(folder / names(realised=has_begun(folder))[0])


def of_another_version(stored: Any, as_json: str) -> Finding | None:
    """Returns a finding if a report is of another version of the format."""
    version = stored.get("report") if isinstance(stored, Mapping) else VERSION
    if type(version) is int and version != VERSION:
        return found(CRITICAL, "report", "report_version", file=as_json, version=version, checked=VERSION)
    return None


def _of_its_time(folder: pathlib.Path, stored: dict[str, Any], *, realised: bool) -> list[Finding]:
    """Returns findings on a report that does not follow from the current files, with the answers and the audit it has.

    A report without an audit was written before there was one. Of the answers at its time, only those that it repeats
    are known.

    Formal guarantee: no finding is critical only if the report follows from all files but `answers.json` and
    `audit.json`, each of its answers is missing or the current one, and it has no audit or the current one: then it
    states no figure that the current report does not state.
    """
    as_json, _ = names(realised=realised)
    try:
        answers, now = checked(stored["answers"], "report"), read_answers(folder)
        audited = stored["audit"] is not None
        recomputed = build(folder, realised=realised, answers=answers, audited=audited)
        # A report from before the audit does not have its hash.
        differing = differences(_without_later(stored, audited=True), _without_later(recomputed, audited=audited))
    except (InputError, KeyError, TypeError, AttributeError):
        return [found(CRITICAL, "report", "report_foreign", file=as_json)]
    if differing:
        return _other_than_recomputed(as_json, differing, stored["files"], recomputed["files"])
    if other := [name for name, answer in now.items() if answers[name] not in (None, answer)]:
        return [found(CRITICAL, "report", "report_answers", file=as_json, answers=ANSWERS, names=other)]
    # A planned report may be older than the answers and the audit of its run.
    if not realised and has_begun(folder):
        return []
    later = [AUDIT] if not audited and (folder / AUDIT).exists() else []
    if answers != now or stored["files"].get(ANSWERS) != recomputed["files"].get(ANSWERS):
        later.insert(0, ANSWERS)
    return [found(WARNING, "report", "report_older", file=as_json, names=later)]


def _other_than_recomputed(
    as_json: str, differing: list[str], stored: Mapping[str, Any], recomputed: Mapping[str, Any]
) -> list[Finding]:
    """Returns a finding for each fact that differs; of the hashes of files, first, which files they are."""
    others = [
        found(CRITICAL, "report", "report_differs", file=as_json, name=each) for each in differing if each != "files"
    ]
    if "files" not in differing:
        return others
    named = [each for each in {**recomputed, **stored} if stored.get(each) != recomputed.get(each)]
    return [found(CRITICAL, "report", "report_other_files", file=as_json, names=named), *others]


def inconsistent_plan(folder: pathlib.Path) -> list[Finding]:
    """Returns findings on the planned report of a run that began: it states an ε too.

    It may be older than the current answers and audit, and is recomputed with the answers that it has.
    """
    as_json, as_markdown = names(realised=False)
    if not (folder / as_json).exists() and not (folder / as_markdown).exists():
        return []
    stored, wrong = stored_report(folder, as_json)
    if wrong is not None:
        return [wrong]
    findings = _inconsistent(folder, stored, realised=False, is_held=False)
    if any(each.severity == CRITICAL for each in findings) or not isinstance(stored, dict):
        return findings
    return findings + _of_its_time(folder, stored, realised=False)


def stored_report(folder: pathlib.Path, as_json: str) -> tuple[Any, Finding | None]:
    """Returns a stored report, and a finding if it cannot be read or is of another version."""
    try:
        stored = strict_json.loads((folder / as_json).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        return None, found(CRITICAL, "report", "report_damaged", file=as_json, why=str(error))
    return stored, of_another_version(stored, as_json)


def _inconsistent(folder: pathlib.Path, stored: Any, *, realised: bool, is_held: bool) -> list[Finding]:
    """Returns findings on a stored report and its page, without the other files.

    The page has the hash that the report has of it, and states no ε that the report does not state. A page in other
    words than this release's is a warning if no digest was kept: whoever rewrites both is not found otherwise.
    """
    as_json, as_markdown = names(realised=realised)
    wrong = problem(stored)
    codes: list[tuple[str, Mapping[str, Any]]] = [("report_schema", {"why": wrong})] if wrong else []
    if isinstance(stored, dict):
        if stored.get("digest") != digest(stored):
            codes.append(("report_digest", {}))
        if stored.get("kind") != ("realised" if realised else "planned"):
            codes.append(("report_kind", {"kind": stored.get("kind")}))
        if (folder / as_json).read_bytes() != as_text(stored).encode(errors="surrogatepass"):
            codes.append(("report_bytes", {}))
    findings = [found(CRITICAL, "report", code, file=as_json, **values) for code, values in codes]
    if not isinstance(stored, dict):
        return findings
    try:
        shown = (folder / as_markdown).read_bytes().decode()
    except FileNotFoundError:
        return [*findings, found(WARNING, "report", "page_missing", file=as_markdown)]
    except (OSError, ValueError) as error:
        return [*findings, found(CRITICAL, "report", "page_damaged", file=as_markdown, why=str(error))]
    if wrong or not page_fits(stored, shown):
        findings.append(found(CRITICAL, "report", "page_edited", file=as_markdown, report=as_json))
    elif not is_held and shown != markdown(stored):
        findings.append(found(WARNING, "report", "page_in_other_words", file=as_markdown))
    return findings
