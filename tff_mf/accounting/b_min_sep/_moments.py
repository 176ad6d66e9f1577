"""Bounds of b-min-sep sampling without samples: moments of the likelihood ratio Z.

docs/proofs/amplification.md has the theorems. Let C have b̂ bands, and a ≥ 0 be a column that dominates all columns
of C/σ. For the run with the client against the run without it, and an integer m ≥ 2, E[Z^m] is bounded by windows of
b̂ rounds, one after the other, from the last: v(w) bounds the growth of a client who has to wait for w rounds, and in
a window becomes

    v(w) ← ‖(1 − p)^(b̂ − w)·v(0) + Σ_(r ≥ w) p·(1 − p)^(r − w)·W_r·v(b − b̂ + r)‖_m,    w < b̂,

with the lognormal W_r of its rounds r, and v(w) ← v(w − b̂) otherwise. Where few bands or a small m leave few tuples
of ages, E[Z^m] is summed over all m-tuples of histories. For the opposite, a stationary set of rounds, each in it with
probability ρ, of which a client takes each with probability q, leads to

    E[Z^(−s)] ≤ E[(1 − q + q·exp(μg − μ²/2))^(−sρb̂)]^(n/b̂),    s > 0,    g ~ N(0, 1).
"""

import itertools
import math

import numpy as np

from tff_mf.accounting.b_min_sep._samples import Chain
from tff_mf.accounting.poisson import poisson_epsilons, query_losses
from tff_mf.numerics import gaussian

# Orders m of moments: the largest, and how many are tried at once, first of all and then around the best of them.
_MOST_ORDER, _ORDERS = 2000, 10
# Windows of so many rounds are computed with, or fewer, if the others grow alike but for this share of all growth; the
# rest grow as the last one can at most.
_MOST_ROUNDS, _ALIKE = 2**13, 1e-10
# Powers s.
_POWERS = np.geomspace(0.05, 5000, 140)
# Nothing is tried after an ε that exceeds the smallest by this factor.
_RISEN = 1.3
# Of tuples of ages: how many steps from one to another are computed with in all rounds, and how many ages in them; the
# next order that is tried; and the share of all weights that each tuple has at least, more than what underflows.
_MOST_STEPS, _MOST_AGES, _NEXT_ORDER, _LEAST_SHARE = 6e8, 2e7, 1.2, 1e-280
# Powers of the largest entries of the columns that are tried as a dominating column.
_SHAPES = (0.0, 0.25, 0.5, 0.75, 1.0)
# Of a sum in place of an integral: the step, how far it reaches, and the largest exponent that is computed with.
_STEP, _REACH, _LARGEST_EXPONENT = 0.5, 12.0, 600.0
# Exceed rounding errors: of the growth in a window, relative, beside 2⁻⁵⁰ for each of its rounds.
_GROWTH_SLACK = 1e-12
# Of a logarithm of a moment, and of inner products, relative.
_LOG_SLACK, _SLACK = 1e-12, 1e-9


def epsilons(
    columns: np.ndarray, *, min_sep: int, probability: float, delta: float, most: float
) -> tuple[float, float]:
    """Returns ε ≤ `most` for the run with the client against the run without it, and for the opposite.

    Formal guarantee: not below those of b-min-sep sampling with columns of C/σ of at most these entries, including all
    rounding errors; docs/proofs/amplification.md has the proofs.

    Args:
        columns: The columns of C/σ, from the diagonal down, at least 0, float64 `[rounds, bands]`.
        min_sep: b, at least the number of bands.
        probability: p.
        delta: δ.
        most: An ε that is known otherwise.
    """
    rounds, bands = columns.shape
    mu = gaussian.mu_of(math.sqrt(float(np.max(np.sum(columns**2, axis=1)))) * (1 + _SLACK), 1.0)
    if mu == 0:
        return most, most
    if bands == 1:
        # In every round a client joins with at most p, whatever happened before, and rounds share no row.
        remove, add = poisson_epsilons(rounds, probability, mu, delta)
        return min(remove, most), min(add, most)
    setting = {"rounds": rounds, "min_sep": min_sep, "probability": probability}
    remove = _remove(columns, delta, **setting)
    add = _add(mu, delta, bands=bands, **setting)
    return min(remove, most), min(add, most)


def products_of(columns: np.ndarray) -> np.ndarray:
    """Returns the largest ⟨c_t, c_(t − d)⟩ of all t for d = 0, …, b̂ − 1, float64 `[bands]`."""
    rounds, bands = columns.shape
    products = [np.sum(columns[d:, : bands - d] * columns[: rounds - d, d:], axis=1) for d in range(bands)]
    return np.array([np.max(each, initial=0.0) for each in products])


