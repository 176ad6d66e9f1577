"""A claim's state, its facts and the one line that states them: the one rule by which an ε is shown."""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import msgspec

import tff_mf
from tff_mf.base.strict_json import finite
from tff_mf.planning.setting import MechanismSetting

from ..output.text import up
from ..output.typed import Number, OpenUnit, Record
from ..sampling import ObservedParticipation
from . import words
from .words import CHOICE_OF_SETTINGS as CHOICE_OF_SETTINGS
from .words import Bound, Reason

STATED, PROVISIONAL, REFUSED = STATES = ("stated", "provisional", "refused")
NO_EPSILON = "NO ε CAN BE STATED"
TEST_ONLY = "TEST ONLY, NO PRIVACY"
# The beginning of a line of a claim that is refused.
REFUSALS = (NO_EPSILON, TEST_ONLY)

# Of each tier, whose number is its place: the largest ε, and its name.
_TIERS = ((1.0, "strong formal protection (ε ≤ 1)"), (10.0, "reasonable protection (ε ≤ 10)"))
_LAST_TIER = "weak to no formal protection (ε > 10)"
TIER_BOUNDS = tuple(f"{largest:g}" for largest, _ in _TIERS)
TIERS_SOURCE = "the three tiers of Ponomareva et al. (2023), How to DP-fy ML, section 5"
_INFINITE = float("inf")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Claim:
    """The content of a statement, with everything that may forbid it.

    Attributes:
        guarantee: For the cohort that a round stands for, if every assumption holds; `None` if none is known.
        delta: δ.
        rounds: Number of rounds n.
        participation: The schema, or the observed participation, that the guarantee is bound to.
        population: Number of clients that can take part, if known.
        cohort: Clients that a round stands for.
        clients_per_round: Clients that train in a round.
        simulation: Whether clients are simulated.
        test_only: Whether the noise is repeatable.
        violations: What voids the guarantee.
        unanswered: Questions of the report that are not answered yet.
        clients_of_one_person: The most clients that one person can have, if known.
        amplified: ε with amplification by sampling, which has no μ, in place of the guarantee's.
    """

    guarantee: tff_mf.Guarantee | None
    delta: float
    rounds: int
    participation: Bound
    population: int | None = None
    cohort: int = 1
    clients_per_round: int = 1
    simulation: bool = False
    test_only: bool = False
    violations: Sequence[Reason] = ()
    unanswered: Sequence[str] = ()
    clients_of_one_person: int | None = None
    amplified: float | None = None

    @property
    def epsilon(self) -> float:
        """ε for the cohort that a round stands for, infinite if there is none."""
        if self.amplified is not None:
            return self.amplified
        return _INFINITE if self.guarantee is None else self.guarantee.epsilon(self.delta)

    @property
    def epsilon_as_run(self) -> float:
        """ε of the clients that really train: the noise of a simulation is in proportion to their number."""
        return self._scaled(self.cohort / self.clients_per_round)

    def epsilon_of(self, clients: int) -> float:
        """Returns ε of one person with so many clients, for the cohort that a round stands for.

        Setting g clients to zero is g steps to a neighbour: a sum of g has at most g times the norm of one.
        """
        return self._scaled(clients)

    @property
    def is_simulated(self) -> bool:
        """Whether a round stands for more clients than train in it."""
        return self.cohort != self.clients_per_round

    def _scaled(self, factor: float) -> float:
        if self.guarantee is None or math.isinf(self.guarantee.mu):
            return _INFINITE
        # Above the rounding of the factor and of the product.
        mu = self.guarantee.mu * factor * (1 + 2.0**-50)
        return dataclasses.replace(self.guarantee, mu=mu).epsilon(self.delta)


def violations(
    epsilon: float, delta: float, population: int | None, guarantee: tff_mf.Guarantee | None = None
) -> list[Reason]:
    """Returns why an ε may not be stated, whatever the run did.

    Args:
        epsilon: ε.
        delta: δ.
        population: Number of clients that can take part, if known.
        guarantee: What ε was computed from, if it is not amplified.

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
    """Returns why ε is infinite.

    Args:
        guarantee: What ε was computed from; `None` if it is amplified or unknown.
        delta: δ.

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


