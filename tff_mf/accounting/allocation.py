"""Likelihood ratios on finitely many points, above the true ones in convex order: δ computed from them is a bound.

Theorem 7 of docs/proofs/amplification.md.
"""

import dataclasses
import functools
import math

import numpy as np

from tff_mf.numerics import gaussian

# Points of a grid.
_POINTS = 1200
# Shares of δ: probability to the left of a grid, and expectation to its right.
_LEFT, _RIGHT = 1e-4, 1e-6
# A grid extends beyond what a first, coarse look finds by this share of its width.
_MARGIN = 0.03
# Quotients of two points from here to its inverse do not overflow; those beyond are moved to the ends, at the same
# charge as elsewhere.
_LOWEST = 1e-140
# Pairs of points in memory at a time.
_CHUNK = 2**20
# Rounding errors of points, as an amount of ε, and of probabilities, as a share of δ.
_LOSS_SLACK, _DELTA_SLACK = 1e-8, 1e-7
# Relative width of the interval in which ε is found, and the share of the largest below which it ends.
_TOLERANCE, _LEAST = 1e-12, 1e-12
# Outside, exp overflows, or the slack for rounding errors exceeds ε.
_LEAST_MU, _MOST_MU = 1e-5, 12.0


@dataclasses.dataclass(frozen=True, kw_only=True)
class Atoms:
    """A distribution on finitely many points z ≥ 0.

    Attributes:
        points: float64 `[points]`, increasing, from 0.
        masses: Probability of each, float64 `[points]`.
        spill: Bound on the expectation of what was cut off to the right: Z is at most Z′ + R with E[R] ≤ `spill` and Z′
            distributed on the points.
        rounding: Bound on the relative error of each probability.
    """

    points: np.ndarray
    masses: np.ndarray
    spill: float
    rounding: float

    @classmethod
    def lognormal(cls, mu: float, near: float) -> "Atoms":
        """Returns the likelihood ratio of one Gaussian release, exp(μg − μ²/2), on a grid.

        Args:
            mu: μ, above 0.
            near: A δ of the size that is of interest.
        """
        from scipy.special import ndtr

        top = gaussian.epsilon_from_delta(near * _RIGHT, mu) + mu
        low = -mu * mu / 2 - mu * math.sqrt(-2 * math.log(near * _LEFT)) - mu
        logs = np.linspace(low, top, _POINTS)
        at = np.concatenate([[-np.inf], logs / mu + mu / 2, [np.inf]])
        # Differences of whichever tail is small.
        masses, means = (
            np.where(x[:-1] < 0, ndtr(x[1:]) - ndtr(x[:-1]), ndtr(-x[:-1]) - ndtr(-x[1:])) for x in (at, at - mu)
        )
        points = np.concatenate([[0.0], np.exp(logs)])
        # The mean of an interval is inside it; elsewhere, it is rounded.
        middles = np.clip(means[:-1] / np.maximum(masses[:-1], 1e-300), points[:-1], points[1:])
        share = (middles - points[:-1]) / np.diff(points)
        found = np.zeros(len(points))
        found[:-1] += masses[:-1] * (1 - share)
        found[1:] += masses[:-1] * share
        found[-1] += masses[-1]
        return cls(points=points, masses=found, spill=float(means[-1]), rounding=1e-9)

    def plus(self, other: "Atoms", near: float) -> "Atoms":
        """Returns the sum of two independent variables, on a grid of its own, uniform in the logarithm."""
        one = self
        if len(one.points) > len(other.points):
            one, other = other, one
        height = max(1, _CHUNK // len(other.points))
        starts = range(0, len(one.points), height)
        points = _grid(one, other, near)
        step = math.log(points[-1] / points[1]) / (len(points) - 2)
        found, extra = np.zeros(len(points)), 0.0
        for start in starts:
            rows = slice(start, start + height)
            sums = np.add.outer(one.points[rows], other.points).ravel()
            masses = np.multiply.outer(one.masses[rows], other.masses).ravel()
            beyond = np.maximum(sums - points[-1], 0.0)
            extra += float(masses @ beyond)
            sums -= beyond
            place = np.log(np.maximum(sums, points[1] * 0.5) / points[1]) / step
            index = np.clip(place.astype(np.int64) + 1, 1, len(points) - 2)
            index[sums < points[1]] = 0
            # Where the logarithm is rounded, a point can be in the interval beside: then both ends are moved.
            index += (sums > points[index + 1]) & (index < len(points) - 2)
            index -= (sums < points[index]) & (index > 0)
            share = np.clip((sums - points[index]) / (points[index + 1] - points[index]), 0.0, 1.0)
            upper = masses * share
            found += np.bincount(index + 1, upper, minlength=len(points))
            found += np.bincount(index, masses - upper, minlength=len(points))
        # Each mass is a sum of at most this many products, which are sums themselves.
        rounding = one.rounding + other.rounding + (len(one.points) * len(other.points) + 64) * 2.0**-53
        return Atoms(
            points=points, masses=found, spill=(one.spill + other.spill + extra) * (1 + 1e-9), rounding=rounding
        )

    def scaled(self, factor: float) -> "Atoms":
        """Returns the variable times a factor."""
        return dataclasses.replace(self, points=self.points * factor, spill=self.spill * factor)

    def mean_of(self, count: int, near: float) -> "Atoms":
        """Returns the mean of `count` independent copies."""
        found, power, left = None, self, count
        while left:
            if left % 2:
                found = power if found is None else found.plus(power, near)
            left //= 2
            if left:
                power = power.plus(power, near)
        assert found is not None
        return found.scaled(1 / count)

    def delta(self, epsilon: float, *, remove: bool) -> float:
        """Returns a bound of E[(Z − e^ε)₊], or of E[(1 − e^ε·Z)₊].

        Formal guarantee: not below them, including rounding errors.
        """
        level = math.exp(min(epsilon - _LOSS_SLACK, 700.0))
        # Where the product overflows, the height is 0 in either case.
        with np.errstate(over="ignore"):
            heights = self.points - level if remove else 1 - level * self.points
        value = float(self.masses @ np.maximum(heights, 0.0)) + (self.spill if remove else 0.0)
        return value * (1 + self.rounding + _DELTA_SLACK) + 1e-290

    def epsilon(self, delta: float, *, most: float, remove: bool) -> float:
        """Returns ε ≤ `most` at which the bound of one direction is at most δ, or infinity."""
        if self.delta(most, remove=remove) > delta:
            return math.inf
        low, high = 0.0, most
        while high - low > _TOLERANCE * high and high > _LEAST * most:
            middle = (low + high) / 2
            low, high = (low, middle) if self.delta(middle, remove=remove) <= delta else (middle, high)
        return high


def _grid(one: Atoms, other: Atoms, near: float) -> np.ndarray:
    """Returns 0 and points that are uniform in the logarithm, with little beyond either end; any points are valid."""
    coarse = [_thinned(each) for each in (one, other)]
    sums = np.add.outer(coarse[0][0], coarse[1][0]).ravel()
    masses = np.multiply.outer(coarse[0][1], coarse[1][1]).ravel()
    order = np.argsort(sums)
    sums, masses = sums[order], masses[order]
    below = int(np.searchsorted(np.cumsum(masses), near * _LEFT))
    low = max(sums[min(below, len(sums) - 1)], _LOWEST)
    # Expectation of what is beyond each point.
    tail, means = np.cumsum(masses[::-1])[::-1], np.cumsum((masses * sums)[::-1])[::-1]
    scale = float(masses @ sums)
    beyond = means - tail * sums
    high = np.clip(sums[np.argmax(beyond <= near * _RIGHT * scale)], low, 1 / _LOWEST)
    wider = max(high / low, 1 + 1e-6) ** _MARGIN
    return np.concatenate([[0.0], np.geomspace(low / wider, min(high * wider, 1 / _LOWEST), _POINTS)])


def _thinned(atoms: Atoms) -> tuple[np.ndarray, np.ndarray]:
    """Returns about 300 points with the masses around them, and the same mean, for a first look."""
    places = np.arange(0, len(atoms.points), max(1, len(atoms.points) // 300))
    masses = np.add.reduceat(atoms.masses, places)
    means = np.add.reduceat(atoms.masses * atoms.points, places)
    return np.where(masses > 0, means / np.maximum(masses, 1e-300), atoms.points[places]), masses


@functools.lru_cache(maxsize=64)
def one_of_many(count: int, mu: float, delta: float) -> Atoms | None:
    """Returns the likelihood ratio of Gaussian releases of which one, chosen at random, has a client in it.

    Formal guarantee: above the mean of `count` independent exp(μg − μ²/2) in convex order.

    Args:
        count: Number of releases.
        mu: μ of each.
        delta: A δ of the size that is of interest; it determines where points are, not whether the result is right.

    Returns:
        Its distribution, or `None` if μ is too small or too large to compute with.

    Example:
        >>> atoms = one_of_many(10, 1.0, 1e-6)
        >>> round(atoms.epsilon(1e-6, most=4.5, remove=True), 2)
        2.65
    """
    if not _LEAST_MU <= mu <= _MOST_MU:
        return None
    return Atoms.lognormal(mu, delta).mean_of(count, delta)