def dominating(columns: np.ndarray) -> list[np.ndarray]:
    """Returns vectors a with Σ_i a_i·a_(i + d) ≥ ⟨c_t, c_(t − d)⟩ for all t and d ≥ 0, float64 `[bands]` each.

    Example:
        >>> [a.round(3).tolist() for a in dominating(np.array([[1.0, 0.5], [1.0, 0.5]]))][0]
        [0.791, 0.791]
    """
    products, bands = products_of(columns), columns.shape[1]
    found = []
    for shape in _SHAPES:
        column = np.max(columns, axis=0) ** shape
        own = np.array([float(column[: bands - d] @ column[d:]) for d in range(bands)])
        # Where both are 0, nothing has to be dominated.
        scale = np.max(np.where(products > 0, products, 0.0) / np.where(own > 0, own, 1.0))
        if np.all(own[products > 0] > 0):
            found.append(column * math.sqrt(scale) * (1 + _SLACK))
    return found


def log_moments(column: np.ndarray, orders: np.ndarray, *, rounds: int, min_sep: int, probability: float) -> np.ndarray:
    """Returns a bound on log E[Z^m] for each of some orders m, float64 `[orders]`; infinity where it is too large.

    The m-th power of a window is a sum of exponentials e^(λg) with positive weights and 0 ≤ λ ≤ m·√b̂·max a. For each,
    Poisson's summation formula has the sum with steps h exact to 2.1·e^(−2π²/h²) of its mean, 1e-33, and what is more
    than 12 below 0 or above λ is less than 1e-32 of it.
    """
    bands = len(column)
    # A row has the last round of its window at the diagonal.
    means = math.sqrt(bands) * column[::-1]
    largest = float(np.max(means))
    found = np.full(len(orders), math.inf)
    small = (orders * largest + _REACH) * largest < _LARGEST_EXPONENT
    if not np.any(small):
        return found
    powers = orders[small, np.newaxis].astype(float)
    points = np.arange(-_REACH, float(np.max(powers)) * largest + _REACH + _STEP, _STEP)
    ratios = np.exp(np.multiply.outer(means, points) - np.square(means)[:, np.newaxis] / 2)
    logs = math.log(_STEP / math.sqrt(2 * math.pi)) - np.square(points) / 2
    start = Chain(rounds=rounds, min_sep=min_sep, probability=probability).start
    windows, longer = divmod(rounds + bands - 1, bands)
    rest, scale, growth = np.ones((len(powers), min_sep)), np.zeros(len(powers)), np.ones(len(powers))
    totals = []
    most_computed = min(windows + 1, max(1, _MOST_ROUNDS // bands))
    for left in range(most_computed, 0, -1):
        totals.append(scale + np.log(rest @ start))
        before = _before_window(rest, ratios, probability, powers, logs)
        growths = before / rest
        growth = np.max(growths, axis=1)
        most = np.max(before, axis=1)
        rest, scale = before / most[:, np.newaxis], scale + np.log(most)
        # Nothing is lost by bounding all windows that are left by the last one.
        if np.all(left * np.log(growth / np.min(growths, axis=1)) <= _ALIKE * (scale + left * np.log(growth))):
            break
    totals.append(scale + np.log(rest @ start))
    computed = len(totals) - 1
    # Of the rows modulo b̂, some have a window more.
    ends = [totals[min(k, computed)] + max(0, k - computed) * np.log(growth) for k in (windows, windows + 1)]
    found[small] = powers[:, 0] * ((bands - longer) * ends[0] + longer * ends[1]) / bands * (1 + _SLACK)
    return found


def _before_window(
    rest: np.ndarray, ratios: np.ndarray, probability: float, powers: np.ndarray, logs: np.ndarray
) -> np.ndarray:
    """Returns v before a window from v after it, rounded up, float64 `[orders, min_sep]`.

    `ratios` has W_r at each point, `[bands, points]`, `powers` the orders m, `[orders, 1]`, and `logs` the logarithms
    of the weights of the points.
    """
    (bands, _), apart = ratios.shape, rest.shape[1]
    found = np.empty_like(rest)
    found[:, bands:] = rest[:, : apart - bands]
    after = np.repeat(rest[:, :1], len(logs), axis=1)
    for r in range(bands - 1, -1, -1):
        joined = rest[:, apart - bands + r, np.newaxis] * ratios[r]
        after = joined if probability == 1 else (1 - probability) * after + probability * joined
        terms = powers * np.log(after) + logs
        top = np.max(terms, axis=1)
        found[:, r] = np.exp((top + np.log(np.sum(np.exp(terms - top[:, np.newaxis]), axis=1))) / powers[:, 0])
    return found * (1 + _GROWTH_SLACK + bands * 2.0**-50)


def log_moment_of_tuples(
    products: np.ndarray, order: int, *, rounds: int, min_sep: int, probability: float
) -> float | None:
    """Returns a bound on log E[Z^m], by all m-tuples of histories; `None` if there are too many tuples of ages.

    The age of a history is the number of rounds since its last one, and 0 if it is free. In a round that it joins, a
    history has the product of 0 with each other that joins, and the product of its age with each that does not.
    """
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
    sources, targets, factors = (np.concatenate(each) for each in (before, after, weights))
    start = Chain(rounds=rounds, min_sep=min_sep, probability=probability).start
    counts = np.stack([np.count_nonzero(ages == age, axis=1) for age in range(min_sep)], axis=1)
    logs = math.lgamma(order + 1) - np.sum(gammaln(counts + 1), axis=1) + np.sum(np.log(start)[ages], axis=1)
    sums, log_scale = np.zeros(tuples), 0.0
    sums[places] = np.exp(logs)
    for _ in range(rounds):
        sums = np.bincount(targets, factors * np.maximum(sums, _LEAST_SHARE)[sources], minlength=tuples)
        total = float(np.sum(sums))
        sums, log_scale = sums / total, log_scale + math.log(total)
    return log_scale + (rounds + 1) * (order + 1) * _GROWTH_SLACK


def _remove(columns: np.ndarray, delta: float, **setting) -> float:
    """Returns the smallest ε with E[Z^m]·e^(−(m − 1)ε)·(m − 1)^(m − 1)/m^m ≤ δ for some m, of windows or of tuples."""

    def tried(column: np.ndarray, low: float, high: float) -> tuple[float, float, float, float]:
        """Returns the smallest ε of a few orders, its order, and the orders beside it."""
        orders = np.unique(np.geomspace(low, high, _ORDERS).round().astype(int))
        moments = log_moments(column, orders, **setting)
        found = [_of_moment(log, m - 1.0, delta) for log, m in zip(moments, orders, strict=True)]
        near = [orders[place] for place in np.clip(int(np.argmin(found)) + np.arange(-1, 2), 0, len(orders) - 1)]
        return min(found), float(near[1]), float(near[0]), float(near[2])

    first = [(*tried(column, 2, _MOST_ORDER), column) for column in dominating(columns)]
    found, order = min([(math.inf, 2.0), *(each[:2] for each in first)])
    # ε rises steeply beyond some orders, so that few of them hardly tell which column is best.
    for epsilon, best, low, high, column in first:
        while epsilon <= _RISEN * found < math.inf and high - low > 2:
            width = high - low
            epsilon, best, low, high = tried(column, low, high)
            found, order = min((found, order), (epsilon, best))
            if high - low >= width:
                break
    return min(found, _of_tuples(products_of(columns), int(order), delta, **setting))


def _of_tuples(products: np.ndarray, order: int, delta: float, **setting) -> float:
    """Returns the smallest ε by tuples, of orders from this one on; infinity if there are too many of them."""
    found = math.inf
    while (log := log_moment_of_tuples(products, order, **setting)) is not None:
        epsilon = _of_moment(log, order - 1.0, delta)
        if epsilon > found:
            break
        found, order = epsilon, max(order + 1, round(order * _NEXT_ORDER))
    return found


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


def log_inverse_moment(
    mu: float, s: float, *, rounds: int, bands: int, min_sep: int, probability: float
) -> float | None:
    """Returns a bound on log E[Z^(−s)], or `None` if it would take too long."""
    if probability == 1:
        return None
    chance, density = thinning(min_sep, probability)
    if chance == 1:
        return None
    power = s * density * bands * (1 + _SLACK)
    nodes = query_losses(chance, mu)[1].nodes(power, 0.0)
    if nodes is None:
        return None
    return (nodes.log_moment(power) + _LOG_SLACK * (1 + power)) * rounds / bands * (1 + _SLACK)


def _add(mu: float, delta: float, **setting) -> float:
    """Returns the smallest ε with E[Z^(−s)]·e^(−sε)·s^s/(1 + s)^(1 + s) ≤ δ for some s."""
    found = math.inf
    for s in _POWERS:
        log = log_inverse_moment(mu, float(s), **setting)
        if log is None:
            break
        epsilon = _of_moment(log, float(s), delta)
        found = min(found, epsilon)
        if epsilon > _RISEN * found:
            break
    return found


def _of_moment(log: float, s: float, delta: float) -> float:
    """Returns ε at δ from a bound on log E[e^(sL)]: (1 − e^(ε − L))₊ is at most e^(s(L − ε))·s^s/(1 + s)^(1 + s)."""
    height = log - math.log(delta) + s * math.log(s) - (1 + s) * math.log1p(s)
    return max(0.0, height / s * (1 + _SLACK) + _LOG_SLACK)
