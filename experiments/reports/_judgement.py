"""The files of a run support a claim: assumptions, figures and findings, and the headline that follows from them."""

import dataclasses
import math
import pathlib
from collections.abc import Mapping
from typing import Any

import tff_mf
from tff_mf.base.errors import InputError

from ..output.digits import rounded_up
from ..privacy import amplification, statements
from ..privacy.plan import deployed_population
from ..run_folder.names import RUN_JSON
from ..run_folder.run_record import RunRecord, read_record
from ..sampling import settings as samplings
from . import _figures
from ._assumptions import assess
from ._device_reports import device_findings
from ._evidence import (
    CRITICAL,
    NO_AUDIT,
    NOTE,
    VIOLATED,
    WARNING,
    Assumption,
    Case,
    Evidence,
    Finding,
    gather,
    read_audit,
)
from ._figures import Figures
from ._layout import tiny
from ._run_record import plan_of
from ._summarised import summary_findings
from .questions import QUESTIONS, read_answers

# Largest difference of the two accountants, relative where ε is above 1.
_TOLERANCE = 1e-6


def findings_of(
    case: Case, assumptions: list[Assumption], figures: Figures | None, audit: Any, *, contradiction: str
) -> list[Finding]:
    """Returns everything to know about a run: violated assumptions, open questions, and figures that are wrong."""
    epsilon = 0.0 if figures is None else figures.guarantee.epsilon(case.record.delta)
    return [
        *(_critical(each.name, each.text) for each in assumptions if each.state == VIOLATED),
        *_of_accountant(case.record, figures, contradiction),
        *_of_secrecy(case.record, case.evidence),
        *_of_audit(audit),
        *_of_delta(case.record, epsilon, population(case), None if figures is None else figures.guarantee),
        *_of_questions(case.answers),
        *_of_rounds(case.record, case.evidence),
    ]


def _of_accountant(record: RunRecord, figures: Figures | None, contradiction: str) -> list[Finding]:
    if figures is None:
        return [_critical("accountant", "no sensitivity can be computed from the files; see the other findings")]
    if contradiction:
        return [_critical("accountant", contradiction)]
    if math.isinf(figures.guarantee.epsilon(record.delta)):
        return []
    text = f"the closed form of ε and privacy loss distributions are more than {_TOLERANCE} apart"
    return [_critical("accountant", text)] if abs(_apart(figures, record.delta)) > _TOLERANCE else []


def _of_audit(audit: Any) -> list[Finding]:
    if not isinstance(audit, Mapping) or audit.get("passed"):
        return []
    names = [test.get("name") for test in audit.get("tests", []) if not test.get("passed")]
    return [_critical("audit", f"the audit failed: {', '.join(map(str, names)) or 'it does not say of what'}")]


def _of_delta(record: RunRecord, epsilon: float, size: int | None, guarantee: tff_mf.Guarantee | None) -> list[Finding]:
    wrong = statements.violations(epsilon, record.delta, size, guarantee)
    found = [_critical(field, text) for field, text in wrong]
    customary = statements.customary_delta(record.delta, size)
    if customary and "delta" not in dict(wrong):
        found.append(Finding(severity=WARNING, field="delta", text=customary))
    return found


def _of_questions(answers: Mapping[str, Any]) -> list[Finding]:
    found = [
        Finding(severity=WARNING, field=question.name, text=f"not answered: {question.text}")
        for question in QUESTIONS
        if answers[question.name] is None
    ]
    if (answers["clients_of_one_person"] or 1) > 1:
        text = f"one person can be {answers['clients_of_one_person']} clients: the ε of a person comes first"
        found.append(Finding(severity=WARNING, field="unit", text=text))
    return found


def _of_rounds(record: RunRecord, evidence: Evidence) -> list[Finding]:
    found = []
    ran = _figures.last_round(record, evidence)
    if evidence.ledger is not None and ran < record.rounds:
        text = (
            f"stopped after {ran} of {record.rounds} rounds, the last released round with clients: if "
            "the decision to stop depended on released results, only the planned figures hold; the larger of the "
            "planned and the final figures is stated"
        )
        found.append(Finding(severity=WARNING, field="rounds", text=text))
    other = [number for number, size in sizes(evidence).items() if size != record.clients_per_round]
    if other and not record.is_secret:
        text = f"{len(other)} rounds had other than {record.clients_per_round} clients, round {other[0]} first"
        found.append(Finding(severity=NOTE, field="rounds", text=text))
    return found


