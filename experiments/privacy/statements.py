"""The one-line statement of a guarantee, and all rules by which no ε may be stated.

A line is copied without the file that gives its assumptions. So one function writes it, and every command that prints a
guarantee calls that: train, report, plan, account, calibrate, compare, export, export-model and demo.
"""

import dataclasses
import math
from collections.abc import Iterable, Sequence

import tff_mf
from tff_mf import gaussian

from ..output.digits import rounded_up, upwards

REFUSED = "NO ε CAN BE STATED"
TEST_ONLY = "TEST ONLY, NO PRIVACY"
# The beginning of a line that states no ε.
UNANSWERED = "NO ε IS STATED"
REFUSALS = (REFUSED, TEST_ONLY, UNANSWERED)

CHOICE_OF_SETTINGS = (
    "ε is of one run: choosing learning rates, or any other setting, by repeated training on private clients is not "
    "covered by it"
)

_INFINITE = float("inf")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Claim:
    """The content of a statement, with everything that may forbid it.

    Attributes:
        guarantee: That of the cohort that a round stands for, if every assumption holds; `None` if none is known.
        delta: δ.
        rounds: Number of rounds n.
        participation: The schema or the observed participation, in words.
        population: Number of clients that can take part, if known.
        cohort: Clients that a round stands for.
        clients_per_round: Clients that train in a round.
        simulation: Whether clients are simulated.
        test_only: Whether the noise is repeatable.
        violations: What voids the guarantee: a field and a text, with a colon between them.
        unanswered: Questions of the report that are not answered yet.
        answers_file: The file for their answers.
        amplified: ε with amplification by sampling, which has no μ, in place of the guarantee's.
    """

    guarantee: tff_mf.Guarantee | None
    delta: float
    rounds: int
    participation: str
    population: int | None = None
    cohort: int = 1
    clients_per_round: int = 1
    simulation: bool = False
    test_only: bool = False
    violations: Sequence[str] = ()
    unanswered: Sequence[str] = ()
    answers_file: str = ""
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

        Setting g clients to zero is g steps to a neighbour: the norm of a sum of g is at most g times that of one.
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
) -> list[tuple[str, str]]:
    """Returns why an ε may not be stated, whatever the run did: the wrong field, and what is wrong with it.

    Args:
        epsilon: ε.
        delta: δ.
        population: Number of clients that can take part, if known.
        guarantee: What ε was computed from, if it is not amplified.

    Example:
        >>> [field for field, _ in violations(8.0, 0.5, 1000)], violations(8.0, 1e-6, 1000)
        (['delta'], [])
    """
    found = []
    if math.isinf(epsilon):
        found.append(("noise", unbounded(guarantee, delta)))
    if population is not None and delta >= 1 / population:
        text = f"δ = {delta} is no smaller than 1 / {population}: it would allow to publish a client's data"
        found.append(("delta", text))
    return found


def unbounded(guarantee: tff_mf.Guarantee | None, delta: float) -> str:
    """Returns why ε is infinite.

    Args:
        guarantee: What ε was computed from; `None` if it is amplified or unknown.
        delta: δ.

    Example:
        >>> unbounded(tff_mf.Guarantee(mu=float("inf")), 1e-10)
        'there is no noise, or none that counts'
        >>> unbounded(tff_mf.Guarantee(mu=6.0, tail=1e-24), 1e-10)[:51]
        'too little for a grid: of real numbers, ε would be '
    """
    if guarantee is None:
        return "there is no noise, or too little for this δ"
    plain = dataclasses.replace(guarantee, tail=0.0).epsilon(delta)
    if not guarantee.tail or math.isinf(plain):
        return "there is no noise, or none that counts"
    largest = max(0.0, gaussian.largest_epsilon_with_tail(delta, guarantee.tail))
    return (
        f"too little for a grid: of real numbers, ε would be {rounded_up(plain)}, but the noise of a grid has a tail, "
        f"of probability {upwards(guarantee.tail, 2)}, beyond which nothing is bounded; above about {largest:.1f}, "
        f"no ε follows at δ = {delta}. Take more noise or a larger δ"
    )


