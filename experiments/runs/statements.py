"""A claim's state, its facts and the one line that states them: the one rule by which an ε is shown."""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import msgspec

import tff_mf
from tff_mf.base.strict_json import finite
from tff_mf.planning import MechanismSetting

from ..output import typed
from ..output.text import up
from ..output.typed import Number, OpenUnit, Record
from .words import CHOICE_OF_SETTINGS as CHOICE_OF_SETTINGS
from .words import Bound, Reason

STATED, QUALIFIED, PROVISIONAL, REFUSED = STATES = ("stated", "qualified", "provisional", "refused")
NO_EPSILON = "NO ε CAN BE STATED"
TEST_ONLY = "TEST ONLY, NO PRIVACY"

# Of each tier, whose number is its place: the largest ε, and its name.
_TIERS = ((1.0, "strong formal protection (ε ≤ 1)"), (10.0, "reasonable protection (ε ≤ 10)"))
_LAST_TIER = "weak to no formal protection (ε > 10)"
TIERS_SOURCE = "the three tiers of Ponomareva et al. (2023), How to DP-fy ML, section 5"
_INFINITE = float("inf")


class Claim(Record, kw_only=True):
    """The facts of a claim, as files have them; a figure that is not bounded, or may not be stated, is `None`.

    Attributes:
        state: "stated", "qualified" if an answer weakens it, "provisional" as long as questions are open, or "refused".
        test_only: Whether the noise is repeatable.
        reasons: Why no ε is stated; empty if one is.
        open_questions: Questions of the report that are not answered yet.
        participation: The schema, or the observed participation, that the guarantee is bound to.
        delta: δ.
        rounds: Number of rounds n.
        population: Number of clients that can take part, if known.
        cohort: Clients that a round stands for.
        clients_per_round: Clients that train in a round.
        simulation: Whether clients are simulated.
        clients_of_one_person: The most clients that one person can have, if known.
        tuning_runs: Earlier runs on these clients that chose the settings, if known; no figure counts them.
        adjacency: "zero-out" or "replace-one".
        epsilon: For the cohort that a round stands for, if every assumption holds.
        epsilon_of_a_person: ε of all clients of one person together.
        epsilon_as_run: ε of the clients that really train: a simulation's noise is in proportion to their number.
        zcdp_rho: ρ; `None` too of an amplified ε.
        mu: μ; likewise.
        tail: Total variation that δ includes; likewise.
    """

    state: Literal["stated", "qualified", "provisional", "refused"]
    test_only: bool
    reasons: Sequence[Reason]
    open_questions: Sequence[str]
    participation: Bound
    delta: OpenUnit
    rounds: int
    population: int | None
    cohort: int
    clients_per_round: int
    simulation: bool
    clients_of_one_person: int | None
    tuning_runs: int | None
    adjacency: Literal["zero-out", "replace-one"]
    epsilon: Number | None
    epsilon_of_a_person: Number | None
    epsilon_as_run: Number | None
    zcdp_rho: Number | None
    mu: Number | None
    tail: Number | None


def claim(
    guarantee: tff_mf.Guarantee | None,
    *,
    delta: float,
    rounds: int,
    participation: Bound,
    population: int | None = None,
    cohort: int = 1,
    clients_per_round: int = 1,
    simulation: bool = False,
    test_only: bool = False,
    reasons: Sequence[Reason] = (),
    open_questions: Sequence[str] = (),
    clients_of_one_person: int | None = None,
    tuning_runs: int | None = None,
    amplified: float | None = None,
) -> Claim:
    """Returns a claim, with everything that may forbid it.

    Formal guarantee: if it is refused, it has no figure. Otherwise ε is finite, δ is below 1 / population if that is
    known, the noise is random, and no violation was handed over. Setting g clients of one person to zero is g steps to
    a neighbour: a sum of g has at most g times the norm of one.

    The arguments are the fields of `Claim`; `guarantee` is for the cohort that a round stands for, `reasons` are what
    voids it, and `amplified` is an ε by the secrecy of the cohorts, which has no μ, in its place.
    """
    found = list(reasons)
    if guarantee is None and amplified is None and not found:
        found.append(Reason(field="accountant", code="no_sensitivity"))
    epsilon = amplified
    if epsilon is None:
        epsilon = _INFINITE if guarantee is None else guarantee.epsilon(delta)
    found += violations(0.0 if found else epsilon, delta, population, guarantee if amplified is None else None)
    refused = test_only or bool(found)
    known = None if refused else guarantee

    def of_several(clients: float) -> float | None:
        if known is None or math.isinf(known.mu):
            return None
        # Above the rounding of the factor and of the product.
        return finite(dataclasses.replace(known, mu=known.mu * clients * (1 + 2.0**-50)).epsilon(delta))

    figures: dict[str, Any] = {name: getattr(known, name, None) for name in ("zcdp_rho", "mu", "tail")}
    figures["adjacency"] = "zero-out" if guarantee is None else guarantee.adjacency
    return Claim(
        state=REFUSED if refused else PROVISIONAL if open_questions else QUALIFIED if tuning_runs else STATED,
        test_only=test_only,
        reasons=[each for index, each in enumerate(found) if each not in found[:index]],
        open_questions=list(open_questions),
        participation=participation,
        delta=delta,
        rounds=rounds,
        population=population,
        cohort=cohort,
        clients_per_round=clients_per_round,
        simulation=simulation,
        clients_of_one_person=clients_of_one_person,
        tuning_runs=tuning_runs,
        epsilon=None if refused else epsilon,
        epsilon_of_a_person=None if clients_of_one_person is None else of_several(clients_of_one_person),
        epsilon_as_run=of_several(cohort / clients_per_round),
        **figures,
    )


