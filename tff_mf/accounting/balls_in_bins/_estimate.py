"""Estimates of ε without a certificate, smooth in the parameters of C: for optimizers, and for where to certify."""

import dataclasses
import functools
import math

import numpy as np

from tff_mf.accounting.balls_in_bins._pair import Pair, dominating_pair
from tff_mf.accounting.betting import gaussian_delta, log_mean_exp
from tff_mf.base import validation
from tff_mf.base.errors import InputValueError
from tff_mf.numerics import gaussian

# Tilts of the proposals, used in equal shares.
_TILTS = (1.0, 1.5, 2.2, 3.2, 5.0, 8.0)
_SAMPLES = 3072
_SEED = 20_240_611
_TOLERANCE = 1e-7
# For far smaller or larger ones, roots are searched for in vain.
_LEAST_EPSILON, _MOST_EPSILON = 1e-6, 1e5


@dataclasses.dataclass(frozen=True, kw_only=True)
class EstimatedEpsilon:
    """An estimate of ε; not a guarantee.

    Attributes:
        epsilon: The larger of both directions.
        remove: ε for the run with the client against the run without it.
        add: ε for the run without the client against the run with it.
    """

    epsilon: float
    remove: float
    add: float


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Losses:
    """Samples of L′ of both directions, with the logarithms of their weights."""

    mu: float
    remove: np.ndarray
    log_weights: np.ndarray
    add: np.ndarray

    def remove_delta(self, epsilon: float) -> float:
        # Either factor alone can overflow.
        weights = np.exp(self.remove + self.log_weights)
        return float(np.mean(weights * gaussian_delta(epsilon - self.remove, self.mu)))

    def add_delta(self, epsilon: float) -> float:
        return float(np.mean(gaussian_delta(epsilon + self.add, self.mu)))