def _critical(field: str, text: str) -> Finding:
    return Finding(severity=CRITICAL, field=field, text=text)


def _apart(figures: Figures, delta: float) -> float:
    """Returns the difference of the two accountants, relative where ε is above 1."""
    epsilon = figures.guarantee.epsilon(delta)
    return (epsilon - figures.guarantee.epsilon_by_pld(delta)) / max(1.0, epsilon)


def critical(found: list[Finding]) -> list[str]:
    """Returns the critical findings, each as a field and a text."""
    return [f"{each.field}: {each.text}" for each in found if each.severity == CRITICAL]


def claim(case: Case, figures: Figures | None, found: list[Finding]) -> statements.Claim:
    """Returns what the headline states, with everything that may forbid it."""
    record, evidence = case.record, case.evidence
    seen = statements.seen(evidence.min_sep, evidence.max_participations)
    known = statements.Claim(
        guarantee=None if figures is None else figures.guarantee,
        delta=record.delta,
        rounds=evidence.rounds if case.realised else record.rounds,
        participation=seen if case.realised else statements.bound_to(record.schema),
        population=population(case),
        cohort=record.cohort,
        clients_per_round=record.clients_per_round,
        simulation=record.simulation,
        test_only=record.insecure_seed is not None,
        violations=critical(found),
        unanswered=[question.name for question in QUESTIONS if case.answers[question.name] is None],
        clients_of_one_person=case.answers["clients_of_one_person"],
    )
    drawn = samplings.of_run(record.settings)
    if record.amplified_epsilon is None or drawn is None or known.guarantee is None:
        return known
    return amplification.own_claim(known, record.amplified_epsilon, drawn)


def _of_secrecy(record: RunRecord, evidence: Evidence) -> list[Finding]:
    """Returns that the ε of a run with secret cohorts is smaller than the one that follows from its settings."""
    if record.amplified_epsilon is None or evidence.mechanism is None:
        return []
    try:
        plan, drawn = plan_of(record, evidence.mechanism), samplings.of_run(record.settings)
        level = amplification.own(plan, drawn, record.population).level
    except InputError as error:
        return [_critical("secrecy", f"no amplified ε follows from {RUN_JSON}: {error}")]
    if level.epsilon > record.amplified_epsilon:
        return [_critical("secrecy", f"a larger ε than that of {RUN_JSON} follows from its settings")]
    return []


def statement(claim: Mapping[str, Any], *, realised: bool) -> str:
    """Returns the formal statement of `statements.facts` under all assumptions, or why none can be made."""
    if claim["state"] == statements.REFUSED:
        return f"No formal statement can be made. {claim['reason']}"
    adjacent = (
        "one is the other with all updates of one client set to zero"
        if claim["adjacency"] == "zero-out"
        else "they differ in all updates of one client, which may be any within the clip norm"
    )
    if claim["mu"] is None:
        return (
            f"Two data sets are neighbours if {adjacent}. For each client, if all assumptions below hold, the release "
            f"of all {claim['rounds']} noised sums, also adaptively chosen, and of all that is computed from them is "
            f"(ε, δ)-DP with ε at most {rounded_up(claim['epsilon'])} at δ = {claim['delta']}, by the secrecy of who "
            "took part. To whoever knows the cohorts only the figures of the accountant apply."
        )
    who = "each client in the log" if realised else "each client whose rounds keep the participation schema"
    return (
        f"Two data sets are neighbours if {adjacent}. For {who}, if all assumptions below hold, the release of all "
        f"{claim['rounds']} noised sums, also adaptively chosen, and of all that is computed from them is μ-GDP with μ "
        f"at most {rounded_up(claim['mu'])}: no test can tell neighbours apart better than it can tell N(0, 1) from "
        f"N(μ, 1). ρ-zCDP and (ε, δ)-DP follow.{_with_tail(claim['tail'])}"
    )


def _with_tail(tail: float) -> str:
    """Returns what the tail of integer noise adds to the formal statement."""
    if not tail:
        return ""
    return (
        f" This is of a release that differs from the one computed by at most {tiny(tail)} in total variation, "
        "for every data set; δ includes that."
    )


