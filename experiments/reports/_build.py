"""Builds the report of a run, as one JSON object, and says why it states no ε."""

import hashlib
import json
import pathlib
from collections.abc import Mapping
from typing import Any

from ..output.files import file_hash
from ..privacy import statements
from ..run_folder.names import (
    ANSWERS,
    AUDIT,
    LEDGER,
    MECHANISM,
    METRICS,
    MODEL,
    PARTICIPATION,
    RUN_JSON,
    SETTINGS_TOML,
    SUMMARY,
    VOCABULARY,
)
from ..run_folder.run_record import read_record
from . import _arithmetic, _sections
from ._device_reports import DEVICE_REPORTS, device_reports, published
from ._evidence import Case, gather
from ._judgement import judge, recomputed_words
from ._layout import CAVEATS
from .questions import QUESTIONS, read_answers

VERSION = 2

_PLANNED_FILES = (RUN_JSON, MECHANISM, ANSWERS)
_FINAL_FILES = (*_PLANNED_FILES, LEDGER, PARTICIPATION, METRICS, SUMMARY, MODEL, AUDIT, SETTINGS_TOML, VOCABULARY)


def build(
    folder: pathlib.Path, *, realised: bool, answers: Mapping[str, Any] | None = None, audited: bool = True
) -> dict[str, Any]:
    """Returns the report of a run, computed from the files in its folder alone: its facts, and the words for them.

    Formal guarantee: the report contains a finite ε only if each assumption of the report holds or cannot be checked,
    and no finding is critical; the ε is rounded up in texts. Unless each question is answered, the headline says that
    it is provisional.

    Args:
        folder: The run's folder.
        realised: Whether to build the final report, from the logs of the run; else the planned report.
        answers: Answers to use instead of those in the folder, to rebuild a report that is older than they are.
        audited: Whether to read the audit.

    Raises:
        InputValueError: If `run.json` is missing or damaged, or `answers.json` is damaged.
    """
    record = read_record(folder)
    evidence = gather(folder, realised=realised)
    answers = read_answers(folder) if answers is None else answers
    case = Case(record=record, evidence=evidence, answers=answers, realised=realised)
    found = judge(folder, case, audited=audited, summarised=True)
    claim = statements.facts(found.claim)
    report = {
        "report": VERSION,
        "kind": "realised" if realised else "planned",
        "headline": "",
        "claim": claim,
        "about": _sections.about(folder, case),
        "statement": "",
        "tier": None,
        "tier_source": statements.TIERS_SOURCE,
        "setting": _sections.setting(case),
        "covered": _sections.covered(case),
        "unit": {"client": answers["unit"], "clients_of_one_person": answers["clients_of_one_person"]},
        "adjacency": record.adjacency,
        "participation": _sections.participation(case),
        "mechanism": _sections.mechanism(case),
        "clipping": _sections.clipping(record),
        "noise": _sections.noise(record, found.figures),
        "accountant": _sections.accountant(case, found),
        "assumptions": [vars(each) for each in found.assumptions],
        "questions": [{"name": each.name, "text": each.text, "answer": answers[each.name]} for each in QUESTIONS],
        "findings": [vars(each) for each in found.findings],
        "randomness": _arithmetic.randomness_section(record),
        "arithmetic": _arithmetic.arithmetic(record),
        "rounds": _sections.rounds(case),
        "utility": _sections.utility(folder) if realised else None,
        "audit": _sections.audit(found.audit, refused=claim["state"] == statements.REFUSED),
        "caveats": CAVEATS,
        "settings": record.settings,
        "versions": record.versions,
        "command": list(record.command),
        "files": _hashes(folder, _FINAL_FILES if realised else _PLANNED_FILES),
        "ledger_head": evidence.ledger.head if evidence.ledger else None,
    }
    counts = device_reports(evidence)
    report |= {} if counts is None else {DEVICE_REPORTS: counts}
    on_grid = _arithmetic.arithmetic_section(record, found.figures)
    report |= {} if on_grid is None else {_arithmetic.GRID: on_grid}
    report |= recomputed_words(report)
    report["digest"] = digest(report)
    return report


def digest(report: Mapping[str, Any]) -> str:
    """Returns the hash of the part of a report that may be published, without the hash itself.

    Counts of device reports are left out, so that a report has the same digest with and without them. They follow from
    the ledger, whose last hash is in the report.
    """
    rest = {name: value for name, value in published(report).items() if name != "digest"}
    return hashlib.sha256(json.dumps(rest, sort_keys=True).encode()).hexdigest()


def _hashes(folder: pathlib.Path, names: tuple[str, ...]) -> dict[str, str]:
    return {name: file_hash(folder / name) for name in names if (folder / name).is_file()}


def violations(folder: pathlib.Path) -> list[str]:
    """Returns why the final report of a run will state no ε, each reason with its field; nothing is written.

    Findings on the summary are left out, since the summary is written from the result.
    """
    findings = build(folder, realised=True)["findings"]
    of_run = [each for each in findings if each["field"] not in ("summary", "model")]
    return [f"{each['field']}: {each['text']}" for each in of_run if each["severity"] == "critical"]


def open_questions(folder: pathlib.Path) -> list[str]:
    """Returns the questions to the operator of a run that are not answered.

    Raises:
        InputValueError: If `answers.json` is damaged.
    """
    answers = read_answers(folder)
    return [question.name for question in QUESTIONS if answers[question.name] is None]
