"""The files of a run support a claim: assumptions, figures and findings, and the headline that follows from them."""

import dataclasses
import math
import pathlib
from collections.abc import Mapping
from typing import Any

import tff_mf
from tff_mf.base.errors import InputError
from tff_mf.planning import deployed_population

from ..runs import amplification, statements
from ..runs.ledger import LedgerRecord
from ..runs.names import RUN_JSON
from ..runs.run_record import RunRecord
from ..runs.words import Reason
from . import _figures
from ._assumptions import assess
from ._evidence import CRITICAL, NOTE, VIOLATED, WARNING, Assumption, Evidence, Finding, found, gather
from ._figures import Figures
from ._other_files import device_findings, summary_findings
from .questions import QUESTIONS

# Largest difference of the two accountants, relative where ε is above 1.
_TOLERANCE = 1e-6
UNANSWERED, TUNED, STOPPED_EARLY = "unanswered", "tuned", "stopped_early"


def findings_of(
    evidence: Evidence, assumptions: list[Assumption], figures: Figures | None, *, contradiction: bool
) -> list[Finding]:
    """Returns everything to know about a run: violated assumptions, open questions, and figures that are wrong."""
    epsilon = 0.0 if figures is None else figures.guarantee.epsilon(evidence.record.delta)
    violated = [each for each in assumptions if each.state == VIOLATED]
    return [
        *(Finding(severity=CRITICAL, field=each.name, code=each.code, values=each.values) for each in violated),
        *_of_accountant(evidence.record, figures, contradiction=contradiction),
        *_of_secrecy(evidence),
        *_of_delta(evidence.record, epsilon, population(evidence), None if figures is None else figures.guarantee),
        *_of_questions(evidence.answers),
        *_of_rounds(evidence),
    ]


def _of_accountant(record: RunRecord, figures: Figures | None, *, contradiction: bool) -> list[Finding]:
    if figures is None:
        return [found(CRITICAL, "accountant", "no_figures")]
    if contradiction:
        return [found(CRITICAL, "accountant", "sensitivity_refuted")]
    epsilon, by_pld = figures.guarantee.epsilon(record.delta), figures.guarantee.epsilon_by_pld(record.delta)
    if math.isinf(epsilon) or abs(epsilon - by_pld) <= _TOLERANCE * max(1.0, epsilon):
        return []
    return [found(CRITICAL, "accountant", "accountants_differ", tolerance=_TOLERANCE)]


def _of_delta(record: RunRecord, epsilon: float, size: int | None, guarantee: tff_mf.Guarantee | None) -> list[Finding]:
    wrong = statements.violations(epsilon, record.delta, size, guarantee)
    said = [found(CRITICAL, each.field, each.code, **each.values) for each in wrong]
    if statements.customary_delta(record.delta, size) and "delta" not in {each.field for each in wrong}:
        said.append(found(WARNING, "delta", "delta_not_customary", delta=record.delta, population=size))
    return said


def _of_questions(answers: Mapping[str, Any]) -> list[Finding]:
    several, runs = answers["clients_of_one_person"] or 1, answers["tuning_runs"] or 0
    return [
        *(found(WARNING, each.name, UNANSWERED) for each in QUESTIONS if answers[each.name] is None),
        *([found(WARNING, "unit", "several_clients", clients=several)] if several > 1 else []),
        *([found(WARNING, "tuning_runs", TUNED, runs=runs)] if runs else []),
    ]


def _of_rounds(evidence: Evidence) -> list[Finding]:
    record, said, last = evidence.record, [], _figures.last_round(evidence)
    if evidence.ledger is not None and last < record.rounds:
        said.append(found(WARNING, "rounds", STOPPED_EARLY, rounds=last, planned=record.rounds))
    clients = record.clients_per_round
    other = [number for number, size in evidence.sizes.items() if size != clients]
    if other and not record.is_secret:
        said.append(found(NOTE, "rounds", "other_sizes", rounds=len(other), clients=clients, first=other[0]))
    return said