def violations(
    epsilon: float, delta: float, population: int | None, guarantee: tff_mf.Guarantee | None = None
) -> list[Reason]:
    """Returns why an ε may not be stated, whatever the run did.

    Example:
        >>> [each.field for each in violations(8.0, 0.5, 1000)], violations(8.0, 1e-6, 1000)
        (['delta'], [])
    """
    found = []
    if math.isinf(epsilon):
        found.append(unbounded(guarantee, delta))
    if population is not None and delta >= 1 / population:
        values = {"delta": delta, "population": population}
        found.append(Reason(field="delta", code="delta_too_large", values=values))
    return found


def unbounded(guarantee: tff_mf.Guarantee | None, delta: float) -> Reason:
    """Returns why ε is infinite, computed from a guarantee; `None` is one that is amplified or unknown.

    Example:
        >>> unbounded(tff_mf.Guarantee(mu=float("inf")), 1e-10).code
        'no_noise'
        >>> unbounded(tff_mf.Guarantee(mu=6.0, tail=1e-24), 1e-10).code
        'grid_tail'
    """
    if guarantee is None:
        return Reason(field="noise", code="no_noise_at_delta")
    if not guarantee.tail or math.isinf(dataclasses.replace(guarantee, tail=0.0).epsilon(delta)):
        return Reason(field="noise", code="no_noise")
    return Reason(field="noise", code="grid_tail", values={"delta": delta})


def customary_delta(delta: float, population: int | None) -> bool:
    """Returns whether δ is larger than customary for a population, N^-1.1."""
    # Powers differ in their last bits between machines, and a finding must not.
    return population is not None and delta >= population**-1.1 * (1 + 1e-9)


def refusal(claim: Claim) -> str:
    """Returns why no ε may be stated, in one line, or an empty text if one may."""
    return line(claim) if claim.state == REFUSED else ""


def facts(claim: Claim) -> dict[str, Any]:
    """Returns a claim as JSON."""
    return msgspec.to_builtins(claim)


def of_facts(found: Any) -> Claim:
    """Returns the claim that a file has, with the figures of the machine that wrote it.

    Raises:
        InputValueError: If it is none; the message names the field.

    Example:
        >>> made = claim(tff_mf.Guarantee(mu=0.5), delta=1e-6, rounds=100, participation=seen(None, 1))
        >>> of_facts(facts(made)) == made
        True
    """
    return typed.convert(found, Claim, "claim")


def without_epsilon(value: Any) -> Any:
    """Returns JSON with `None` in place of each ε, by its name: where a claim is refused, none is shown.

    Example:
        >>> without_epsilon({"mu": 1.0, "amplified_epsilon": 2.0, "at": [{"epsilon": 3.0}]})
        {'mu': 1.0, 'amplified_epsilon': None, 'at': [{'epsilon': None}]}
    """
    if isinstance(value, Mapping):
        return {
            name: (dict.fromkeys(each) if isinstance(each, Mapping) else None)
            if "epsilon" in name
            else without_epsilon(each)
            for name, each in value.items()
        }
    return [without_epsilon(each) for each in value] if isinstance(value, list | tuple) else value