def reasons(claim: Claim) -> list[Reason]:
    """Returns why no ε may be stated; without a reason, one may if the noise is not repeatable.

    Formal guarantee: none means that ε is finite, δ below 1 / population if that is known, and that no violation was
    handed over.
    """
    found = list(claim.violations)
    if claim.guarantee is None and claim.amplified is None and not found:
        found.append(Reason(field="accountant", code="no_sensitivity"))
    known = claim.guarantee if claim.amplified is None else None
    found += violations(0.0 if found else claim.epsilon, claim.delta, claim.population, known)
    return [each for index, each in enumerate(found) if each not in found[:index]]


def refusal(claim: Claim) -> str:
    """Returns why no ε may be stated, in one line, or an empty text if one may.

    Formal guarantee: as for `reasons`; an empty text means that the noise is random too.
    """
    return "" if state(claim) != REFUSED else one_line(claim)


def state(claim: Claim) -> str:
    """Returns the state of a claim: "stated", "provisional" or "refused"."""
    if claim.test_only or reasons(claim):
        return REFUSED
    return PROVISIONAL if claim.unanswered else STATED


class Facts(Record, kw_only=True):
    """The facts of a claim, as files have them; what is not bounded, or may not be stated, is `None`."""

    state: Literal["stated", "provisional", "refused"]
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
    adjacency: Literal["zero-out", "replace-one"]
    epsilon: Number | None
    epsilon_of_a_person: Number | None
    epsilon_as_run: Number | None
    zcdp_rho: Number | None
    mu: Number | None
    tail: Number | None


def facts(claim: Claim) -> dict[str, Any]:
    """Returns all that a statement says, as JSON: `line` and `tier` write it in words.

    Formal guarantee: if the claim is refused, no figure of the guarantee is among them. Otherwise a figure that is
    `None` is not bounded, or there is none: amplification has no μ, and a person no ε as long as the number of their
    clients is unknown.
    """
    known, several, found = claim.guarantee, claim.clients_of_one_person, state(claim)
    stated = known if found != REFUSED else None
    own = {name: value for name, value in vars(claim).items() if name in Facts.__struct_fields__}
    figures = {name: getattr(stated, name, None) for name in ("zcdp_rho", "mu", "tail")}
    of_a_person = None if stated is None or several is None else finite(claim.epsilon_of(several))
    everything: dict[str, Any] = (
        own
        | figures
        | {
            "state": found,
            "reasons": reasons(claim),
            "open_questions": list(claim.unanswered),
            "adjacency": "zero-out" if known is None else known.adjacency,
            "epsilon": None if found == REFUSED else claim.epsilon,
            "epsilon_of_a_person": of_a_person,
            "epsilon_as_run": None if stated is None else finite(claim.epsilon_as_run),
        }
    )
    return msgspec.to_builtins(Facts(**everything))


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


def one_line(claim: Claim) -> str:
    """Returns the guarantee in one line, or the reason why no ε is stated.

    Formal guarantee: no figure is smaller than the true one; a line with a figure names adjacency, δ, rounds and
    participation, and, where a round stands for more clients than train in it, ε of those that do. If a person can
    have several clients, their ε comes first.

    Example:
        >>> claim = Claim(guarantee=tff_mf.Guarantee(mu=0.5), delta=1e-6, rounds=100, participation=seen(None, 1))
        >>> one_line(claim)[:72]
        'client-level zero-out DP, central: ρ=0.126 zCDP (μ=0.500), ε≤2.255 at δ='
        >>> one_line(dataclasses.replace(claim, unanswered=["unit"]))[:53]
        'PROVISIONAL, 1 question open: client-level zero-out D'
        >>> one_line(dataclasses.replace(claim, population=3, delta=0.5))[:38]
        'NO ε CAN BE STATED: delta: δ = 0.5 is '
    """
    return line(facts(claim))


