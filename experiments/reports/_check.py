"""The report of a run: built from its files, written, and a stored one checked against the files."""

import contextlib
import hashlib
import hmac
import json
import os
import pathlib
import re
import unicodedata
from collections.abc import Mapping
from typing import Any

from tff_mf.base import strict_json, validation
from tff_mf.base.errors import InputError

from ..output import agreement, typed
from ..output.files import FOLDER_LOCK, write_atomically
from ..output.present import markdown as rendered
from ..output.text import up
from ..runs import names, statements
from ..runs.folders import readable_folder
from ._document import document
from ._evidence import CRITICAL, WARNING, Finding, found, gather
from ._facts import VERSION, digest, facts, problem
from ._judgement import judge
from ._other_files import RELEASE, on_folder, published
from .questions import checked, read_answers

# Numbers, and what is said of ε, in whichever words: a bound, and the number that comes next.
_NUMBER = r"((?:\d+(?:\.\d*)?|\.\d+)(?:e[+-]?\d+)?)"
_EPSILON = r"(?:ε|\\?(?:var)?epsilon)"
_BOUND = re.compile(rf"{_EPSILON}\s*(?:[≤⩽=<]|\\leq?)+\s*{_NUMBER}", re.IGNORECASE)
_NEXT = re.compile(rf"{_EPSILON}[^\d.]{{0,40}}?{_NUMBER}", re.IGNORECASE)
_ANY = re.compile(_NUMBER, re.IGNORECASE)
# Sections with figures that another machine recomputes with other last bits. All others repeat files.
_COMPUTED = ("claim", "noise", "accountant", "grid")
_VERSION = re.compile(rf"tff-mf {RELEASE}")
_HASH = re.compile("[0-9a-f]{64}")
# Files that a run writes once it begins.
_OF_A_RUN = (
    *(names.LEDGER, names.PARTICIPATION, names.METRICS, names.SUMMARY, names.MODEL),
    *(names.REPORT, names.REPORT_TEXT, names.CHECKPOINTS, FOLDER_LOCK),
)


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


def as_text(report: Mapping[str, Any]) -> str:
    """Returns the text of `report.json` for a report; files are compared with it byte by byte."""
    return json.dumps(report, indent=1, ensure_ascii=False) + "\n"


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
    return [
        name
        for name in dict.fromkeys([*expected, *stored])
        if name != "digest"
        and ((name in stored) != (name in expected) or not agreement.same(stored.get(name), expected.get(name)))
    ]