def line(claim: Claim) -> str:
    """Returns the guarantee in one line, or the reason why no ε is stated.

    Formal guarantee: no figure is smaller than the true one; a line with a figure names adjacency, δ, rounds and
    participation, and, where a round stands for more clients than train in it, ε of those that do. If a person can
    have several clients, their ε comes first.

    Example:
        >>> import functools
        >>> made = functools.partial(claim, tff_mf.Guarantee(mu=0.5), rounds=100, participation=seen(None, 1))
        >>> line(made(delta=1e-6))[:72]
        'client-level zero-out DP, central: ρ=0.126 zCDP (μ=0.500), ε≤2.255 at δ='
        >>> line(made(delta=1e-6, open_questions=["unit"]))[:53]
        'PROVISIONAL, 1 question open: client-level zero-out D'
        >>> line(made(delta=1e-6, tuning_runs=40))[:53]
        'QUALIFIED, 40 tuning runs not counted: client-level z'
        >>> line(made(delta=0.5, population=3))[:38]
        'NO ε CAN BE STATED: delta: δ = 0.5 is '
    """
    if claim.state == REFUSED:
        return _refused(claim)
    several = claim.clients_of_one_person or 1
    why = caveats(claim.open_questions, claim.tuning_runs)
    text = f"{', '.join([claim.state.upper(), *why])}: " if why else ""
    if several > 1:
        text += f"ε≤{up(claim.epsilon_of_a_person)} of a person with {several} clients; "
    text += f"{'Simulated: ' if claim.simulation else ''}client-level {claim.adjacency} DP, central: "
    if claim.mu is not None:
        text += f"ρ={up(claim.zcdp_rho)} zCDP (μ={up(claim.mu)}), "
    text += f"ε≤{up(claim.epsilon)} at δ={claim.delta}; n={claim.rounds} rounds, {claim.participation}"
    if claim.cohort != claim.clients_per_round:
        text += f", for cohorts of {claim.cohort}, simulated by {claim.clients_per_round}"
        if claim.mu is not None:
            text += f" (of the clients that really train: ε≤{up(claim.epsilon_as_run)})"
    condition = "" if claim.population is not None else "; if δ is below 1 / population"
    return f"{text}{condition}; all models covered; tuning not covered."


def at_a_glance(claim: Claim) -> str:
    """Returns a claim for a screen, ε first; `line` has everything that it depends on.

    Formal guarantee: no figure is smaller than the true one, and a figure that is provisional, qualified or simulated
    says so. If a person can have several clients, ε is the person's; where a round stands for more clients than train
    in it, ε of those that do is beside it.

    Example:
        >>> at_a_glance(claim(tff_mf.Guarantee(mu=0.5), delta=1e-6, rounds=100, participation=seen(None, 1)))
        'ε ≤ 2.255 at δ = 1e-06 per client (central DP, zero-out), all 100 models; if δ is below 1 / population'
    """
    if claim.state == REFUSED:
        return line(claim)
    several = claim.clients_of_one_person or 1
    value, whose = (
        (claim.epsilon_of_a_person, f"person with {several} clients") if several > 1 else (claim.epsilon, "client")
    )
    text = stated(value, whose, delta=claim.delta, adjacency=claim.adjacency, rounds=claim.rounds)
    if claim.cohort != claim.clients_per_round:
        text += f", for simulated cohorts of {claim.cohort}"
        if claim.mu is not None:
            text += f"; of the {claim.clients_per_round} clients that really train: ε ≤ {up(claim.epsilon_as_run)}"
    if why := caveats(claim.open_questions, claim.tuning_runs):
        text += f"; {', '.join([claim.state, *why])}"
    text += "; clients are simulated" if claim.simulation else ""
    return text if claim.population is not None else f"{text}; if δ is below 1 / population"


def caveats(open_questions: Sequence[str], tuning_runs: int | None) -> list[str]:
    """Returns why a claim is provisional or qualified; nothing if it is stated.

    Example:
        >>> caveats(["unit"], 40)
        ['1 question open', '40 tuning runs not counted']
    """
    numbers = ((len(open_questions), "question", "open"), (tuning_runs, "tuning run", "not counted"))
    return [f"{number} {what}{'' if number == 1 else 's'} {state}" for number, what, state in numbers if number]


def stated(epsilon: float | None, whose: str, *, delta: float, adjacency: str, rounds: int) -> str:
    """Returns an ε with what it is about."""
    return f"ε ≤ {up(epsilon)} at δ = {delta} per {whose} (central DP, {adjacency}), all {rounds} models"


def _refused(claim: Claim) -> str:
    if claim.test_only:
        return f"{TEST_ONLY}: the noise has a fixed seed."
    wrong = [f"{each.field}: {each.text}" for each in claim.reasons]
    more = f" (and {len(wrong) - 1} more)" if len(wrong) > 1 else ""
    # A reason may quote a damaged file: a line without a guarantee must not contain an ε from there.
    return f"{NO_EPSILON}: {''.join(wrong[:1])}".replace("ε≤", "ε ") + more