class BallsInBinsEstimator:
    """Estimates ε and σ of balls-in-bins sampling for one G, always with the same random numbers.

    A result is off by about 0.3 % of ε, almost the same for similar G, so that differences between similar mechanisms
    are much more accurate. It is no guarantee: `tff_mf.guarantee` with `tff_mf.BallsInBins` gives one.

    Args:
        gram: G as `balls_in_bins_gram` returns it, float64 `[bins, bins]`.

    Example:
        >>> from tff_mf import BLT, balls_in_bins_gram
        >>> gram = balls_in_bins_gram(BLT(theta=[0.9], omega=[0.1]), 60, bins=20)
        >>> estimator = BallsInBinsEstimator(gram)
        >>> sigma = estimator.noise_multiplier(epsilon=2.0, delta=1e-6)
        >>> abs(estimator.epsilon(noise_multiplier=sigma, delta=1e-6).epsilon - 2) < 1e-3
        True

    Raises:
        InputValueError: If G is not a square matrix of finite numbers.
    """

    def __init__(self, gram: np.ndarray):
        gram = np.asarray(gram, dtype=np.float64)
        if gram.ndim != 2 or gram.shape[0] != gram.shape[1] or not len(gram) or not np.all(np.isfinite(gram)):
            raise InputValueError(
                f"gram has the shape {gram.shape}: pass the matrix of tff_mf.accounting.balls_in_bins_gram."
            )
        self._pair: Pair = dominating_pair(gram, relative_error=0.0)
        self._largest = float(np.max(np.diagonal(gram)))
        normals, self._groups = _random_numbers(len(gram))
        self._normal = normals @ self._pair.root

    def epsilon(self, *, noise_multiplier: float, delta: float) -> EstimatedEpsilon:
        """Returns an estimate of ε at δ for the noise multiplier σ."""
        sigma, delta = validation.positive("noise_multiplier", noise_multiplier), validation.open_unit("delta", delta)
        losses = self._losses(sigma)
        remove, add = self._epsilons(losses, sigma, delta)
        return EstimatedEpsilon(epsilon=max(remove, add), remove=remove, add=add)

    def deltas(self, *, noise_multiplier: float, epsilon: float) -> tuple[float, float]:
        """Returns estimates of δ(ε) for both directions, first that of removing a client."""
        losses = self._losses(validation.positive("noise_multiplier", noise_multiplier))
        epsilon = validation.nonnegative("epsilon", epsilon)
        return losses.remove_delta(epsilon), losses.add_delta(epsilon)

    def noise_multiplier(self, *, epsilon: float, delta: float) -> float:
        """Returns an estimate of the σ that leads to ε at δ.

        Raises:
            InputValueError: If ε is not from 1e-6 to 1e5, or δ is not between 0 and 1.
        """
        target, delta = validation.positive("epsilon", epsilon), validation.open_unit("delta", delta)
        if not _LEAST_EPSILON <= target <= _MOST_EPSILON:
            raise InputValueError(
                f"epsilon={target!r} must be from {_LEAST_EPSILON} to {_MOST_EPSILON} for an estimate of the noise."
            )
        high = math.log(math.sqrt(self._largest) / gaussian.mu_from(target, delta))

        def excess(log_sigma: float) -> float:
            sigma = math.exp(log_sigma)
            return math.log(max(*self._epsilons(self._losses(sigma), sigma, delta), 1e-9 * target) / target)

        return math.exp(_root(excess, high))

    def _epsilons(self, losses: _Losses, sigma: float, delta: float) -> tuple[float, float]:
        most = gaussian.epsilon_from_delta(delta, math.sqrt(self._largest) / sigma)
        return _solve(losses.remove_delta, delta, most), _solve(losses.add_delta, delta, most)

    def _losses(self, sigma: float) -> _Losses:
        exponents, tilts = self._tilted(sigma)
        variances = self._pair.variances / sigma**2
        remove = log_mean_exp(exponents)
        ratios = [log_mean_exp(t * exponents - t * (t - 1) / 2 * variances) for t in tilts]
        log_weights = -log_mean_exp(np.transpose(ratios))
        add = log_mean_exp(self._normal / sigma - variances / 2)
        return _Losses(mu=math.sqrt(self._pair.common) / sigma, remove=remove, log_weights=log_weights, add=add)

    def _tilted(self, sigma: float) -> tuple[np.ndarray, tuple[float, ...]]:
        """Returns a_j − K′_jj/2 of the samples of the proposals."""
        tilts = np.resize(_TILTS, len(self._normal))
        shifts = tilts[:, np.newaxis] * self._pair.covariance[self._groups]
        return self._normal / sigma + (shifts - self._pair.variances / 2) / sigma**2, _TILTS


def _solve(delta_of, delta: float, most: float) -> float:
    """Returns ε between 0 and `most` with log δ(ε) = log δ."""
    from scipy.optimize import brentq

    def excess(epsilon: float) -> float:
        return math.log(max(delta_of(epsilon), 1e-300) / delta)

    if excess(0.0) <= 0:
        return 0.0
    if excess(most) >= 0:
        return most
    return brentq(excess, 0.0, most, xtol=1e-9 * most, rtol=1e-12)  # pyrefly: ignore[bad-return]: it is a float.


def _root(excess, high: float) -> float:
    """Returns the zero of a decreasing function that is at most 0 at `high`."""
    from scipy.optimize import brentq

    low = high - 1
    while excess(low) < 0:
        low -= 1
    return brentq(excess, low, high + 1e-6, xtol=_TOLERANCE)  # pyrefly: ignore[bad-return]: it is a float.


@functools.lru_cache(maxsize=4)
def _random_numbers(bins: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns normals `[samples, bins]` and a group for each sample; the same for every call."""
    generator = np.random.default_rng(_SEED)
    half = generator.standard_normal((_SAMPLES, bins))
    groups = np.resize(generator.permutation(bins), _SAMPLES // len(_TILTS))
    return half, np.repeat(groups, len(_TILTS))