def _in_figures_of(stored: Mapping[str, Any], recomputed: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a recomputed report with the stored figures that agree, and the stored release and hash of its page.

    The page is compared by its hash alone, since another release has other words.
    """
    same = {
        name: agreement.adopted(stored.get(name), value, name) if name in _COMPUTED else value
        for name, value in recomputed.items()
    }
    accountant, page = stored.get("accountant"), stored.get("page")
    if isinstance(accountant, Mapping) and _VERSION.fullmatch(str(accountant.get("version"))):
        same["accountant"] = {**same["accountant"], "version": accountant["version"]}
    return same | ({"page": page} if _is_hash(page) else {})


def _without_later(report: Mapping[str, Any], *, audited: bool) -> dict[str, Any]:
    """Returns a report without the hashes of files that may be newer; a value that is not a hash stays, and differs."""
    left_out = (names.ANSWERS,) if audited else (names.ANSWERS, names.AUDIT)
    kept = {name: each for name, each in report["files"].items() if name not in left_out or not _is_hash(each)}
    return {**report, "files": kept}


def _is_hash(value: Any) -> bool:
    return isinstance(value, str) and bool(_HASH.fullmatch(value))


def _is_held(found: Any, held: str) -> bool:
    return isinstance(found, str) and hmac.compare_digest(found.encode(), held.encode())


class Stored:
    """The report in a folder: the final one, or the planned one.

    Attributes:
        report: Its facts; empty if it is missing, damaged or no object.
        wrong: Why it cannot be read, or that it is of another version of the format.

    Args:
        folder: The run's folder.
        realised: Whether it is the final report; if not given, whether a run began there.
    """

    def __init__(self, folder: pathlib.Path, *, realised: bool | None = None) -> None:
        self._folder, self.realised = folder, has_begun(folder) if realised is None else realised
        self.as_json, self.as_markdown = (
            (names.REPORT, names.REPORT_TEXT) if self.realised else (names.PLANNED, names.PLANNED_TEXT)
        )
        self.report: dict[str, Any] = {}
        self.wrong: Finding | None = None
        self._content: Any = None
        try:
            self._content = strict_json.loads((folder / self.as_json).read_text(encoding="utf-8"))
        except (OSError, ValueError, RecursionError) as error:
            self.wrong = self._found("report_damaged", why=str(error))
            return
        self.report = self._content if isinstance(self._content, dict) else {}
        version = self.report.get("report")
        if type(version) is int and version != VERSION:
            self.wrong = self._found("report_version", version=version, checked=VERSION)

    @property
    def exists(self) -> bool:
        """Whether there is one, damaged or not."""
        return os.path.lexists(self._folder / self.as_json)

    def page(self) -> str:
        """Returns its page; raises `OSError` or `ValueError` if that cannot be read."""
        return (self._folder / self.as_markdown).read_bytes().decode()

    def is_written(self, report: Mapping[str, Any]) -> bool:
        """Returns whether its file has the bytes of a report."""
        return (self._folder / self.as_json).read_bytes() == as_text(report).encode(errors="surrogatepass")

    def inconsistent(self, *, is_held: bool) -> list[Finding]:
        """Returns findings on the report and its page, without the other files.

        The page has the hash that the report has of it, and states no ε that the report does not state. A page in other
        words than this release's is a warning if no digest was kept: whoever rewrites both is not found otherwise.
        """
        wrong = problem(self._content)
        findings = [self._found("report_schema", why=wrong)] if wrong else []
        if not isinstance(self._content, dict):
            return findings
        if self.report.get("digest") != digest(self.report):
            findings.append(self._found("report_digest"))
        if self.report.get("kind") != ("realised" if self.realised else "planned"):
            findings.append(self._found("report_kind", kind=self.report.get("kind")))
        if not self.is_written(self.report):
            findings.append(self._found("report_bytes"))
        try:
            page = self.page()
        except FileNotFoundError:
            return [*findings, found(WARNING, "report", "page_missing", file=self.as_markdown)]
        except (OSError, ValueError) as error:
            return [*findings, found(CRITICAL, "report", "page_damaged", file=self.as_markdown, why=str(error))]
        if wrong or not self._has(page):
            findings.append(found(CRITICAL, "report", "page_edited", file=self.as_markdown, report=self.as_json))
        elif not is_held and page != markdown(self.report):
            findings.append(found(WARNING, "report", "page_in_other_words", file=self.as_markdown))
        return findings

    def _has(self, page: str) -> bool:
        """Returns whether a page is the one that the report has the hash of, and bounds no ε otherwise than it does.

        Its words are not compared: another release has others. But each number after a sign of comparison is a bound of
        the report, and each other number that comes next after an ε is on the page of this release.
        """
        figures = [self.report["claim"][name] for name in ("epsilon", "epsilon_of_a_person", "epsilon_as_run")]
        # What people wrote may look like a bound.
        written = _plain(json.dumps(self.report, ensure_ascii=False))
        bounds = {*_numbers(_BOUND, written), *(float(up(each)) for each in figures if each is not None)}
        known = bounds | _numbers(_ANY, written) | _numbers(_ANY, _plain(markdown(self.report)))
        tiers = set(map(float, statements.TIER_BOUNDS))
        return self.report["page"] == page_hash(page) and all(
            _numbers(_BOUND, line) <= (bounds | tiers if "tier" in line else bounds) and _numbers(_NEXT, line) <= known
            for line in _plain(page).splitlines()
        )

    def other_than_held(self, recomputed: Mapping[str, Any], held: str) -> list[Finding]:
        """Returns a finding if it, or the report that follows from the files, lacks the digest that was kept."""
        if _is_held(self.report.get("digest"), held) and _is_held(
            digest(_in_figures_of(self.report, recomputed)), held
        ):
            return []
        if recomputed["audit"] is not None:
            built = build(self._folder, realised=self.realised, audited=False)
            before = _without_later(built, audited=False)
            before["files"] = {name: each for name, each in recomputed["files"].items() if name != names.AUDIT}
            # Its page followed from these facts, in the words of this release.
            if _is_held(sealed(_in_figures_of(self.report, before))["digest"], held):
                return [found(CRITICAL, "digest", "digest_before_audit", file=names.AUDIT)]
        return [found(CRITICAL, "digest", "digest_other")]

    def of_its_time(self) -> list[Finding]:
        """Returns findings where it does not follow from the current files, with the answers and the audit it has.

        A report without an audit was written before there was one. Of the answers at its time, only those that it
        repeats are known.

        Formal guarantee: no finding is critical only if the report follows from all files but `answers.json` and
        `audit.json`, each of its answers is missing or the current one, and it has no audit or the current one: then it
        states no figure that the current report does not state.
        """
        stored, folder = self.report, self._folder
        try:
            answers, now = checked(stored["answers"], "report"), read_answers(folder)
            audited = stored["audit"] is not None
            recomputed = build(folder, realised=self.realised, answers=answers, audited=audited)
            # A report from before the audit does not have its hash.
            differing = differences(_without_later(stored, audited=True), _without_later(recomputed, audited=audited))
        except (InputError, KeyError, TypeError, AttributeError):
            return [self._found("report_foreign")]
        files, others = recomputed["files"], [self._found("report_differs", name=each) for each in differing]
        if "files" in differing:
            # First, which files they are.
            named = [each for each in {**files, **stored["files"]} if stored["files"].get(each) != files.get(each)]
            others = [each for each in others if each.values["name"] != "files"]
            others.insert(0, self._found("report_other_files", names=named))
        if others:
            return others
        if other := [name for name, answer in now.items() if answers[name] not in (None, answer)]:
            return [self._found("report_answers", answers=names.ANSWERS, names=other)]
        # A planned report may be older than the answers and the audit of its run.
        if not self.realised and has_begun(folder):
            return []
        later = [names.AUDIT] if not audited and (folder / names.AUDIT).exists() else []
        if answers != now or stored["files"].get(names.ANSWERS) != files.get(names.ANSWERS):
            later.insert(0, names.ANSWERS)
        return [found(WARNING, "report", "report_older", file=self.as_json, names=later)]

    def _found(self, code: str, **values: Any) -> Finding:
        return found(CRITICAL, "report", code, file=self.as_json, **values)


def write(folder: pathlib.Path, *, realised: bool) -> dict[str, Any]:
    """Builds a run's report, writes it as JSON and as Markdown, and returns it.

    A report that is there and agrees with the files stays as it is: on another machine its figures have other last
    bits, and its digest, which was kept elsewhere, would be another one. The same holds for its page, whose words
    another release chose.

    Args:
        folder: The run's folder, with `run.json` and, for the final report, its logs.
        realised: Whether to write the final report; else the planned report.
    """
    report, stored = build(folder, realised=realised), Stored(folder, realised=realised)
    if stored.report and not differences(stored.report, report):
        report = {**stored.report, "digest": digest(stored.report)}
        with contextlib.suppress(OSError, ValueError):
            if page_hash(stored.page()) == report["page"]:
                if not stored.is_written(report):
                    write_atomically(folder / stored.as_json, as_text(report))
                return report
        report = sealed(report)
    write_atomically(folder / stored.as_json, as_text(report))
    write_atomically(folder / stored.as_markdown, markdown(report))
    return report


def has_begun(folder: pathlib.Path) -> bool:
    """Returns whether a folder has a file that a run writes once it begins."""
    return any(os.path.lexists(folder / name) for name in _OF_A_RUN)


def has_report(folder: pathlib.Path) -> bool:
    """Returns whether a folder has the final report or, if no run began there, the planned report."""
    return Stored(folder).exists


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
    stored = Stored(folder)
    recomputed = build(folder, realised=stored.realised)
    findings = [*on_folder(folder), *typed.convert(recomputed["findings"], list[Finding])]
    if not stored.realised:
        findings.insert(0, found(WARNING, "rounds", "nothing_ran"))
        if not stored.exists:
            return [found(WARNING if held is None else CRITICAL, "report", "report_missing"), *findings]
    if stored.wrong is not None:
        return [stored.wrong, *findings]
    findings += stored.inconsistent(is_held=held is not None)
    if held is not None:
        findings += stored.other_than_held(recomputed, held)
    if not stored.report:
        return findings
    findings += stored.of_its_time() if differences(stored.report, recomputed) else []
    return findings + (inconsistent_plan(folder) if stored.realised else [])


def inconsistent_plan(folder: pathlib.Path) -> list[Finding]:
    """Returns findings on the planned report of a run that began: it states an ε too.

    It may be older than the current answers and audit, and is recomputed with the answers that it has.
    """
    if not (folder / names.PLANNED).exists() and not (folder / names.PLANNED_TEXT).exists():
        return []
    stored = Stored(folder, realised=False)
    if stored.wrong is not None:
        return [stored.wrong]
    findings = stored.inconsistent(is_held=False)
    if any(each.severity == CRITICAL for each in findings):
        return findings
    return findings + stored.of_its_time()


def _plain(text: str) -> str:
    """Returns a text with one form of each sign, and without what cannot be seen."""
    folded = unicodedata.normalize("NFKC", text)
    return "".join(each for each in folded if unicodedata.category(each) != "Cf")


def _numbers(pattern: re.Pattern[str], text: str) -> set[float]:
    return set(map(float, pattern.findall(text)))