def line(found: Mapping[str, Any]) -> str:
    """Returns the `facts` of a claim in one line; a file may hold them, with figures of another machine."""
    if found["state"] == REFUSED:
        return _refused(found)
    number, several = len(found["open_questions"]), found["clients_of_one_person"]
    text = f"PROVISIONAL, {number} question{'' if number == 1 else 's'} open: " if number else ""
    if (several or 1) > 1:
        text += f"ε≤{up(found['epsilon_of_a_person'])} of a person with {several} clients; "
    text += f"{'Simulated: ' if found['simulation'] else ''}client-level {found['adjacency']} DP, central: "
    if found["mu"] is not None:
        text += f"ρ={up(found['zcdp_rho'])} zCDP (μ={up(found['mu'])}), "
    text += f"ε≤{up(found['epsilon'])} at δ={found['delta']}; n={found['rounds']} rounds, "
    text += words.bound(found["participation"])
    if found["cohort"] != found["clients_per_round"]:
        text += f", for cohorts of {found['cohort']}, simulated by {found['clients_per_round']}"
        if found["mu"] is not None:
            text += f" (of the clients that really train: ε≤{up(found['epsilon_as_run'])})"
    condition = "" if found["population"] is not None else "; if δ is below 1 / population"
    return f"{text}{condition}; all models covered; tuning not covered."


def at_a_glance(found: Mapping[str, Any]) -> str:
    """Returns the `facts` of a claim for a screen, ε first; `line` has everything that it depends on.

    Formal guarantee: no figure is smaller than the true one. If a person can have several clients, ε is the person's;
    where a round stands for more clients than train in it, ε of those that do is beside it.

    Example:
        >>> claim = Claim(guarantee=tff_mf.Guarantee(mu=0.5), delta=1e-6, rounds=100, participation=seen(None, 1))
        >>> at_a_glance(facts(claim))
        'ε ≤ 2.255 at δ = 1e-06 per client (central DP, zero-out), all 100 models; if δ is below 1 / population'
    """
    if found["state"] == REFUSED:
        return line(found)
    several = found["clients_of_one_person"] or 1
    value, whose = (
        (found["epsilon_of_a_person"], f"person with {several} clients")
        if several > 1
        else (found["epsilon"], "client")
    )
    text = f"ε ≤ {up(value)} at δ = {found['delta']} per {whose} (central DP, {found['adjacency']}), "
    text += f"all {found['rounds']} models"
    if found["cohort"] != found["clients_per_round"]:
        text += f", for simulated cohorts of {found['cohort']}"
        if found["mu"] is not None:
            text += (
                f"; of the {found['clients_per_round']} clients that really train: ε ≤ {up(found['epsilon_as_run'])}"
            )
    return text if found["population"] is not None else f"{text}; if δ is below 1 / population"


def _refused(found: Mapping[str, Any]) -> str:
    if found["test_only"]:
        return f"{TEST_ONLY}: the noise has a fixed seed."
    wrong = [f"{each['field']}: {words.text(each['code'], each['values'])}" for each in found["reasons"]]
    more = f" (and {len(wrong) - 1} more)" if len(wrong) > 1 else ""
    # A reason may quote a damaged file: a line without a guarantee must not contain an ε from there.
    return f"{NO_EPSILON}: {''.join(wrong[:1])}".replace("ε≤", "ε ") + more


def tier(found: Mapping[str, Any]) -> str | None:
    """Returns how strong the protection by each ε in the `facts` of a claim is, and of whom; `None` if it is refused.

    Source: Ponomareva et al. (2023), section 5: `TIERS_SOURCE`.

    Example:
        >>> claim = Claim(guarantee=tff_mf.Guarantee(mu=0.5), delta=1e-6, rounds=100, participation=seen(None, 1),
        ...               cohort=100, clients_per_round=10)
        >>> tier(facts(claim))[:75]
        'tier 2, reasonable protection (ε ≤ 10) of a client of the simulated cohorts'
        >>> tier(facts(claim))[77:]
        'tier 3, weak to no formal protection (ε > 10) of the clients that really train'
    """
    if found["state"] == REFUSED:
        return None
    several, simulated = found["clients_of_one_person"], found["cohort"] != found["clients_per_round"]
    said = []
    if (several or 1) > 1:
        said.append(f"{_worth(found['epsilon_of_a_person'])} of a person with {several} clients")
    said.append(_worth(found["epsilon"]) + (" of a client of the simulated cohorts" if simulated else ""))
    if simulated:
        said.append(f"{_worth(found['epsilon_as_run'])} of the clients that really train")
    return "; ".join(said)


