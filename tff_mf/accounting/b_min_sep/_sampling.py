"""b-min-sep sampling: ε, the smaller of a deterministic and a Monte Carlo bound, and σ."""

import dataclasses
import math
from collections.abc import Sequence

import numpy as np

from tff_mf.accounting._result import Level
from tff_mf.accounting._sampling import Question
from tff_mf.accounting._secret_run import FAILURE, SecretRun, SecretSampling
from tff_mf.accounting.b_min_sep import _moments
from tff_mf.accounting.b_min_sep._samples import Add, Chain, Remove, Signals
from tff_mf.accounting.betting import FINEST, DirectionBound, Sample, certified_epsilon, decided, growth, is_hopeless
from tff_mf.accounting.entries import magnitudes_of
from tff_mf.base import validation
from tff_mf.base.errors import InputValueError
from tff_mf.mechanisms import Mechanism
from tff_mf.numerics import gaussian
from tff_mf.problem.draws import Cohorts, Draws
from tff_mf.problem.participation import MinSep, Participation

_MOMENTS = "moments of b-min-sep sampling"
_MOST_ENTRIES = 2**24
# What the package allows for the entries of C, and for sums of their products: δ grows with every entry.
_ENTRY_ERROR = 2.0**-36
# Above it, a round's variance leads to weights that are not computed with.
_LARGEST_VARIANCE = 60.0
# Of a logarithm of a sum of up to b + n probabilities.
_NEVER_ERROR = 1e-11
_PILOT = 4000
# Proposals whose pilots are compared.
_LIKELY = 3
_TILTS = (1.5, 2.0, 3.0, 5.0, 8.0)
_SHIFTS = (0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 300.0)
# Rounds beyond which few samples are drawn where the theorems hold, and how many rounds of all of them.
_MOST_SAMPLED_ROUNDS, _MOST_SAMPLED = 1024, 2**25
# By what factor samples must be able to lower a bound.
_HOPED = 0.9