def claim(evidence: Evidence, figures: Figures | None, findings: list[Finding]) -> statements.Claim:
    """Returns what the headline states, with everything that may forbid it."""
    record, several = evidence.record, evidence.answers["clients_of_one_person"]
    seen = statements.seen(evidence.observed.min_sep, evidence.observed.max_participations)
    facts: dict[str, Any] = {
        "guarantee": None if figures is None else figures.guarantee,
        "delta": record.delta,
        "rounds": evidence.rounds if evidence.realised else record.rounds,
        "participation": seen if evidence.realised else statements.bound_to(record.schema),
        "population": population(evidence),
        "cohort": record.cohort,
        "clients_per_round": record.clients_per_round,
        "simulation": record.simulation,
        "test_only": record.insecure_seed is not None,
        "reasons": [
            Reason(field=each.field, code=each.code, values=each.values)
            for each in findings
            if each.severity == CRITICAL
        ],
        "open_questions": [question.name for question in QUESTIONS if evidence.answers[question.name] is None],
        "clients_of_one_person": several,
        "tuning_runs": evidence.answers["tuning_runs"],
    }
    if record.amplified_epsilon is not None and record.drawn is not None and figures is not None:
        facts |= amplification.of_own_cohorts(
            record.amplified_epsilon, record.drawn, rounds=facts["rounds"], clients_of_one_person=several
        )
    return statements.claim(**facts)


def _of_secrecy(evidence: Evidence) -> list[Finding]:
    """Returns that the ε of a run with secret cohorts is smaller than the one that follows from its settings."""
    record = evidence.record
    if record.amplified_epsilon is None or evidence.mechanism is None:
        return []
    try:
        plan = record.plan(evidence.mechanism)
        level = amplification.own(plan, record.drawn, record.population)
    except InputError as error:
        return [found(CRITICAL, "secrecy", "secrecy_impossible", file=RUN_JSON, why=str(error))]
    if level.epsilon > record.amplified_epsilon:
        return [found(CRITICAL, "secrecy", "secrecy_larger", file=RUN_JSON)]
    return []


def population(evidence: Evidence) -> int | None:
    """Returns the number of clients: as answered, as in `run.json`, or as observed in the log, whichever is largest.

    δ is compared with 1 / population, so a smaller number than the log shows would let a δ pass that is too large. If
    clients stand for a larger cohort, the number comes from `deployed_population`.
    """
    record = evidence.record
    seen = len(set().union(*evidence.cohorts.values()))
    of_this_run = max(seen, evidence.answers["population"] or 0)
    deployed = deployed_population(
        of_this_run,
        cohort=record.cohort,
        clients_per_round=record.clients_per_round,
        rounds=record.rounds,
        participation=record.schema,
    )
    return max(deployed, record.population or 0) or None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Judgement:
    """The files of a run and everything that is derived from them: a report takes all its facts from here.

    Figures are for the schema of the claim (`planned`), for the observed rounds (`seen`), and as the report states
    them; each is `None` if there are none.
    """

    evidence: Evidence
    assumptions: list[Assumption]
    planned: Figures | None
    seen: Figures | None
    figures: Figures | None
    findings: list[Finding]
    claim: statements.Claim

    @property
    def record(self) -> RunRecord:
        return self.evidence.record

    @property
    def ledger(self) -> LedgerRecord | None:
        return self.evidence.ledger

    @property
    def refused(self) -> bool:
        return self.claim.state == statements.REFUSED


def judge(evidence: Evidence, *, summarised: bool) -> Judgement:
    """Returns what the files of a run support."""
    record, realised = evidence.record, evidence.realised
    assumptions = assess(evidence)
    planned = None if evidence.mechanism is None else _figures.planned(record, evidence.mechanism)
    # A ledger that no run can have written supports no figures.
    seen = _figures.realised(evidence) if realised and not (evidence.ledger and evidence.ledger.impossible) else None
    figures = _figures.stated(evidence, planned, seen)
    findings = [
        *findings_of(evidence, assumptions, figures, contradiction=_figures.contradiction(evidence, planned, seen)),
        *([] if realised else [found(NOTE, "rounds", "a_plan")]),
        *(summary_findings(evidence) if realised and summarised else []),
        *device_findings(evidence),
    ]
    return Judgement(
        evidence=evidence,
        assumptions=assumptions,
        planned=planned,
        seen=seen,
        figures=figures,
        findings=findings,
        claim=claim(evidence, figures, findings),
    )


def claim_so_far(folder: pathlib.Path) -> statements.Claim | None:
    """Returns what the headline of the final report would state if no further round followed; `None` if no ε could be.

    Formal guarantee: the guarantee is the headline's, for the observed rounds of each client, and at least the
    plan's, since the run would stop early: see `_figures.stated`. Open questions are taken to be answered with
    what voids nothing; until they are answered, the claim is provisional.

    Args:
        folder: The run's folder, whose ledger has the last round as released.
    """
    evidence = gather(folder, realised=True)
    if evidence.ledger is not None:
        # As if the run ended here: only then can a report know that no round is missing.
        evidence = dataclasses.replace(evidence, ledger=dataclasses.replace(evidence.ledger, ended=True))
    claim = judge(evidence, summarised=False).claim
    return None if claim.state == statements.REFUSED else claim