def of_plan(plan: tff_mf.Plan, *, population: int | None = None, violations: Sequence[Reason] = ()) -> Claim:
    """Returns the content of the one-line statement of a plan.

    Args:
        plan: The mechanism, its noise and the participation.
        population: Number of clients that can take part, in proportion to the cohort, if known.
        violations: What voids the guarantee.
    """
    assert not plan.secret_cohorts, "amplification.own states the guarantee of secret cohorts"
    return Claim(
        guarantee=None if plan.insecure else plan.guarantee,
        delta=plan.delta,
        rounds=plan.rounds,
        participation=bound_to(
            plan.participation,
            restart_every=plan.restart_every,
            adaptive_counts=plan.adaptive_count_stddev is not None,
        ),
        population=population,
        cohort=plan.cohort,
        clients_per_round=plan.clients_per_round,
        test_only=plan.insecure,
        violations=violations,
    )


def of_setting(
    setting: MechanismSetting, guarantee: tff_mf.Guarantee, *, delta: float, population: int | None
) -> Claim:
    """Returns the content of the one-line statement of a guarantee of a mechanism in a setting."""
    return Claim(
        guarantee=guarantee,
        delta=delta,
        rounds=setting.rounds,
        participation=bound_in(setting),
        population=population,
    )


def bound_in(setting: MechanismSetting) -> Bound:
    """Returns the schema and the restarts that a guarantee in a setting is for.

    Example:
        >>> schema = tff_mf.MinSep(min_sep=4, max_participations=3)
        >>> str(bound_in(MechanismSetting(rounds=12, participation=schema, restart_every=6)))
        'min-sep b≥4, k≤3, noise restarted every 6 rounds'
    """
    return bound_to(setting.participation, restart_every=setting.restart_every if setting.is_restarted else None)


def of_run(
    plan: tff_mf.Plan,
    observed: ObservedParticipation,
    *,
    population: int | None = None,
    violations: Sequence[Reason] = (),
) -> Claim:
    """Returns the content of a training run's one-line statement, with participation assumed and observed.

    Formal guarantee: as for `one_line`; observed participation that exceeds the assumed one voids ε, and the line then
    says so instead of a number.

    Args:
        plan: The mechanism, its noise and the participation that is assumed.
        observed: Who took part, by the log.
        population: Number of clients that can take part, in proportion to the cohort, if known.
        violations: What else voids the guarantee.
    """
    claim = of_plan(plan, population=population, violations=violations)
    bound = msgspec.structs.replace(
        claim.participation,
        observed_min_sep=observed.min_sep,
        observed_max_participations=observed.max_participations,
    )
    if not observed.within(plan.participation):
        values = {"participation": msgspec.to_builtins(bound)}
        more = Reason(field="participation", code="came_too_often", values=values)
        claim = dataclasses.replace(claim, violations=[*violations, more])
    return dataclasses.replace(claim, participation=bound, simulation=True)


def bound_to(participation: tff_mf.Participation, **more: Any) -> Bound:
    """Returns the participation schema that a guarantee is bound to, with further fields of `Bound`.

    Example:
        >>> str(bound_to(tff_mf.MinSep(min_sep=3, max_participations=2), restart_every=6))
        'min-sep b≥3, k≤2, noise restarted every 6 rounds'
        >>> str(bound_to(tff_mf.FixedEpoch(min_sep=3, max_participations=2)))
        'in the same place of epochs of b=3, k≤2'
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