def customary_delta(delta: float, population: int | None) -> str:
    """Returns that δ is larger than customary for a population, or an empty text."""
    if population is None or delta < population**-1.1:
        return ""
    bound = f"{population**-1.1:.2g} = N^-1.1"
    return f"δ = {delta} is above {bound}, the customary bound for a population of N = {population}"


def refusal(claim: Claim) -> str:
    """Returns why no ε is stated, in one line, or an empty text if one is.

    Formal guarantee: an empty text means that the noise is random, ε finite, δ below 1 / population if that is known,
    and that neither a violation nor an open question was handed over.
    """
    if claim.test_only:
        return f"{TEST_ONLY}: the noise has a fixed seed."
    # A violation may quote a damaged file: a line without a guarantee must not contain an ε from there.
    wrong = [each.replace("ε≤", "ε ") for each in claim.violations]
    if claim.guarantee is None and claim.amplified is None and not wrong:
        wrong.append("accountant: no sensitivity can be computed")
    known = claim.guarantee if claim.amplified is None else None
    own = violations(0.0 if wrong else claim.epsilon, claim.delta, claim.population, known)
    wrong = list(dict.fromkeys([*wrong, *(f"{field}: {text}" for field, text in own)]))
    if wrong:
        return f"{REFUSED}: {wrong[0]}" + (f" (and {len(wrong) - 1} more)" if len(wrong) > 1 else "")
    if claim.unanswered:
        where = f" in {claim.answers_file}" if claim.answers_file else ""
        return f"{UNANSWERED} until these are answered{where}: {', '.join(claim.unanswered)}."
    return ""


def one_line(claim: Claim) -> str:
    """Returns the guarantee in one line, or the reason why no ε is stated.

    Formal guarantee: no figure is smaller than the true one; a line with a figure names adjacency, δ, rounds and
    participation, and, where a round stands for more clients than train in it, ε of those that do.

    Example:
        >>> claim = Claim(guarantee=tff_mf.Guarantee(mu=0.5), delta=1e-6, rounds=100, participation="k≤1")
        >>> one_line(claim)[:72]
        'client-level zero-out DP, central: ρ=0.126 zCDP (μ=0.500), ε≤2.255 at δ='
        >>> one_line(dataclasses.replace(claim, population=3, delta=0.5))[:38]
        'NO ε CAN BE STATED: delta: δ = 0.5 is '
    """
    refused = refusal(claim)
    if refused:
        return refused
    adjacency = "zero-out" if claim.guarantee is None else claim.guarantee.adjacency
    text = f"{'Simulated: ' if claim.simulation else ''}client-level {adjacency} DP, central: "
    if claim.guarantee is not None:
        text += f"ρ={rounded_up(claim.guarantee.zcdp_rho)} zCDP (μ={rounded_up(claim.guarantee.mu)}), "
    text += f"ε≤{rounded_up(claim.epsilon)} at δ={claim.delta}; n={claim.rounds} rounds, {claim.participation}"
    if claim.is_simulated:
        text += f", for cohorts of {claim.cohort}, simulated by {claim.clients_per_round}"
        if claim.guarantee is not None:
            text += f" (of the clients that really train: ε≤{rounded_up(claim.epsilon_as_run)})"
    condition = "" if claim.population is not None else "; if δ is below 1 / population"
    return f"{text}{condition}; all models covered; tuning not covered."


def tier(claim: Claim, *, clients_of_one_person: int = 1) -> str:
    """Returns how strong the protection by each ε of a claim is, in words, and of whom: none if no ε can be stated.

    Source: Ponomareva et al. (2023), section 5.

    Example:
        >>> claim = Claim(guarantee=tff_mf.Guarantee(mu=0.5), delta=1e-6, rounds=100, participation="k≤1",
        ...               cohort=100, clients_per_round=10)
        >>> tier(claim)[:67]
        'reasonable protection (ε ≤ 10) of a client of the simulated cohorts'
        >>> tier(claim)[69:]
        'weak to no formal protection (ε > 10) of the clients that really train'
    """
    if refusal(dataclasses.replace(claim, unanswered=())):
        return "no formal protection can be stated"
    whose = " of a client of the simulated cohorts" if claim.is_simulated else ""
    found = [f"{_worth(claim.epsilon)}{whose}"]
    if clients_of_one_person > 1:
        found.append(
            f"{_worth(claim.epsilon_of(clients_of_one_person))} of a person with {clients_of_one_person} clients"
        )
    if claim.is_simulated:
        found.append(f"{_worth(claim.epsilon_as_run)} of the clients that really train")
    return "; ".join(found)


