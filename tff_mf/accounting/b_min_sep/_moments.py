"""Bounds of b-min-sep sampling without samples: moments of the likelihood ratio Z, as if its rows were independent.

docs/amplification.md has the theorems. With a C of b̂ bands, a ≥ 0 a column that dominates all columns of C/σ, p the
probability to join, and integers m ≥ 2,

    E[Z^m] ≤ E[(1 − b̂p + p·Σ_i exp(√b̂·a_i·g − b̂·a_i²/2))^m]^((n + b̂ − 1)/b̂),    g ~ N(0, 1),

which bounds δ of the run with the client against the run without it. For the opposite, a stationary set of rounds, each
in it with probability ρ, of which a client takes each with probability q, leads to

    E[Z^(−s)] ≤ E[(1 − q + q·exp(μg − μ²/2))^(−sρb̂)]^(n/b̂),    s > 0.
"""

import math

import numpy as np

from tff_mf.accounting.poisson import poisson_epsilons, query_losses
from tff_mf.numerics import gaussian

# Orders m of moments, and s; none is tried after one whose ε exceeds the smallest by this factor.
_ORDERS = np.unique(np.geomspace(2, 2000, 110).astype(int))
_POWERS = np.geomspace(0.05, 5000, 140)
_RISEN = 1.3
# Powers of the largest entries of the columns that are tried as a dominating column.
_SHAPES = (0.0, 0.25, 0.5, 0.75, 1.0)
# Of a sum in place of an integral: the step, how far it reaches, and the largest exponent that is computed with.
_STEP, _REACH, _LARGEST_EXPONENT = 0.5, 12.0, 600.0
# Exceed rounding errors: of a logarithm of a moment, and of inner products, relative.
_LOG_SLACK, _SLACK = 1e-12, 1e-9


def epsilons(
    columns: np.ndarray, *, min_sep: int, probability: float, delta: float, most: float
) -> tuple[float, float]:
    """Returns ε ≤ `most` for the run with the client against the run without it, and for the opposite.

    Formal guarantee: not below those of b-min-sep sampling with columns of C/σ of at most these entries, including all
    rounding errors; docs/amplification.md has the proofs.

    Args:
        columns: The columns of C/σ, from the diagonal down, at least 0, float64 `[rounds, bands]`.
        min_sep: b, at least the number of bands.
        probability: p.
        delta: δ.
        most: An ε that is known otherwise.
    """
    rounds, bands = columns.shape
    mu = gaussian.mu_of(math.sqrt(float(np.max(np.sum(columns**2, axis=1)))) * (1 + _SLACK), 1.0)
    if probability == 1 or mu == 0:
        return most, most
    if bands == 1:
        # In every round a client joins with at most p, whatever happened before, and rounds share no row.
        remove, add = poisson_epsilons(rounds, probability, mu, delta)
        return min(remove, most), min(add, most)
    remove = min(_remove(column, rounds, probability, delta) for column in dominating(columns))
    add = _add(mu, delta, rounds=rounds, bands=bands, min_sep=min_sep, probability=probability)
    return min(remove, most), min(add, most)


def dominating(columns: np.ndarray) -> list[np.ndarray]:
    """Returns vectors a with Σ_i a_i·a_(i + d) ≥ ⟨c_t, c_(t − d)⟩ for all t and d ≥ 0, float64 `[bands]` each.

    Example:
        >>> [a.round(3).tolist() for a in dominating(np.array([[1.0, 0.5], [1.0, 0.5]]))][0]
        [0.791, 0.791]
    """
    rounds, bands = columns.shape
    products = np.array(
        [
            np.max(np.sum(columns[d:, : bands - d] * columns[: rounds - d, d:], axis=1), initial=0.0)
            for d in range(bands)
        ]
    )
    found = []
    for shape in _SHAPES:
        column = np.max(columns, axis=0) ** shape
        own = np.array([float(column[: bands - d] @ column[d:]) for d in range(bands)])
        # Where both are 0, nothing has to be dominated.
        scale = np.max(np.where(products > 0, products, 0.0) / np.where(own > 0, own, 1.0))
        if np.all(own[products > 0] > 0):
            found.append(column * math.sqrt(scale) * (1 + _SLACK))
    return found


def log_moment(column: np.ndarray, probability: float, order: int) -> float:
    """Returns a bound on log E[(1 − b̂p + p·Σ_i exp(√b̂·a_i·g − b̂·a_i²/2))^m]; infinity if it is too large.

    The power is a sum of exponentials e^(λg) with positive weights and 0 ≤ λ ≤ m·√b̂·max a. For each, Poisson's
    summation formula has the sum with steps h exact to 2.1·e^(−2π²/h²) of its mean, 1e-33, and what is more than 12
    below 0 or above λ is less than 1e-32 of it.
    """
    means = math.sqrt(len(column)) * column
    largest = float(np.max(means))
    end = order * largest + _REACH
    if not end * largest < _LARGEST_EXPONENT:
        return math.inf
    points = np.arange(-_REACH, end + _STEP, _STEP)
    rises = probability * np.sum(np.expm1(np.multiply.outer(points, means) - np.square(means) / 2), axis=1)
    # Not below the least that is possible, by rounding.
    powers = order * np.log1p(np.maximum(rises, 2.0**-50 - 1))
    logs = powers - np.square(points) / 2 + math.log(_STEP / math.sqrt(2 * math.pi))
    top = float(np.max(logs))
    if np.max(powers) < 1:
        found = math.log1p(float(np.sum(np.exp(logs - powers) * np.expm1(powers))))
    else:
        found = top + math.log(float(np.sum(np.exp(logs - top))))
    return found + _LOG_SLACK * (1 + abs(top) + order)


def _remove(column: np.ndarray, rounds: int, probability: float, delta: float) -> float:
    """Returns the smallest ε with E[Z^m]·e^(−(m − 1)ε)·(m − 1)^(m − 1)/m^m ≤ δ for some m."""
    bands = len(column)
    if bands * probability > 1:
        return math.inf
    found = math.inf
    for order in _ORDERS:
        log = log_moment(column, probability, int(order)) * (rounds + bands - 1) / bands
        if not log < math.inf:
            break
        epsilon = _of_moment(log, order - 1.0, delta)
        found = min(found, epsilon)
        if epsilon > _RISEN * found:
            break
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
    chance, density = thinning(min_sep, probability)
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
