"""What follows from the assumptions: findings, and the one line that people read."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from ..output.digits import rounded_up
from ..privacy import statements
from ..run_folder.run_json import Configuration
from ._evidence import Evidence
from ._figures import Figures
from ._findings import CRITICAL, NOTE, VIOLATED, WARNING, Assumption, Finding
from .questions import QUESTIONS

# How far two accountants may be apart.
_TOLERANCE = 1e-6


def findings(
    configuration: Configuration,
    evidence: Evidence,
    answers: Mapping[str, Any],
    assumptions: list[Assumption],
    figures: Figures | None,
    audit: Any,
    contradiction: str = "",
) -> list[Finding]:
    """Returns what there is to know: every violated assumption, open question, and figure that is out of place."""
    found = [
        Finding(severity=CRITICAL, field=each.name, text=each.text) for each in assumptions if each.state == VIOLATED
    ]
    epsilon = 0.0 if figures is None else figures.guarantee.epsilon(configuration.delta)
    if figures is None:
        text = "no sensitivity can be computed from the files; see the other findings"
        found.append(Finding(severity=CRITICAL, field="accountant", text=text))
    elif contradiction:
        found.append(Finding(severity=CRITICAL, field="accountant", text=contradiction))
    elif epsilon != float("inf") and abs(_apart(figures, configuration.delta)) > _TOLERANCE:
        text = (
            f"the closed form of ε and privacy loss distributions are {_apart(figures, configuration.delta):.2g} apart"
        )
        found.append(Finding(severity=CRITICAL, field="accountant", text=text))
    if isinstance(audit, Mapping) and not audit.get("passed"):
        names = [test.get("name") for test in audit.get("tests", []) if not test.get("passed")]
        text = f"the audit failed: {', '.join(map(str, names)) or 'it does not say of what'}"
        found.append(Finding(severity=CRITICAL, field="audit", text=text))
    size = population(configuration, answers, evidence)
    wrong = statements.violations(epsilon, configuration.delta, size)
    found += [Finding(severity=CRITICAL, field=field, text=text) for field, text in wrong]
    customary = statements.customary_delta(configuration.delta, size)
    if customary and "delta" not in dict(wrong):
        found.append(Finding(severity=WARNING, field="delta", text=customary))
    found += [
        Finding(severity=WARNING, field=question.name, text=f"not answered: {question.text}")
        for question in QUESTIONS
        if answers[question.name] is None
    ]
    if (answers["clients_of_one_person"] or 1) > 1:
        text = f"one person can be {answers['clients_of_one_person']} clients: see the ε of a person"
        found.append(Finding(severity=WARNING, field="unit", text=text))
    if evidence.ledger is not None and evidence.last_round < configuration.rounds:
        text = (
            f"stopped after {evidence.last_round} of {configuration.rounds} rounds, as far as any was released and had "
            "clients: if what was released had a part in that, only the planned figures hold; the larger of planned "
            "and realised is stated"
        )
        found.append(Finding(severity=WARNING, field="rounds", text=text))
    short = [number for number, size in sizes(evidence).items() if size != configuration.clients_per_round]
    if short:
        text = f"{len(short)} rounds had other than {configuration.clients_per_round} clients, round {short[0]} first"
        found.append(Finding(severity=NOTE, field="rounds", text=text))
    return found


def _apart(figures: Figures, delta: float) -> float:
    """Returns the difference of two accountants, relative where ε is above 1."""
    epsilon = figures.guarantee.epsilon(delta)
    return (epsilon - figures.guarantee.epsilon_by_pld(delta)) / max(1.0, epsilon)


def critical(found: list[Finding]) -> list[str]:
    """Returns the critical findings, each as a field and a text."""
    return [f"{each.field}: {each.text}" for each in found if each.severity == CRITICAL]


def claim(
    configuration: Configuration,
    answers: Mapping[str, Any],
    figures: Figures | None,
    found: list[Finding],
    realised: bool,
    evidence: Evidence,
) -> statements.Claim:
    """Returns what the headline is to state, with all that may forbid it."""
    seen = statements.seen(evidence.min_sep, evidence.max_participations)
    return statements.Claim(
        guarantee=None if figures is None else figures.guarantee,
        delta=configuration.delta,
        rounds=evidence.rounds if realised else configuration.rounds,
        participation=seen if realised else statements.bound_to(configuration.schema),
        population=population(configuration, answers, evidence),
        cohort=configuration.cohort,
        clients_per_round=configuration.clients_per_round,
        simulation=configuration.simulation,
        test_only=configuration.insecure_seed is not None,
        violations=critical(found),
        unanswered=[question.name for question in QUESTIONS if answers[question.name] is None],
    )


def statement(configuration: Configuration, claim: statements.Claim, realised: bool) -> str:
    """Returns the formal statement, which supposes that every assumption holds; none if one is known not to."""
    refused = statements.refusal(dataclasses.replace(claim, unanswered=()))
    if refused or claim.guarantee is None:
        return f"No formal statement can be made. {refused}"
    adjacent = (
        "one is the other with all updates of one client set to zero"
        if configuration.adjacency == "zero-out"
        else "they differ in all updates of one client, which may be any within the clip norm"
    )
    who = "each client in the log" if realised else "each client whose rounds keep the participation schema"
    return (
        f"Two data sets are neighbours if {adjacent}. For {who}, if all assumptions below hold, the release of all "
        f"{claim.rounds} noised sums, also adaptively chosen, and of all that is computed from them is μ-GDP with μ at "
        f"most {rounded_up(claim.guarantee.mu)}: no test can tell neighbours apart better than it can tell N(0, 1) "
        "from N(μ, 1). ρ-zCDP and (ε, δ)-DP follow."
    )


def population(configuration: Configuration, answers: Mapping[str, Any], evidence: Evidence) -> int | None:
    """Returns how many clients there are: as answered, as configured, or as seen in the log, whichever is more.

    δ is held against 1 / population. An answer that is smaller than what the run itself counted would let it pass.
    Where clients stand for a larger cohort, there are more in proportion than were seen or answered for.
    """
    seen = len(set().union(*evidence.cohorts.values()))
    of_this_run = max(seen, answers["population"] or 0)
    in_proportion = -(-of_this_run * configuration.cohort // configuration.clients_per_round)
    return max(of_this_run, in_proportion, configuration.population or 0) or None


def sizes(evidence: Evidence) -> dict[int, int]:
    """Returns the number of clients of each round, by the ledger."""
    return evidence.ledger.sizes if evidence.ledger else {}
