"""b-min-sep sampling: ε by moments of the likelihood ratio Z.

Theorems 1 and 3 to 7, and what Z is, are in docs/proofs.md.
"""

import dataclasses
import itertools
import math

import numpy as np

from tff_mf.accounting.entries import magnitudes_of
from tff_mf.accounting.guarantee import Level
from tff_mf.accounting.poisson import poisson_epsilons, query_losses
from tff_mf.accounting.question import Question, SecretSampling
from tff_mf.accounting.secret import SecretRun, jensen_epsilon, larger, least
from tff_mf.base import validation
from tff_mf.base.errors import InputValueError
from tff_mf.mechanisms import Mechanism
from tff_mf.numerics import gaussian
from tff_mf.problem.draws import Cohorts, Draws
from tff_mf.problem.participation import MinSep, Participation
from tff_mf.sensitivities import sums

_MOMENTS = "moments of b-min-sep sampling"
_MOST_ENTRIES = 2**24
# What the package allows for the entries of C, and for sums of their products: δ grows with every entry.
_ENTRY_ERROR = 2.0**-36
# Above it, a round's variance leads to weights that are not computed with.
_LARGEST_VARIANCE = 60.0
# Of a logarithm of a sum of up to b + n probabilities.
_NEVER_ERROR = 1e-11
# Orders m of moments: the largest, and how many are tried at once, first of all and then around the best of them.
_MOST_ORDER, _ORDERS = 2000, 10
# Windows of so many rounds are computed with, or fewer, if the others grow alike but for this share of all growth; the
# rest grow as the last one can at most.
_MOST_ROUNDS, _ALIKE = 2**13, 1e-10
# Powers s, and shifts h as shares of the largest that makes sense.
_POWERS, _SHIFTS = np.geomspace(0.05, 5000, 140), (0.0, 0.5, 0.9)
# The largest q̃ that h leads to, and the largest h.
_MOST_CHANCE, _MOST_SHIFT = 0.99, 40.0
# Nothing is tried after an ε that exceeds the smallest by this factor.
_RISEN = 1.3
# Of tuples of ages: how many steps from one to another are computed with in all rounds, and how many ages in them; the
# next order that is tried; and the share of all weights that each tuple or age has at least, more than what underflows.
_MOST_STEPS, _MOST_AGES, _NEXT_ORDER, _LEAST_SHARE = 6e8, 2e7, 1.2, 1e-280
# Powers of the largest entries of the columns that are tried as a dominating column.
_SHAPES = (0.0, 0.25, 0.5, 0.75, 1.0)
# Of a sum in place of an integral: the step, how far it reaches, and the largest exponent that is computed with.
_STEP, _REACH, _LARGEST_EXPONENT = 0.5, 12.0, 600.0
# Exceed rounding errors: of the growth in a window, relative, beside 2⁻⁵⁰ for each of its rounds.
_GROWTH_SLACK = 1e-12
# Of a logarithm of a moment, and of inner products, relative.
_LOG_SLACK, _SLACK = 1e-12, 1e-9


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
        chain of `grid_charge.epsilon_of_chain`, if all clients join independently.
        Proof: docs/proofs.md.

    Attributes:
        min_sep: b, at least 2; with 1, sampling is `Poisson`.
        probability: p, above 0 and at most 1; `of_population` has it of a population.
        clients_per_round: Expected size of a cohort; only a grid needs it.

    Source: Dong and Ganesh (2026), "Privacy amplification for BandMF via b-min-sep subsampling", for the sampling;
    docs/proofs.md for ε.

    Example:
        >>> from tff_mf import BandedToeplitz, guarantee
        >>> run = (BandedToeplitz(column=[1.0, 0.5]), 20, BMinSep(min_sep=2, probability=0.05))
        >>> level = guarantee(*run, noise_multiplier=1.0).at(delta=1e-3)
        >>> level.theorem, level.bound
        ('moments of b-min-sep sampling', 'proved')
    """

    min_sep: int
    probability: float
    clients_per_round: float | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.min_sep < 2:
            raise InputValueError("min_sep=1 is Poisson sampling: take tff_mf.Poisson.")
        if self.probability > 1:
            raise InputValueError(f"probability={self.probability!r} must be at most 1.")

    @classmethod
    def of_population(cls, *, min_sep: int, population: int, clients_per_round: int) -> "BMinSep":
        """Returns the sampling with p = m/(P − m(b − 1)), at which cohorts have m clients on average.

        Example:
            >>> BMinSep.of_population(min_sep=11, population=1000, clients_per_round=10).probability
            0.011111111111111112
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
        return BMinSepRun(
            chain=chain,
            columns=columns_of(question.mechanism, rounds, self.min_sep),
            charge_of=question.charge_of(question.schema.max_participations, needs_bands=True),
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
class Chain:
    """The sampling of one client: n rounds, b ≥ 2, and p above 0 and at most 1.

    Before the first round a client is as after many: free with probability 1/(1 + (b − 1)p), and otherwise after j = 1,
    …, b − 1 rounds, each with p times that probability.
    """

    rounds: int
    min_sep: int
    probability: float

    @property
    def cohort_probability(self) -> float:
        """The probability of each round to have the client in its cohort."""
        return self.probability / (1 + (self.min_sep - 1) * self.probability)

    @property
    def start(self) -> np.ndarray:
        """The probability that the client is free after j = 0, …, b − 1 rounds, float64 `[b]`."""
        weights = np.full(self.min_sep, self.probability)
        weights[0] = 1.0
        return weights / (1 + (self.min_sep - 1) * self.probability)

    @property
    def log_never(self) -> float:
        """The logarithm of the probability that the client takes part in no round."""
        if self.probability == 1:
            waits = self.start[self.rounds :]
            return math.log(waits.sum()) if len(waits) else -math.inf
        left = np.maximum(self.rounds - np.arange(self.min_sep), 0)
        logs = np.log(self.start) + left * math.log1p(-self.probability)
        most = float(np.max(logs))
        return most + math.log(float(np.sum(np.exp(logs - most))))


@dataclasses.dataclass(frozen=True, kw_only=True)
class BMinSepRun(SecretRun):
    """The sampling, C, and what a grid costs."""

    chain: Chain
    columns: np.ndarray

    def unamplified_mu(self, columns: np.ndarray, sigma: float) -> float:
        """Returns μ of a client whose rounds are known: rounds that are b apart share no row of C."""
        best = sums.largest_sum(np.sum(columns**2, axis=1), min_sep=self.chain.min_sep, max_participations=len(columns))
        return gaussian.mu_of(math.sqrt(best) * (1 + _ENTRY_ERROR), sigma)

    def ideal(self, sigma: float, delta: float, *, change: float) -> Level:
        # No entry of C̃ is larger by more than the change of its column, and it is 0 where C has 0: inner products grow
        # with the entries.
        chain, columns = self.chain, (self.columns + change * (self.columns > 0)) * (1 + _ENTRY_ERROR)
        most = gaussian.epsilon_from_delta(delta, self.unamplified_mu(columns, sigma))
        remove, add = [(most, "unamplified")], [(most, "unamplified")]
        if 0 < most < math.inf and float(np.max(np.sum(columns**2, axis=1))) < _LARGEST_VARIANCE * sigma**2:
            name = _MOMENTS if columns.shape[1] > 1 else "Poisson sampling"
            to_remove, to_add = epsilons(columns / sigma, chain, delta=delta)
            remove.append((to_remove, name))
            # Z is at least the probability of no round at all.
            never = -chain.log_never * (1 + 1e-9) + _NEVER_ERROR
            add += [(to_add, name), (never, "no round"), (by_jensen(columns / sigma, chain, delta), "Jensen")]
        return larger(least("remove", delta, remove), least("add", delta, add))


def by_jensen(columns: np.ndarray, chain: Chain, delta: float) -> float:
    """Returns ε of the run without the client against the run with it, by theorem 7."""
    mean = np.zeros(chain.rounds)
    for offset in range(columns.shape[1]):
        mean[offset:] += columns[: chain.rounds - offset, offset]
    chance = chain.cohort_probability
    return jensen_epsilon(delta, chance**2 * float(mean @ mean), chance * float(np.sum(columns**2)))


def epsilons(columns: np.ndarray, chain: Chain, *, delta: float) -> tuple[float, float]:
    """Returns ε for the run with the client against the run without it, and for the opposite.

    Formal guarantee: not below those of b-min-sep sampling with columns of C/σ of at most these entries, including all
    rounding errors, by theorems 3 to 6.

    Args:
        columns: The columns of C/σ, from the diagonal down, at least 0 and not all 0, float64 `[rounds, bands]`.
        chain: The sampling; b is at least the number of bands.
        delta: δ.
    """
    if columns.shape[1] == 1:
        # In every round a client joins with at most p, whatever happened before, and rounds share no row.
        mu = gaussian.mu_of(math.sqrt(float(np.max(np.sum(columns**2, axis=1)))) * (1 + _SLACK), 1.0)
        return poisson_epsilons(chain.rounds, chain.probability, mu, delta)
    return _remove(columns, chain, delta), _add(products_of(columns), chain, delta)


def products_of(columns: np.ndarray) -> np.ndarray:
    """Returns the largest ⟨c_t, c_(t − d)⟩ of all t for d = 0, …, b̂ − 1, float64 `[bands]`."""
    rounds, bands = columns.shape
    products = [np.sum(columns[d:, : bands - d] * columns[: rounds - d, d:], axis=1) for d in range(bands)]
    return np.array([np.max(of_rounds, initial=0.0) for of_rounds in products])


def dominating(columns: np.ndarray) -> list[np.ndarray]:
    """Returns vectors a with Σ_i a_i·a_(i + d) ≥ ⟨c_t, c_(t − d)⟩ for all t and d ≥ 0, float64 `[bands]` each.

    Example:
        >>> [a.round(3).tolist() for a in dominating(np.array([[1.0, 0.5], [1.0, 0.5]]))][0]
        [0.791, 0.791]
    """
    products, bands = products_of(columns), columns.shape[1]
    dominating_columns = []
    for shape in _SHAPES:
        column = np.max(columns, axis=0) ** shape
        own = np.array([float(column[: bands - d] @ column[d:]) for d in range(bands)])
        # Where both are 0, nothing has to be dominated.
        scale = np.max(np.where(products > 0, products, 0.0) / np.where(own > 0, own, 1.0))
        if np.all(own[products > 0] > 0):
            dominating_columns.append(column * math.sqrt(scale) * (1 + _SLACK))
    return dominating_columns


def log_moments(column: np.ndarray, orders: np.ndarray, chain: Chain) -> np.ndarray:
    """Returns a bound on log E[Z^m] for each of some orders m, float64 `[orders]`; infinity where it is too large.

    By theorem 3 with a = `column`.

    The m-th power of a window is a sum of exponentials e^(λg) with positive weights and 0 ≤ λ ≤ m·√b̂·max a. For each,
    Poisson's summation formula has the sum with steps h exact to 2.1·e^(−2π²/h²) of its mean, 1e-33, and what is more
    than 12 below 0 or above λ is less than 1e-32 of it.
    """
    bands = len(column)
    # A row has the last round of its window at the diagonal.
    means = math.sqrt(bands) * column[::-1]
    largest = float(np.max(means))
    bounds = np.full(len(orders), math.inf)
    small = (orders * largest + _REACH) * largest < _LARGEST_EXPONENT
    if not np.any(small):
        return bounds
    powers = orders[small, np.newaxis].astype(float)
    points = np.arange(-_REACH, float(np.max(powers)) * largest + _REACH + _STEP, _STEP)
    ratios = np.exp(np.multiply.outer(means, points) - np.square(means)[:, np.newaxis] / 2)
    logs = math.log(_STEP / math.sqrt(2 * math.pi)) - np.square(points) / 2
    windows, longer = divmod(chain.rounds + bands - 1, bands)
    rest, scale, growth = np.ones((len(powers), chain.min_sep)), np.zeros(len(powers)), np.ones(len(powers))
    totals = []
    most_computed = min(windows + 1, max(1, _MOST_ROUNDS // bands))
    for left in range(most_computed, 0, -1):
        totals.append(scale + np.log(rest @ chain.start))
        before = _before_window(rest, ratios, chain.probability, powers, logs)
        growths = before / rest
        growth = np.max(growths, axis=1)
        most = np.max(before, axis=1)
        # With p = 1, what is left of one start soon underflows beside that of another.
        rest, scale = np.maximum(before / most[:, np.newaxis], _LEAST_SHARE), scale + np.log(most)
        # Nothing is lost by bounding all windows that are left by the last one.
        if np.all(left * np.log(growth / np.min(growths, axis=1)) <= _ALIKE * (scale + left * np.log(growth))):
            break
    totals.append(scale + np.log(rest @ chain.start))
    computed = len(totals) - 1
    # Of the rows modulo b̂, some have a window more.
    ends = [totals[min(k, computed)] + max(0, k - computed) * np.log(growth) for k in (windows, windows + 1)]
    bounds[small] = powers[:, 0] * ((bands - longer) * ends[0] + longer * ends[1]) / bands * (1 + _SLACK)
    return bounds


def _before_window(
    rest: np.ndarray, ratios: np.ndarray, probability: float, powers: np.ndarray, logs: np.ndarray
) -> np.ndarray:
    """Returns v before a window from v after it, rounded up, float64 `[orders, min_sep]`.

    `ratios` has W_r at each point, `[bands, points]`, `powers` the orders m, `[orders, 1]`, and `logs` the logarithms
    of the weights of the points.
    """
    (bands, _), apart = ratios.shape, rest.shape[1]
    before = np.empty_like(rest)
    before[:, bands:] = rest[:, : apart - bands]
    after = np.repeat(rest[:, :1], len(logs), axis=1)
    for r in range(bands - 1, -1, -1):
        joined = rest[:, apart - bands + r, np.newaxis] * ratios[r]
        after = joined if probability == 1 else (1 - probability) * after + probability * joined
        # Where it underflows to 0, other points have far more.
        with np.errstate(divide="ignore"):
            terms = powers * np.log(after) + logs
        top = np.max(terms, axis=1)
        before[:, r] = np.exp((top + np.log(np.sum(np.exp(terms - top[:, np.newaxis]), axis=1))) / powers[:, 0])
    return before * (1 + _GROWTH_SLACK + bands * 2.0**-50)


def log_moment_of_tuples(products: np.ndarray, order: int, chain: Chain) -> float | None:
    """Returns a bound on log E[Z^m], by all m-tuples of histories; `None` if there are too many tuples of ages.

    By theorem 5 with κ = `products`. The age of a history is the number of rounds since its last one, and 0 if it is
    free. In a round that it joins, a history has the product of 0 with each other that joins, and the product of its
    age with each that does not.
    """
    rounds, min_sep, probability = chain.rounds, chain.min_sep, chain.probability
    tuples = math.comb(min_sep + order - 1, order)
    # Compared as integers first, which can be too large for a float.
    if tuples * rounds > _MOST_STEPS or products[0] * order**2 / 2 > _LARGEST_EXPONENT:
        return None
    steps = tuples * (1 + order / min_sep)
    if steps * rounds > _MOST_STEPS or steps * order > _MOST_AGES:
        return None
    from scipy.special import gammaln

    # Of each tuple, in order: those that are free come first. Its place is its rank among all of them.
    ages = np.array(list(itertools.combinations_with_replacement(range(min_sep), order)))
    ranks = np.array([[math.comb(age + i, i + 1) for i in range(order)] for age in range(min_sep)])

    def place(ages: np.ndarray) -> np.ndarray:
        return np.sum(ranks[ages, np.arange(order)], axis=1)

    free, places = np.count_nonzero(ages == 0, axis=1), place(ages)
    products = np.append(products, np.zeros(min_sep - len(products))) * (1 + _SLACK)
    met = np.sum(products[ages] * (ages > 0), axis=1)
    # With p = 1 nobody stays.
    stays = math.log1p(-probability) if probability < 1 else 0.0
    before, after, weights = [], [], []
    for joins in range(order + 1):
        rows = free >= joins if probability < 1 else free == joins
        left = free[rows] - joins
        moved = np.where(ages > 0, (ages + 1) % min_sep, 0)[rows]
        moved[:, :joins] = 1
        moved.sort(axis=1)
        logs = gammaln(free[rows] + 1) - gammaln(joins + 1) - gammaln(left + 1) + joins * math.log(probability)
        logs += left * stays + joins * (joins - 1) / 2 * products[0] + joins * met[rows]
        before.append(places[rows])
        after.append(place(moved))
        weights.append(np.exp(logs))
    sources, targets, factors = (np.concatenate(arrays) for arrays in (before, after, weights))
    counts = np.stack([np.count_nonzero(ages == age, axis=1) for age in range(min_sep)], axis=1)
    logs = math.lgamma(order + 1) - np.sum(gammaln(counts + 1), axis=1) + np.sum(np.log(chain.start)[ages], axis=1)
    sums, log_scale = np.zeros(tuples), 0.0
    sums[places] = np.exp(logs)
    for _ in range(rounds):
        sums = np.bincount(targets, factors * np.maximum(sums, _LEAST_SHARE)[sources], minlength=tuples)
        total = float(np.sum(sums))
        sums, log_scale = sums / total, log_scale + math.log(total)
    return log_scale + (rounds + 1) * (order + 1) * _GROWTH_SLACK


def _remove(columns: np.ndarray, chain: Chain, delta: float) -> float:
    """Returns the smallest ε with E[Z^m]·e^(−(m − 1)ε)·(m − 1)^(m − 1)/m^m ≤ δ for some m, of windows or of tuples."""

    def tried(column: np.ndarray, low: float, high: float) -> tuple[float, float, float, float]:
        """Returns the smallest ε of a few orders, its order, and the orders beside it."""
        orders = np.unique(np.geomspace(low, high, _ORDERS).round().astype(int))
        moments = log_moments(column, orders, chain)
        values = [_of_moment(log, m - 1.0, delta) for log, m in zip(moments, orders, strict=True)]
        near = [orders[place] for place in np.clip(int(np.argmin(values)) + np.arange(-1, 2), 0, len(orders) - 1)]
        return min(values), float(near[1]), float(near[0]), float(near[2])

    first = [(*tried(column, 2, _MOST_ORDER), column) for column in dominating(columns)]
    smallest, order = min([(math.inf, 2.0), *(trial[:2] for trial in first)])
    # ε rises steeply beyond some orders, so that few of them hardly tell which column is best.
    for epsilon, best, low, high, column in first:
        while epsilon <= _RISEN * smallest < math.inf and high - low > 2:
            width = high - low
            epsilon, best, low, high = tried(column, low, high)
            smallest, order = min((smallest, order), (epsilon, best))
            if high - low >= width:
                break
    return min(smallest, _of_tuples(products_of(columns), int(order), chain, delta))


def _of_tuples(products: np.ndarray, order: int, chain: Chain, delta: float) -> float:
    """Returns the smallest ε by tuples, of orders from this one on; infinity if there are too many of them."""
    smallest = math.inf
    while (log := log_moment_of_tuples(products, order, chain)) is not None:
        epsilon = _of_moment(log, order - 1.0, delta)
        if epsilon > smallest:
            break
        smallest, order = epsilon, max(order + 1, round(order * _NEXT_ORDER))
    return smallest


def thinning(min_sep: int, probability: float) -> tuple[float, float]:
    """Returns q, with which a client takes each round of a set, and ρ, the probability of a round to be in the set.

    The gaps of the set are d with probability p/q·y_(d − b), where y_d = (1 − p)·y_(d − 1) − c·y_(d − b), y_0 = 1, and
    c = p(1 − q)/q; c is the largest for which no y_d is below 0.

    Example:
        >>> [round(value, 4) for value in thinning(2, 0.1)]
        [0.3306, 0.275]
    """
    log = min_sep * math.log1p(-probability) + (min_sep - 1) * math.log1p(-1 / min_sep) - math.log(min_sep)
    chance = probability / (probability + math.exp(log) * (1 - _SLACK))
    return chance, probability / (1 + (min_sep - 1) * probability) / chance


def log_inverse_moment(products: np.ndarray, s: float, share: float, chain: Chain) -> float | None:
    """Returns a bound on log E[Z^(−s)], by theorem 4 with κ = `products`, or `None` if it would take too long.

    Args:
        products: κ_d, float64 `[bands]`.
        s: s.
        share: h, as a share of sρqΔ.
        chain: The sampling.
    """
    if chain.probability == 1:
        return None
    bands, (chance, density) = len(products), thinning(chain.min_sep, chain.probability)
    if chance == 1:
        return None
    power = s * density * (1 + _SLACK)
    room = (bands - 1) * products[0] * (1 - _SLACK) - 2 * np.sum(products[1:]) * (1 + _SLACK)
    if share and not room > 0:
        return None
    # q̃ is chosen, and h is what leads to it.
    shifted, cost = chance, 0.0
    if share:
        odds = chance / (1 - chance) * math.exp(min(share * power * chance * room, _MOST_SHIFT))
        shifted = min(odds / (1 + odds), max(chance, _MOST_CHANCE))
        log = math.log1p(-chance) - math.log1p(-shifted)
        h = math.log(shifted / chance) + log
        cost = h * h / (2 * room) - power * log + _LOG_SLACK * (h * h / room + power)
    nodes = query_losses(shifted, math.sqrt(products[0]) * (1 + _SLACK))[1](power * bands, 0.0)
    if nodes is None:
        return None
    each = nodes.log_moment(power * bands) + _LOG_SLACK * (1 + power * bands)
    return chain.rounds * (cost + each / bands) + chain.rounds / bands * each * _SLACK


def _add(products: np.ndarray, chain: Chain, delta: float) -> float:
    """Returns the smallest ε with E[Z^(−s)]·e^(−sε)·s^s/(1 + s)^(1 + s) ≤ δ for some s."""
    smallest = math.inf
    for s in _POWERS:
        logs = [log_inverse_moment(products, float(s), share, chain) for share in _SHIFTS]
        values = [_of_moment(log, float(s), delta) for log in logs if log is not None]
        if not values:
            break
        smallest = min(smallest, *values)
        if min(values) > _RISEN * smallest:
            break
    return smallest


def _of_moment(log: float, s: float, delta: float) -> float:
    """Returns ε at δ from a bound on log E[e^(sL)]: (1 − e^(ε − L))₊ is at most e^(s(L − ε))·s^s/(1 + s)^(1 + s)."""
    height = log - math.log(delta) + s * math.log(s) - (1 + s) * math.log1p(s)
    # The maximum of 0 and of NaN is 0.
    return max(0.0, height / s * (1 + _SLACK) + _LOG_SLACK) if height < math.inf else math.inf