def bound_to(participation: tff_mf.Participation) -> str:
    """Returns a participation schema in words.

    Example:
        >>> bound_to(tff_mf.MinSep(min_sep=3, max_participations=2))
        'min-sep b≥3, k≤2'
        >>> bound_to(tff_mf.FixedEpoch(min_sep=3, max_participations=2))
        'in the same place of epochs of b=3, k≤2'
    """
    b, k = participation.min_sep, participation.max_participations
    return (
        f"in the same place of epochs of b={b}, k≤{k}"
        if isinstance(participation, tff_mf.FixedEpoch)
        else (f"min-sep b≥{b}, k≤{k}")
    )


def run_bound_to(participation: tff_mf.Participation, *, restart_every: int | None, adaptive: bool) -> str:
    """Returns what the guarantee of a run is bound to, in words: its schema, restarts and adaptive clipping.

    Args:
        participation: The participation schema.
        restart_every: Rounds after which noise starts anew, or `None`.
        adaptive: Whether the clip norm adapts, at restarts.

    Example:
        >>> run_bound_to(tff_mf.MinSep(min_sep=3, max_participations=2), restart_every=6, adaptive=False)
        'min-sep b≥3, k≤2, noise restarted every 6 rounds'
    """
    restarts = "" if restart_every is None else f", noise restarted every {restart_every} rounds"
    return f"{bound_to(participation)}{restarts}{', counts of adaptive clipping included' if adaptive else ''}"


def seen(min_sep: int | None, max_participations: int) -> str:
    """Returns the observed participation of clients in words.

    Example:
        >>> seen(None, 1), seen(0, 2)
        ('observed nobody twice, at most 1 participation', 'observed min-sep 0, at most 2 participations')
    """
    apart = "nobody twice" if min_sep is None else f"min-sep {min_sep}"
    return f"observed {apart}, at most {max_participations} participation{'' if max_participations == 1 else 's'}"


def calibrated_to(epsilon: float, delta: float, cohort: int) -> str:
    """Returns the level that noise was calibrated to; it is not a guarantee of a run.

    Example:
        >>> calibrated_to(2.0, 1e-06, 200)
        'noise for ε of 2.000 at δ = 1e-06 with cohorts of 200'
    """
    return f"noise for ε of {rounded_up(epsilon)} at δ = {delta} with cohorts of {cohort}"


def level(name: str, value: float) -> str:
    """Returns the level of noise that several runs share, with all digits: a label of a table, not a guarantee.

    Example:
        >>> level("epsilon", 2.0), level("noise_multiplier", 0.1)
        ('ε = 2', 'σ = 0.1')
    """
    sign = {"epsilon": "ε", "noise_multiplier": "σ"}[name]
    return f"{sign} = {repr(value).removesuffix('.0')}"


def by_level(entries: Iterable[tuple[str, str, str]]) -> list[tuple[str, str]]:
    """Returns each statement once, with the level and the names that it is about.

    Args:
        entries: The level, a name and a statement of each.

    Example:
        >>> by_level([("ε = 2", "blt", "ε≤2"), ("ε = 2", "dense", "ε≤2"), ("ε = 8", "blt", "ε≤8")])
        [('ε = 2, blt; dense', 'ε≤2'), ('ε = 8, blt', 'ε≤8')]
    """
    names: dict[tuple[str, str], list[str]] = {}
    for privacy, name, statement in entries:
        names.setdefault((privacy, statement), []).append(name)
    return [(f"{privacy}, {'; '.join(found)}", statement) for (privacy, statement), found in names.items()]


def _worth(epsilon: float) -> str:
    if epsilon <= 1:
        return "strong formal protection (ε ≤ 1)"
    return "reasonable protection (ε ≤ 10)" if epsilon <= 10 else "weak to no formal protection (ε > 10)"
