"""The record that a report conforms to, and its JSON Schema."""

from typing import Any, Literal

import msgspec
from msgspec import UnsetType

from ..output import typed
from ..output.typed import CountOrZero, Number, OpenUnit, one_of, record
from ..privacy.statements import STATES
from ..run_folder.report_counts import REASONS
from ._build import VERSION

_Number, _Whole, _Text = Number | None, int | None, str | None
_Adjacency = Literal["zero-out", "replace-one"]
_EpsilonAt = record("EpsilonAt", delta=OpenUnit, epsilon=_Number)
_Measures = record(
    "Measures",
    mu=_Number,
    zcdp_rho=_Number,
    epsilon=_Number,
    epsilon_by_pld=_Number,
    epsilon_from_zcdp=_Number,
    delta=OpenUnit,
    epsilon_at=list[_EpsilonAt],
)
_Claim = record(
    "Claim",
    state=one_of(*STATES),
    reason=_Text,
    open_questions=list[str],
    delta=OpenUnit,
    participation=str,
    simulation=bool,
    adjacency=_Adjacency,
    **dict.fromkeys(("rounds", "cohort", "clients_per_round"), int),
    **dict.fromkeys(("population", "clients_of_one_person"), _Whole),
    **dict.fromkeys(("epsilon", "epsilon_of_a_person", "epsilon_as_run", "zcdp_rho", "mu", "tail"), _Number),
)
_About = record(
    "About",
    data_set=record("DataSet", name=_Text, sha256=_Text, clients=_Whole, examples=_Whole),
    started=_Text,
    ended=_Text,
    seconds=_Whole,
    answered_by=_Text,
)
_Setting = record(
    "Setting",
    model=Literal["central"],
    trusted=_Text,
    simulation=bool,
    cohort=int,
    clients_per_round=int,
    population=_Whole,
)
_Covered = record(
    "Covered",
    covered=list[str],
    not_covered=list[str],
    pretraining=_Text,
    released_without_noise=list[dict[str, Any]],
    other_releases=_Text,
)
_Participation = record(
    "Participation",
    schema=Literal["MinSep", "FixedEpoch", "SingleParticipation"],
    sampler=str,
    enforcement=_Text,
    **dict.fromkeys(("rounds", "min_sep", "max_participations"), int),
    **dict.fromkeys(("observed_rounds", "observed_min_sep", "observed_max_participations"), _Whole),
)
_Noise = record(
    "Noise",
    noise_multiplier=Number,
    sensitivity=_Number,
    sensitivity_exact=bool | None,
    sensitivity_rule=_Text,
    noise_multiplier_as_run=Number,
    stddev_of_z_in_the_sum=Number,
    stddev_of_z_in_the_mean=_Number,
)
_Severity = record("Severity", severity=str, what=str)
_Randomness = record(
    "Randomness",
    algorithm=str,
    entropy=str,
    secure_mode=bool,
    insecure_seed=_Whole,
    severities=list[_Severity],
)
_Rounds = record(
    "Rounds",
    planned=int,
    divisor=_Number,
    ended=bool | None,
    not_finite=_Text,
    **dict.fromkeys(("released", "computed_again", "released_again", "smallest_cohort", "largest_cohort"), _Whole),
)
_Reason = one_of(*REASONS)
_DeviceReports = record(
    "DeviceReports",
    refused=dict[_Reason, CountOrZero],
    note=str,
    **dict.fromkeys(("rounds", "rounds_without_updates", "came", "counted", "clipped", "zeroed"), int),
)
_Grid = record(
    "Grid",
    integers=Literal["int32", "int64"],
    sampler=str,
    **dict.fromkeys(("bits", "max_clients", "bits_per_coordinate", "dimension"), int),
    **dict.fromkeys(("limit", "error", "log_ratio", "mu", "added_sensitivity", "tail"), _Number),
)
_Assumption = record("Assumption", name=str, state=Literal["holds", "assumed", "violated"], text=str)
_Question = record("Question", name=str, text=str, answer=Any)
_Finding = record("Finding", severity=Literal["critical", "warning", "note"], field=str, text=str)
_Report = record(
    "Report",
    report=one_of(VERSION),
    kind=Literal["planned", "realised"],
    headline=str,
    claim=_Claim,
    about=_About,
    statement=str,
    tier=_Text,
    tier_source=str,
    setting=_Setting,
    covered=_Covered,
    unit=record("Unit", client=_Text, clients_of_one_person=_Whole),
    adjacency=_Adjacency,
    participation=_Participation,
    mechanism=record("Mechanism", kind=_Text, sha256=str, made_for=_Text, rounds_at_most=_Whole),
    clipping=record("Clipping", clip_norm=Number, adaptive_count_stddev=_Number, restart_every=_Whole),
    noise=_Noise,
    accountant=record(
        "Accountant",
        name=str,
        version=str,
        conditional=str,
        planned=_Measures | None,
        realised=_Measures | None,
    ),
    assumptions=list[_Assumption],
    questions=list[_Question],
    findings=list[_Finding],
    randomness=_Randomness,
    arithmetic=record("Arithmetic", noise=str, accounting=str, severity=str),
    rounds=_Rounds,
    utility=dict[str, Any] | None,
    audit=Any,
    caveats=str,
    settings=dict[str, Any],
    versions=dict[str, Any],
    command=list[str],
    files=dict[str, Any],
    ledger_head=_Text,
    digest=str,
    device_reports=_DeviceReports | UnsetType,
    grid=_Grid | UnsetType,
)
SCHEMA: dict[str, Any] = {
    "title": f"tff-mf privacy report, version {VERSION}",
    "$comment": "JSON Schema, draft 2020-12",
    **msgspec.json.schema(_Report),
}


def problem(report: Any) -> str:
    """Returns where a report does not conform to the schema; an empty text if it does."""
    return typed.problem(report, _Report)
