"""The facts of a report, each with its type and where it comes from: their JSON, and the JSON Schema.

A fact that is added to `SECTIONS` is in the JSON object, in its schema, and in the report on every medium.
"""

import hashlib
import json
from collections.abc import Callable, Mapping
from typing import Any, Literal

import msgspec
from msgspec import UnsetType

import tff_mf

from ..output import typed
from ..output.files import file_hash
from ..output.typed import CountOrZero, Number, OpenUnit, one_of, record
from ..runs import names, statements
from ..runs.ledger import LedgerRecord
from ..runs.metrics import ALSO_TRAINING
from ..runs.report_counts import REASONS
from . import _judgement
from ._device_reports import DEVICE_REPORTS, device_reports, published
from ._evidence import Assumption, Finding
from ._figures import Figures, measures
from ._source import (
    UTILITY,
    Source,
    data_set,
    generator,
    grid_of,
    made_for,
    repeated,
    sampling_in_secret,
    seconds,
    settings,
    training_clients,
    utility,
)
from .questions import ASKED

VERSION = 3
_Number, _Whole, _Text = Number | None, int | None, str | None
_Schema = Literal["MinSep", "FixedEpoch", "SingleParticipation"]
_PLANNED_FILES = (names.RUN_JSON, names.MECHANISM, names.ANSWERS)
_FINAL_FILES = (
    *(*_PLANNED_FILES, names.LEDGER, names.PARTICIPATION, names.METRICS, names.SUMMARY, names.MODEL),
    *(names.AUDIT, names.SETTINGS_TOML, names.VOCABULARY, names.PLANNED),
)


Fact = tuple[Any, Callable[[Source], Any]]


def _of_record(kind: Any, name: str) -> Fact:
    return kind, lambda source: getattr(source.record, name)


def _of_ledger(kind: Any, value: Callable[[LedgerRecord], Any]) -> Fact:
    return kind, lambda source: None if source.ledger is None else value(source.ledger)


def _if_realised(kind: Any, value: Callable[[Source], Any]) -> Fact:
    return kind, lambda source: value(source) if source.case.realised and not source.record.is_secret else None


def _measures(name: str) -> Callable[[Source], Any]:
    def of(source: Source) -> dict[str, Any] | None:
        figures: Figures | None = None if source.refused else getattr(source.found, name)
        return None if figures is None else measures(figures.guarantee, source.record.delta)

    return of


def _sensitivity(name: str) -> Callable[[Source], Any]:
    return lambda source: None if source.found.figures is None else getattr(source.found.figures.sensitivity, name)


def _mechanism(name: str) -> Callable[[Source], Any]:
    return lambda source: None if source.evidence.mechanism is None else getattr(source.evidence.mechanism, name)


_EpsilonAt: Any = record("EpsilonAt", delta=OpenUnit, epsilon=_Number)
_Measures = record(
    "Measures",
    **dict.fromkeys(("mu", "zcdp_rho", "epsilon", "epsilon_by_pld", "epsilon_from_zcdp"), _Number),
    delta=OpenUnit,
    epsilon_at=list[_EpsilonAt],
)
_DataSet = record("DataSet", name=_Text, sha256=_Text, clients=_Whole, examples=_Whole)
_MadeFor = record("MadeFor", rounds=int, participation=_Schema, min_sep=int, max_participations=int)