@dataclasses.dataclass(frozen=True, kw_only=True)
class BMinSep(SecretSampling):
    """Every client that was in none of the last b − 1 cohorts joins the next one by a coin toss of its own.

    Formal guarantee:
        Adjacency: zero-out of all contributions of one client, each of L2 norm at most the clip norm. They may be
        chosen adaptively, from everything that was released before.
        Participation: in each round, a client that was in none of the last b − 1 cohorts joins with probability p,
        independently of everything else and in secret. Before the first round it is as after many. Rounds of others may
        be anything that is independent of it; cohorts of a fixed size, truncated cohorts and a log of the cohorts that
        is released are not covered.
        Sensitivity: C is `mechanism.cast_to_float32()` and has at most b bands; its rounding errors are included.
        Entries below 0 count as if they were above 0.
        Released: all `rounds` noised sums, possibly divided by a constant, but not by the size of a cohort, and nothing
        else that depends on the client's rounds, such as counts of adaptive clipping.
        Arithmetic: with a grid, the release is the integers that are computed, and what they cost is included, by the
        chain of `grid_chain.epsilon_of_chain`, if all clients join independently.
        Certainty: where `Level.bound` is "certified", the result holds except with probability `failure` ≤ δ/1000 over
        the random numbers drawn for it, which δ includes. They come from the system; numbers of NumPy's generator are
        taken for random.
        Proof: docs/proofs/amplification.md.

    Attributes:
        min_sep: b, at least 2; with 1, sampling is `Poisson`.
        probability: p, above 0 and at most 1; `of_population` has it of a population.
        clients_per_round: Expected size of a cohort; only a grid needs it.

    Source: Dong and Ganesh (2026), "Privacy amplification for BandMF via b-min-sep subsampling", for the sampling and
    the recursion of its likelihood ratio; docs/proofs/amplification.md for the certificate.

    Example:
        >>> from tff_mf import BandedToeplitz, guarantee
        >>> run = (BandedToeplitz(column=[1.0, 0.5]), 20, BMinSep(min_sep=2, probability=0.05))
        >>> found = guarantee(*run, noise_multiplier=1.0, samples=4000).at(delta=1e-3)
        >>> found.theorem, found.bound, found.estimate <= found.epsilon
        ('Monte Carlo', 'certified', True)

    Raises:
        InputTypeError: If a field is of the wrong type.
        InputValueError: If a field is out of range.
    """

    min_sep: int
    probability: float
    clients_per_round: float | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.min_sep < 2:
            raise InputValueError("min_sep=1 is Poisson sampling: take tff_mf.Poisson, which needs no random numbers.")
        if self.probability > 1:
            raise InputValueError(f"probability={self.probability!r} must be at most 1.")

    @classmethod
    def of_population(cls, *, min_sep: int, population: int, clients_per_round: int) -> "BMinSep":
        """Returns the sampling with p = m/(P − m(b − 1)), at which cohorts have m clients on average.

        Example:
            >>> BMinSep.of_population(min_sep=11, population=1000, clients_per_round=10).probability
            0.011111111111111112

        Raises:
            InputTypeError: If an argument is not a whole number.
            InputValueError: If an argument is out of range.
        """
        population, apart = validation.whole("population", population), validation.whole("min_sep", min_sep)
        size = validation.whole("clients_per_round", clients_per_round)
        if size * apart > population:
            raise InputValueError(
                f"clients_per_round={size} and min_sep={apart} need {size * apart} clients, but "
                f"population={population}."
            )
        return cls(min_sep=apart, probability=size / (population - size * (apart - 1)), clients_per_round=size)

    def schema(self, rounds: int) -> Participation:
        """Returns that any two rounds of a client are at least b apart."""
        return MinSep(min_sep=self.min_sep, max_participations=-(-rounds // self.min_sep))

    def draw(self, clients: int, rounds: int, size: float | None, draws: Draws) -> Cohorts:
        """Returns cohorts that each available client joins; before the first round they are as after many.

        A client is then available with probability 1 / (1 + p·(b − 1)), and otherwise after 1 to b − 1 rounds, each
        equally likely.

        Raises:
            InputValueError: If cohorts would be larger than the guarantee on a grid takes them to be.
        """
        expected = clients * self.probability / (1 + self.probability * (self.min_sep - 1))
        if self.clients_per_round is not None and expected > self.clients_per_round * (1 + 1e-9):
            raise InputValueError(
                f"clients={clients} make cohorts of {expected:.6g} clients on average, more than clients_per_round="
                f"{self.clients_per_round}: build the sampling with BMinSep.of_population for as many clients."
            )
        available_from = 1 + draws.places(np.arange(clients), self.min_sep - 1)
        available_from[draws.joining(clients, 1 / (1 + self.probability * (self.min_sep - 1)))] = 0
        cohorts = []
        for t in range(rounds):
            free = np.flatnonzero(available_from <= t)
            cohorts.append(free[draws.joining(len(free), self.probability)])
            available_from[cohorts[-1]] = t + self.min_sep
        return cohorts

    def run(self, question: Question) -> "BMinSepRun":
        """Returns a run of a mechanism of at most b bands."""
        rounds = question.mechanism.check(question.rounds)
        chain = Chain(rounds=rounds, min_sep=self.min_sep, probability=self.probability)
        turns = -(-rounds // self.min_sep)
        return BMinSepRun(
            chain=chain,
            columns=columns_of(question.mechanism, rounds, self.min_sep),
            samples=question.samples,
            charge_of=question.charge_of(turns, self.clients_per_round, needs_bands=True),
        )


def columns_of(mechanism: Mechanism, rounds: int, min_sep: int) -> np.ndarray:
    """Returns columns[t, i] = |C[t + i, t]|, and 0 where t + i ≥ n, float64 `[rounds, bands]`.

    Raises:
        InputValueError: If C has more than `min_sep` bands, or an entry that is not finite.
    """
    diagonals = magnitudes_of(mechanism, rounds)
    bands = len(diagonals)
    if bands > min_sep:
        raise InputValueError(
            f"mechanism has {bands} bands, but min_sep={min_sep}: b-min-sep sampling amplifies mechanisms of at most b "
            "bands. Take fewer bands, a larger min_sep, or tff_mf.BallsInBins."
        )
    if bands * rounds > _MOST_ENTRIES:
        raise InputValueError(
            f"rounds={rounds} times {bands} bands exceeds the {_MOST_ENTRIES:,} entries that are computed with: take "
            "fewer rounds or bands."
        )
    below_the_last = np.arange(rounds)[:, np.newaxis] + np.arange(bands) >= rounds
    return np.where(below_the_last, 0.0, diagonals.T)


@dataclasses.dataclass(frozen=True, kw_only=True)
class BMinSepRun(SecretRun):
    """The sampling, C, and what a grid costs."""

    certified = True

    chain: Chain
    columns: np.ndarray
    samples: int

    def about(self, sigma: float, delta: float) -> float:
        return gaussian.epsilon_from_delta(delta, self.known_mu(self.columns, sigma))

    def known_mu(self, columns: np.ndarray, sigma: float) -> float:
        """Returns μ of a client whose rounds are known: rounds that are b apart share no row of C."""
        squares, best = np.sum(columns**2, axis=1), np.zeros(len(columns) + self.chain.min_sep)
        for t in range(len(columns) - 1, -1, -1):
            best[t] = max(best[t + 1], squares[t] + best[t + self.chain.min_sep])
        return gaussian.mu_of(math.sqrt(best[0]) * (1 + _ENTRY_ERROR), sigma)

    def ideal(self, sigma: float, delta: float, *, change: float, share: float) -> Level:
        # No entry of C̃ is larger by more than the change of its column, and it is 0 where C has 0: inner products grow
        # with the entries.
        columns = self.columns + change * (self.columns > 0)
        remove, add = self.directions(sigma, delta, columns, share=share)
        return decided(remove, add, delta=delta, failure=FAILURE * delta * share)

    def directions(
        self, sigma: float, delta: float, columns: np.ndarray, *, share: float
    ) -> tuple[DirectionBound, DirectionBound]:
        """Returns ε of real numbers for the run with the client against the run without it, and for the opposite."""
        chain, samples, generator = self.chain, self.samples, np.random.default_rng()
        columns = columns * (1 + _ENTRY_ERROR)
        most = gaussian.epsilon_from_delta(delta, self.known_mu(columns, sigma))
        plain = DirectionBound(value=most, estimate=most, bound="unamplified")
        if not 0 < most < math.inf or float(np.max(np.sum(columns**2, axis=1))) >= _LARGEST_VARIANCE * sigma**2:
            return plain, plain
        signals, failure = Signals(chain, columns / sigma), FAILURE / 2 * delta * share
        values = _moments.epsilons(
            signals.columns, min_sep=chain.min_sep, probability=chain.probability, delta=delta, most=most
        )
        found = [plain.or_proved(value, _MOMENTS if columns.shape[1] > 1 else "Poisson sampling") for value in values]
        # Z is at least the probability of no round at all.
        found[1] = found[1].or_proved(-chain.log_never * (1 + 1e-9) + _NEVER_ERROR, "no round")
        larger = int(found[1].value > found[0].value)
        for index in (larger, 1 - larger):
            # Only the larger of both decides.
            if found[index].value >= found[1 - index].value:
                is_long = found[index].bound == _MOMENTS and chain.rounds > _MOST_SAMPLED_ROUNDS
                # Of many rounds, samples take a minute, and have not been seen to lower theorem 3; few lower theorem 4.
                if is_long and index == 0:
                    break
                count = min(samples, _MOST_SAMPLED // chain.rounds) if is_long else samples
                candidates = _candidates(signals, remove=not index)
                found[index] = _sampled(candidates, found[index], delta, count, failure, generator)
        return found[0], found[1]


def _sampled(
    candidates: Sequence[Remove | Add],
    known: DirectionBound,
    delta: float,
    samples: int,
    failure: float,
    generator: np.random.Generator,
) -> DirectionBound:
    """Returns the smaller of `known` and of ε that samples certify; none are drawn if they cannot be a tenth below."""
    aim = _HOPED * known.value
    hopeful = [each for each in candidates if not is_hopeless(each, aim, delta, samples=samples, failure=failure)]
    # Nothing is below 0.
    if not hopeful or not aim:
        return known
    direction, estimate = _proposed(hopeful, known.value, delta, generator)
    aim, drawn = max(estimate, FINEST * known.value), {"samples": samples, "failure": failure, "generator": generator}
    found = certified_epsilon(known, direction, aim, delta, **drawn)
    return dataclasses.replace(found, estimate=min(estimate, found.value))


def _candidates(signals: Signals, *, remove: bool) -> Sequence[Remove | Add]:
    """Returns the proposals that are tried for one direction."""
    if not remove:
        return [Add(signals=signals, shift=shift) for shift in _SHIFTS]
    tilts = [tilt for tilt in _TILTS if signals.can_tilt(tilt)] or [1.0]
    tried = [((False, 1.0, 0.1), (False, tilt, 0.9)) for tilt in tilts]
    if signals.has_pairs:
        tried += [
            ((False, 1.0, 0.1), (True, 1.0, 0.2), (True, tilt, 0.4), (False, tilt, 0.3)) for tilt in (1.0001, *tilts)
        ]
    return [Remove(signals=signals, parts=parts) for parts in tried]


def _proposed(
    candidates: Sequence[Remove | Add], most: float, delta: float, generator: np.random.Generator
) -> tuple[Remove | Add, float]:
    """Returns proposals near the best, by which a bet on a tenth more than the mean grows fastest, and about ε."""
    epsilon = most
    for _ in range(2):
        first = min(candidates, key=lambda each: each.most(epsilon))
        epsilon = _estimate(first.sample(_PILOT, generator), delta, most)
    likely = sorted(candidates, key=lambda each: each.most(epsilon))[:_LIKELY]
    pilots = [each.sample(_PILOT, generator) for each in likely]
    growths = [growth(pilot.values(epsilon), each.most(epsilon)) for each, pilot in zip(likely, pilots, strict=True)]
    best = int(np.argmax(growths))
    return likely[best], _estimate(pilots[best], delta, most)


def _estimate(sample: Sample, delta: float, most: float) -> float:
    low, high = 0.0, most
    if float(np.mean(sample.values(0.0))) <= delta:
        return 0.0
    while high - low > 1e-5 * high:
        middle = (low + high) / 2
        low, high = (low, middle) if float(np.mean(sample.values(middle))) <= delta else (middle, high)
    return high
