"""What follows from the assumptions: findings, and the one line that people read."""

from collections.abc import Mapping
from typing import Any

from ..privacy import upwards
from ._configuration import Configuration
from ._evidence import Evidence
from ._figures import Figures
from ._findings import CRITICAL, NOTE, VIOLATED, WARNING, Assumption, Finding
from ._questions import ANSWERS, QUESTIONS

# How far two accountants may be apart.
_TOLERANCE = 1e-6


def findings(
    configuration: Configuration,
    evidence: Evidence,
    answers: Mapping[str, Any],
    assumptions: list[Assumption],
    figures: Figures | None,
    audit: Any,
) -> list[Finding]:
    """Returns what there is to know: every violated assumption, open question, and figure that is out of place."""
    found = [
        Finding(severity=CRITICAL, field=each.name, text=each.text) for each in assumptions if each.state == VIOLATED
    ]
    if figures is None:
        text = "no sensitivity can be computed from the files; see the other findings"
        found.append(Finding(severity=CRITICAL, field="accountant", text=text))
    elif figures.guarantee.epsilon(configuration.delta) == float("inf"):
        found.append(Finding(severity=CRITICAL, field="noise", text="there is no noise, or none that counts"))
    elif abs(_apart(figures, configuration.delta)) > _TOLERANCE:
        text = (
            f"the closed form of ε and privacy loss distributions are {_apart(figures, configuration.delta):.2g} apart"
        )
        found.append(Finding(severity=CRITICAL, field="accountant", text=text))
    if isinstance(audit, Mapping) and not audit.get("passed"):
        names = [test.get("name") for test in audit.get("tests", []) if not test.get("passed")]
        text = f"the audit failed: {', '.join(map(str, names)) or 'it does not say of what'}"
        found.append(Finding(severity=CRITICAL, field="audit", text=text))
    size = population(configuration, answers)
    if size is not None and configuration.delta >= 1 / size:
        text = f"δ = {configuration.delta} is no smaller than 1 / {size}: it would allow to publish a client's data"
        found.append(Finding(severity=CRITICAL, field="delta", text=text))
    elif size is not None and configuration.delta >= size**-1.1:
        text = f"δ = {configuration.delta} is above N^-1.1 = {size**-1.1:.2g} for a population of {size}"
        found.append(Finding(severity=WARNING, field="delta", text=text))
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
            f"stopped after {evidence.last_round} of {configuration.rounds} rounds: if what was released had a part in "
            "that, only the planned figures hold, and they are the ones that are stated"
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


def headline(
    configuration: Configuration,
    answers: Mapping[str, Any],
    figures: Figures | None,
    found: list[Finding],
    realised: bool,
    evidence: Evidence,
) -> str:
    """Returns the guarantee in one line, or why there is none."""
    critical = [each for each in found if each.severity == CRITICAL]
    if configuration.insecure_seed is not None:
        return "TEST ONLY, NO PRIVACY: the noise has a fixed seed."
    if critical:
        return f"NO ε CAN BE STATED: {critical[0].field}: {critical[0].text}" + (
            f" (and {len(critical) - 1} more)" if len(critical) > 1 else ""
        )
    unanswered = [question.name for question in QUESTIONS if answers[question.name] is None]
    if unanswered or figures is None:
        return f"NO ε IS STATED until these are answered in {ANSWERS}: {', '.join(unanswered)}."
    rounds = evidence.rounds if realised else configuration.rounds
    guarantee, delta = figures.guarantee, configuration.delta
    text = (
        f"{'Simulated: ' if configuration.simulation else ''}client-level {configuration.adjacency} DP, central: "
        f"ρ={upwards(guarantee.zcdp_rho)} zCDP (μ={upwards(guarantee.mu)}), ε≤{upwards(guarantee.epsilon(delta))} at "
        f"δ={delta}; n={rounds} rounds, "
    )
    if realised:
        apart = "nobody twice" if evidence.min_sep is None else f"min-sep {evidence.min_sep}"
        text += f"observed {apart}, at most {evidence.max_participations} participations"
    else:
        text += f"min-sep b≥{configuration.min_sep}, k≤{configuration.max_participations}"
    if configuration.cohort != configuration.clients_per_round:
        text += f", for cohorts of {configuration.cohort}, simulated by {configuration.clients_per_round}"
    return f"{text}; all models covered; tuning not covered."


def statement(configuration: Configuration, figures: Figures | None, realised: bool, evidence: Evidence) -> str:
    """Returns the formal statement, which supposes that every assumption holds."""
    adjacent = (
        "one is the other with all updates of one client set to zero"
        if configuration.adjacency == "zero-out"
        else "they differ in all updates of one client, which may be any within the clip norm"
    )
    rounds = evidence.rounds if realised else configuration.rounds
    bound = "unbounded" if figures is None else f"at most {upwards(figures.guarantee.mu)}"
    who = "each client in the log" if realised else "each client whose rounds keep the participation schema"
    return (
        f"Two data sets are neighbours if {adjacent}. For {who}, if all assumptions below hold, the release of all "
        f"{rounds} noised sums, also adaptively chosen, and of all that is computed from them is μ-GDP with μ {bound}: "
        "no test can tell neighbours apart better than it can tell N(0, 1) from N(μ, 1). ρ-zCDP and (ε, δ)-DP follow."
    )


def tier(epsilon: float) -> str:
    """Returns what an ε is worth, in words: Ponomareva et al. (2023), section 5."""
    if epsilon <= 1:
        return "strong formal protection (ε ≤ 1)"
    return "reasonable protection (ε ≤ 10)" if epsilon <= 10 else "weak to no formal protection (ε > 10)"


def population(configuration: Configuration, answers: Mapping[str, Any]) -> int | None:
    """Returns how many clients there are, as answered or as counted."""
    return answers["population"] if answers["population"] is not None else configuration.population


def sizes(evidence: Evidence) -> dict[int, int]:
    """Returns the number of clients of each round, by the ledger."""
    return evidence.ledger.sizes if evidence.ledger else {}