# Every section, with its facts.
SECTIONS: Mapping[str, Mapping[str, Fact]] = {
    "about": {
        "data_set": (
            _DataSet,
            lambda source: {
                "name": data_set(source),
                "sha256": source.about(str, "dataset_sha256"),
                "clients": training_clients(source),
                "examples": source.about(int, "training_examples"),
            },
        ),
        "started": _of_ledger(_Text, lambda ledger: ledger.started),
        "ended": _of_ledger(_Text, lambda ledger: ledger.finished),
        # It depends on how many took part.
        "seconds": (_Whole, lambda source: None if source.record.is_secret else seconds(source.ledger)),
    },
    "setting": {
        "simulation": _of_record(bool, "simulation"),
        "cohort": _of_record(int, "cohort"),
        "clients_per_round": _of_record(int, "clients_per_round"),
        "population": (_Whole, lambda source: _judgement.population(source.case)),
    },
    "participation": {
        "schema": _of_record(_Schema, "participation"),
        "rounds": _of_record(int, "rounds"),
        "min_sep": _of_record(int, "min_sep"),
        "max_participations": _of_record(int, "max_participations"),
        "observed_rounds": _if_realised(_Whole, lambda source: source.evidence.rounds),
        "observed_min_sep": _if_realised(_Whole, lambda source: source.evidence.min_sep),
        "observed_max_participations": _if_realised(_Whole, lambda source: source.evidence.max_participations),
        "sampler": _of_record(str, "sampler"),
    },
    "rounds": {
        "released": _of_ledger(_Whole, lambda ledger: len(ledger.released)),
        "computed_again": _of_ledger(_Whole, lambda ledger: repeated(ledger.attempts)),
        "released_again": _of_ledger(_Whole, lambda ledger: repeated(ledger.released)),
        "smallest_cohort": (_Whole, lambda source: min(source.sizes, default=None)),
        "largest_cohort": (_Whole, lambda source: max(source.sizes, default=None)),
        "divisor": _of_record(_Number, "divisor"),
        "ended": _of_ledger(bool | None, lambda ledger: ledger.ended),
    },
    "mechanism": {
        "kind": (_Text, _mechanism("kind")),
        "sha256": _of_record(str, "mechanism_sha256"),
        "made_for": (_MadeFor | None, made_for),
        "rounds_at_most": (_Whole, _mechanism("max_rounds")),
    },
    "clipping": {
        "clip_norm": _of_record(Number, "clip_norm"),
        "adaptive_count_stddev": _of_record(_Number, "adaptive_count_stddev"),
        "restart_every": _of_record(_Whole, "restart_every"),
    },
    "noise": {
        "noise_multiplier": _of_record(Number, "noise_multiplier"),
        "sensitivity": (_Number, _sensitivity("value")),
        "sensitivity_exact": (bool | None, _sensitivity("exact")),
        "noise_multiplier_as_run": (Number, lambda source: source.noise_multiplier_as_run),
        "stddev_of_z_in_the_sum": (Number, lambda source: source.stddev),
        "stddev_of_z_in_the_mean": (
            _Number,
            lambda source: source.stddev / source.record.divisor if source.record.divisor else None,
        ),
    },
    "accountant": {
        "name": (Literal["gaussian"], lambda source: "gaussian"),
        "version": (str, lambda source: f"tff-mf {tff_mf.__version__}"),
        "planned": (_Measures | None, _measures("planned")),
        "realised": (_Measures | None, _measures("seen")),
    },
    "randomness": {
        "generator": (str, generator),
        "secure_mode": (
            bool,
            lambda source: generator(source) == "aes" and source.record.insecure_seed is None,
        ),
        "insecure_seed": _of_record(_Whole, "insecure_seed"),
    },
    "covered": {
        "released_without_noise": (
            list[dict[str, Any]],
            lambda source: list(source.record.released_without_noise),
        ),
        "evaluated_on_training": (
            bool,
            lambda source: any(each.get("of") == ALSO_TRAINING for each in source.record.released_without_noise),
        ),
        "sampling_in_secret": (_Text, sampling_in_secret),
    },
}
_TYPES = {
    section: record(section.title(), **{name: kind for name, (kind, _) in facts.items()})
    for section, facts in SECTIONS.items()
}
_Grid = record(
    "Grid",
    integers=Literal["int32", "int64"],
    sampler=str,
    **dict.fromkeys(("bits", "max_clients", "bits_per_coordinate", "dimension"), int),
    **dict.fromkeys(("limit", "error", "log_ratio", "mu", "added_sensitivity", "tail"), _Number),
)
_Reason: Any = one_of(*REASONS)
_Counts = dict.fromkeys(("rounds", "rounds_without_updates", "came", "counted", "clipped", "zeroed"), int)
_DeviceReports = record("DeviceReports", refused=dict[_Reason, CountOrZero], **_Counts)
_AuditTest: Any = record("AuditTest", name=str, passed=bool)
_Audit = record(
    "Audit",
    state=Literal["passed", "failed", "damaged", "of another run"],
    tests=list[_AuditTest],
    rounds=_Whole,
    coordinates=_Whole,
    claimed_epsilon=_Number,
    shown_epsilon=_Number,
)
_Report = record(
    "Report",
    report=one_of(VERSION),
    kind=Literal["planned", "realised"],
    claim=statements.Facts,
    **_TYPES,
    assumptions=list[Assumption],
    answers=record("Answers", **{each.name: Any for each in ASKED}),
    findings=list[Finding],
    grid=_Grid | None,
    utility=UTILITY | None,
    audit=_Audit | None,
    settings=dict[str, Any],
    versions=dict[str, Any],
    command=list[str],
    files=dict[str, Any],
    ledger_head=_Text,
    page=str,
    digest=str,
    device_reports=_DeviceReports | UnsetType,
)
SCHEMA: dict[str, Any] = {
    "title": f"tff-mf privacy report, version {VERSION}",
    "$comment": "JSON Schema, draft 2020-12",
    **msgspec.json.schema(_Report),
}


def problem(report: Any) -> str:
    """Returns where a report does not conform to the schema; an empty text if it does."""
    return typed.problem(report, _Report)


def facts(source: Source) -> dict[str, Any]:
    """Returns all facts of a report, as JSON, without the hash of its page and its digest."""
    case, found = source.case, source.found
    files = _FINAL_FILES if case.realised else _PLANNED_FILES
    counts = device_reports(source.evidence)
    return {
        "report": VERSION,
        "kind": "realised" if case.realised else "planned",
        "claim": statements.facts(found.claim),
        **{section: {name: of(source) for name, (_, of) in rows.items()} for section, rows in SECTIONS.items()},
        "assumptions": msgspec.to_builtins(found.assumptions),
        "answers": {each.name: case.answers.get(each.name) for each in ASKED},
        "findings": msgspec.to_builtins(found.findings),
        "grid": grid_of(case.record, found.figures),
        "utility": utility(source.folder) if case.realised else None,
        "audit": _audit(found.audit, refused=source.refused),
        "settings": settings(case.record),
        "versions": case.record.versions,
        "command": list(case.record.command),
        "files": {name: file_hash(source.folder / name) for name in files if (source.folder / name).is_file()},
        "ledger_head": source.ledger.head if source.ledger else None,
        **({} if counts is None else {DEVICE_REPORTS: counts}),
    }


def digest(report: Mapping[str, Any]) -> str:
    """Returns the hash of the part of a report that may be published, without the hash itself.

    Counts of device reports are left out, so that a report has the same digest with and without them. They follow from
    the ledger, whose last hash is in the report.
    """
    rest = {name: value for name, value in published(report).items() if name != "digest"}
    return hashlib.sha256(json.dumps(rest, sort_keys=True).encode()).hexdigest()


def _audit(found: dict[str, Any] | None, *, refused: bool) -> dict[str, Any] | None:
    """Returns what a report says about the audit, without any ε if the claim is refused."""
    hidden = dict.fromkeys(("claimed_epsilon", "shown_epsilon"))
    return {**found, **hidden} if refused and found is not None else found