def tier(claim: Claim) -> str | None:
    """Returns how strong the protection by each ε of a claim is, and of whom; `None` if it is refused.

    Source: Ponomareva et al. (2023), section 5: `TIERS_SOURCE`.

    Example:
        >>> found = claim(tff_mf.Guarantee(mu=0.5), delta=1e-6, rounds=100, participation=seen(None, 1),
        ...               cohort=100, clients_per_round=10)
        >>> tier(found)[:75]
        'tier 2, reasonable protection (ε ≤ 10) of a client of the simulated cohorts'
        >>> tier(found)[77:]
        'tier 3, weak to no formal protection (ε > 10) of the clients that really train'
    """
    if claim.state == REFUSED:
        return None
    several, simulated = claim.clients_of_one_person, claim.cohort != claim.clients_per_round
    said = []
    if (several or 1) > 1:
        said.append(f"{_worth(claim.epsilon_of_a_person)} of a person with {several} clients")
    said.append(_worth(claim.epsilon) + (" of a client of the simulated cohorts" if simulated else ""))
    if simulated:
        said.append(f"{_worth(claim.epsilon_as_run)} of the clients that really train")
    return "; ".join(said)


def of_plan(plan: tff_mf.Plan, *, population: int | None = None, reasons: Sequence[Reason] = ()) -> Claim:
    """Returns the claim of a plan."""
    assert not plan.secret_cohorts, "amplification.of_own_cohorts states the guarantee of secret cohorts"
    return claim(
        None if plan.insecure else plan.guarantee,
        delta=plan.delta,
        rounds=plan.rounds,
        participation=bound_of(plan),
        population=population,
        cohort=plan.cohort,
        clients_per_round=plan.clients_per_round,
        test_only=plan.insecure,
        reasons=reasons,
    )


def bound_of(plan: tff_mf.Plan) -> Bound:
    """Returns what the guarantee of a plan is bound to."""
    counts = plan.adaptive_count_stddev is not None
    return bound_to(plan.participation, restart_every=plan.restart_every, adaptive_counts=counts)


def of_setting(
    setting: MechanismSetting,
    guarantee: tff_mf.Guarantee,
    *,
    delta: float,
    population: int | None,
    clients_per_round: int | None,
) -> Claim:
    """Returns the claim of a guarantee of a mechanism in a setting."""
    return claim(
        guarantee,
        delta=delta,
        rounds=setting.rounds,
        participation=bound_in(setting),
        population=population,
        cohort=clients_per_round or 1,
        clients_per_round=clients_per_round or 1,
    )


def bound_in(setting: MechanismSetting) -> Bound:
    """Returns the schema and the restarts that a guarantee in a setting is for.

    Example:
        >>> schema = tff_mf.MinSep(min_sep=4, max_participations=3)
        >>> str(bound_in(MechanismSetting(rounds=12, participation=schema, restart_every=6)))
        'min-sep b≥4, k≤3, noise restarted every 6 rounds'
    """
    return bound_to(setting.participation, restart_every=setting.restart_every if setting.is_restarted else None)


def participation(setting: MechanismSetting) -> str:
    """Returns how often a client takes part, and where the noise is restarted, in words.

    Example:
        >>> once = MechanismSetting(rounds=12, participation=tff_mf.SingleParticipation(), restart_every=6)
        >>> participation(once)
        'each client at most once, noise restarted every 6 rounds'
    """
    bound = bound_in(setting)
    if setting.participation.max_participations > 1:
        return str(bound)
    return ", ".join(filter(None, ["each client at most once", str(msgspec.structs.replace(bound, schema=None))]))


def bound_to(participation: tff_mf.Participation, **more: Any) -> Bound:
    """Returns the participation schema that a guarantee is bound to, with further fields of `Bound`.

    Example:
        >>> str(bound_to(tff_mf.MinSep(min_sep=3, max_participations=2), restart_every=6))
        'min-sep b≥3, k≤2, noise restarted every 6 rounds'
        >>> str(bound_to(tff_mf.FixedEpoch(min_sep=3, max_participations=2)))
        'in the same place of epochs of b=3, k≤2 in a row'
    """
    b, k = participation.min_sep, participation.max_participations
    return Bound(schema=type(participation).__name__, min_sep=b, max_participations=k, **more)


def seen(min_sep: int | None, max_participations: int) -> Bound:
    """Returns the observed participation of clients.

    Example:
        >>> str(seen(None, 1)), str(seen(0, 2))
        ('observed nobody twice, at most 1 participation', 'observed min-sep 0, at most 2 participations')
    """
    return Bound(observed_min_sep=min_sep, observed_max_participations=max_participations)


def level(name: str, value: float) -> str:
    """Returns the level of noise that several runs share, with all digits: a label of a table, not a guarantee.

    Example:
        >>> level("epsilon", 2.0), level("noise_multiplier", 0.1)
        ('ε = 2', 'σ = 0.1')
    """
    sign = {"epsilon": "ε", "noise_multiplier": "σ"}[name]
    return f"{sign} = {repr(value).removesuffix('.0')}"


def _worth(epsilon: float | None) -> str:
    for number, (largest, name) in enumerate(_TIERS, start=1):
        if epsilon is not None and epsilon <= largest:
            return f"tier {number}, {name}"
    return f"tier {len(_TIERS) + 1}, {_LAST_TIER}"