def population(case: Case) -> int | None:
    """Returns the number of clients: as answered, as in `run.json`, or as observed in the log, whichever is largest.

    δ is compared with 1 / population, so a smaller number than the log shows would let a δ pass that is too large. If
    clients stand for a larger cohort, the number comes from `deployed_population`.
    """
    record = case.record
    seen = len(set().union(*case.evidence.cohorts.values()))
    of_this_run = max(seen, case.answers["population"] or 0)
    deployed = deployed_population(
        of_this_run,
        cohort=record.cohort,
        clients_per_round=record.clients_per_round,
        rounds=record.rounds,
        participation=record.schema,
    )
    return max(deployed, record.population or 0) or None


def sizes(evidence: Evidence) -> dict[int, int]:
    """Returns the number of clients of each round, by the ledger."""
    return evidence.ledger.sizes if evidence.ledger else {}


_A_PLAN = Finding(
    severity=NOTE, field="rounds", text="a planned report: it is about the settings of the run, not about what it did"
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Judgement:
    """The part of a report that does not merely repeat a file.

    Attributes:
        assumptions: Each assumption of the guarantee, with its state.
        planned: Figures for the schema of the claim; `None` if there is no intact mechanism.
        seen: Figures for the observed rounds of the clients; `None` if there are none.
        figures: The figures that the report states.
        audit: What the report says about the audit.
        findings: Everything to know about the run.
        claim: What the headline states, with everything that may forbid it.
    """

    assumptions: list[Assumption]
    planned: Figures | None
    seen: Figures | None
    figures: Figures | None
    audit: Any
    findings: list[Finding]
    claim: statements.Claim


def judge(folder: pathlib.Path, case: Case, *, audited: bool, summarised: bool) -> Judgement:
    """Returns what the files of a run support.

    Args:
        folder: The run's folder.
        case: The content of its files.
        audited: Whether to read the audit.
        summarised: Whether to read the summary of a run that has ended.
    """
    record, evidence, realised = case.record, case.evidence, case.realised
    assumptions = assess(case)
    planned = None if evidence.mechanism is None else _figures.planned(record, evidence.mechanism)
    # A ledger that no run can have written supports no figures.
    seen = _figures.realised(record, evidence) if realised and not evidence.impossible else None
    figures = _figures.stated(record, evidence, planned, seen, realised=realised)
    contradiction = _figures.contradiction(record, evidence, planned, seen)
    audit, audit_findings = read_audit(folder, record, evidence.mechanism) if audited else (NO_AUDIT, [])
    findings = findings_of(case, assumptions, figures, audit, contradiction=contradiction)
    findings += audit_findings + ([] if realised else [_A_PLAN])
    if realised and summarised:
        findings += summary_findings(folder, record, evidence, critical(findings), case.answers)
    findings += device_findings(evidence)
    return Judgement(
        assumptions=assumptions,
        planned=planned,
        seen=seen,
        figures=figures,
        audit=audit,
        findings=findings,
        claim=claim(case, figures, findings),
    )


def recomputed_words(facts: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the headline, the formal statement, and the strength of the protection in words.

    Args:
        facts: A report; only its kind and its claim are read.
    """
    claim, realised = facts["claim"], facts["kind"] == "realised"
    line = statements.line(claim)
    return {
        "headline": line if realised or claim["state"] == statements.REFUSED else f"Planned: {line}",
        "statement": statement(claim, realised=realised),
        "tier": statements.tier(claim),
    }


def claim_so_far(folder: pathlib.Path) -> statements.Claim | None:
    """Returns what the headline of the final report would state if no further round followed.

    Formal guarantee: the guarantee is the headline's, for the observed rounds of each client, and at least the
    plan's, since the run would stop early: see `_figures.stated`. Open questions are taken to be answered with
    what voids nothing; until they are answered, the claim is provisional.

    Args:
        folder: The run's folder, whose ledger has the last round as released.

    Returns:
        The claim; `None` if no ε could be stated.

    Raises:
        InputValueError: If `run.json` or `answers.json` is missing or damaged.
    """
    record = read_record(folder)
    evidence = gather(folder, realised=True)
    if evidence.ledger is not None:
        # As if the run ended here: only then can a report know that no round is missing.
        evidence = dataclasses.replace(evidence, ledger=dataclasses.replace(evidence.ledger, ended=True))
    case = Case(record=record, evidence=evidence, answers=read_answers(folder), realised=True)
    claim = judge(folder, case, audited=False, summarised=False).claim
    return None if statements.state(claim) == statements.REFUSED else claim
