"""Builds the report of a run: its facts, as one JSON object, and the hash of its page."""

import hashlib
import json
import pathlib
import re
from collections.abc import Mapping
from typing import Any

from ..output.present import markdown as rendered
from ..output.text import up
from ..runs import statements
from ..runs.folders import readable_folder
from ..runs.run_record import read_record
from ._device_reports import published
from ._document import document
from ._evidence import Case, gather
from ._facts import digest, facts
from ._judgement import judge
from ._source import Source
from .questions import read_answers

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
    answers = read_answers(folder) if answers is None else answers
    evidence = gather(folder, realised=realised)
    case = Case(record=read_record(folder), evidence=evidence, answers=answers, realised=realised)
    found = judge(folder, case, audited=audited, summarised=True)
    return sealed(facts(Source(folder=folder, case=case, found=found)))


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
