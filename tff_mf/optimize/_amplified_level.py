"""The noise at which (ε, δ) holds with balls in bins, estimated, and how it changes with C.

Each client is in one of b bins, and takes part in the rounds j, j + b, … of its bin j. The privacy loss depends on C only
through the Gram matrix K = MᵀM/σ² of the b columns m_j = C·x_j. All that is here is an estimate, for a search: nothing
of it is a guarantee.
"""

import math
from typing import NamedTuple

import numpy as np

from tff_mf import gaussian

# Samples of a search for σ, and of the weights at the end, for `_SIZE` numbers at most in each array.
_FEW, _MANY, _SIZE = 2000, 8000, 3_000_000

# Samples by which proposals are compared, and the proposals, relative to the one with the least range.
_PILOT = 1500
_PLACES = (0.8, 1.0, 1.2, 1.45, 1.8, 2.2)
_TILTS = np.concatenate([np.arange(1.05, 10, 0.05), np.arange(10, 80, 0.5)])

# The part of the largest k₀ that is split off, and the smallest standard deviation of the kernel for the weights.
_PART, _NARROWEST = 0.999, 0.05

# Accuracy of log σ², and the steps by which it is bracketed.
_TOLERANCE, _STEP = 1e-3, 0.25


class Level(NamedTuple):
    """Where (ε, δ) holds.

    Attributes:
        noise_multiplier: σ, estimated.
        weights: W, float64 `[groups, groups]`, with ⟨W, G⟩ = 1: δ changes by a multiple of ⟨W, dK⟩, so that σ² changes
            by the part ⟨W, dG⟩ of itself if G = MᵀM changes by dG.
        relative_error: Standard error of the estimate of δ, relative to δ.
    """

    noise_multiplier: float
    weights: np.ndarray
    relative_error: float


def columns_of_bins(column: np.ndarray, rounds: int, groups: int) -> np.ndarray:
    """Returns M, float64 `[rounds, groups]`: m_j is the sum of the columns j, j + b, … of C = LtToep(`column`)."""
    found = np.zeros((rounds, groups))
    for group in range(groups):
        for start in range(group, rounds, groups):
            part = column[: rounds - start]
            found[start : start + len(part), group] += part
    return found


def level(gram: np.ndarray, epsilon: float, delta: float, *, near: float | None, seed: int) -> Level:
    """Returns σ at which δ(ε) is `delta` for a client that is removed, and its derivative by the Gram matrix.

    With Z = (1/b)·Σ_j e^(a_j − K_jj/2) for a ~ N(0, K), δ(ε) = E (Z − e^ε)₊. Write K = k₀·11ᵀ + K' with k₀ of at most
    1 / (1ᵀK⁻¹1): then Z is a lognormal factor, over which the expectation is exact, times such a sum of K'. That one is
    sampled with means tilted towards the privacy losses that matter. As K grows, E F(Z) of a convex F grows by
    ½·Σ_ij dK_ij·E[F''(Z)·Z_i·Z_j] (Kahane), which gives the weights.

    Args:
        gram: G = MᵀM, float64 `[groups, groups]`.
        epsilon: ε.
        delta: δ.
        near: σ to begin with, if known.
        seed: Of the samples; equal seeds make the estimate smooth in G.
    """
    found = _Estimate(gram, seed)
    # Without amplification, σ is at least as large.
    inverse = gaussian.mu_from(epsilon, delta) ** 2 / gram.diagonal().max() if near is None else near**-2.0
    if len(gram) == 1:
        return Level(inverse**-0.5, 1 / gram, 0.0)
    for samples in (_FEW, _FEW, _MANY):
        inverse = found.inverse_variance(inverse, epsilon, delta, samples)
    _, weights, relative_error = found.delta(inverse, epsilon, found.tilts(inverse, epsilon), _MANY, weights=True)
    return Level(inverse**-0.5, weights / np.vdot(weights, gram), relative_error)


class _Estimate:
    """Estimates of δ(ε) for K = q·G."""

    def __init__(self, gram: np.ndarray, seed: int) -> None:
        groups = len(gram)
        values, vectors = np.linalg.eigh(gram)
        along = vectors.sum(axis=0)
        smallest = values[-1] * 1e-12
        self._common = _PART / float(np.sum(along**2 / np.maximum(values, smallest)))
        self._rest = gram - self._common
        values, vectors = np.linalg.eigh(self._rest)
        used = values > smallest
        most = max(_PILOT, min(_MANY, _SIZE // groups))
        generator = np.random.default_rng(seed)
        normals = generator.standard_normal((most, int(used.sum())))
        self._sums = normals @ (vectors[:, used] * np.sqrt(values[used])).T
        self._uniform = generator.random(most)
        self._diagonal, self._full = self._rest.diagonal(), gram.diagonal()

    def inverse_variance(self, start: float, epsilon: float, delta: float, samples: int) -> float:
        """Returns q = 1/σ² with δ(ε) = `delta`, with proposals that fit `start`."""
        # Imported here: it would double the time of `import tff_mf`.
        import scipy.optimize

        target = math.log(delta)
        tilts = None

        def above(log_inverse: float) -> float:
            inverse = math.exp(log_inverse)
            # Far from the start, proposals that fit it may miss every large loss.
            tilted = self._tilts_without_pilot(inverse, epsilon) if tilts is None else tilts
            value, _, _ = self.delta(inverse, epsilon, tilted, samples)
            return (math.log(value) if value > 0 else -700.0) - target

        low = high = math.log(start)
        while above(low) > 0:
            low -= _STEP
        while above(high) < 0:
            low, high = (low, high + _STEP) if high == low else (high, high + _STEP)
        if low == high:
            low -= _STEP
        tilts = self.tilts(math.exp(high), epsilon)
        if above(low) > 0 or above(high) < 0:
            return math.exp((low + high) / 2)
        return math.exp(scipy.optimize.brentq(above, low, high, xtol=_TOLERANCE))

    def tilts(self, inverse: float, epsilon: float) -> list[float]:
        """Returns the tilts of proposals with little variance."""
        least_range = self._tilts_without_pilot(inverse, epsilon)[0]
        found = []
        for place in _PLACES:
            tilt = max(1.05, least_range * place)
            value, _, error = self.delta(inverse, epsilon, [least_range, tilt, tilt, tilt], _PILOT)
            found.append((error if value > 0 else math.inf, tilt))
        best = min(found)[1]
        return [least_range, best, 1.15 * best]

    def _tilts_without_pilot(self, inverse: float, epsilon: float) -> list[float]:
        """Returns tilts by the Rényi bound on δ, which the Gaussians of each bin give."""
        orders = _TILTS[:, np.newaxis]
        exponents = orders * (orders - 1) * inverse * self._full / 2
        bounds = _log_mean_exp(exponents) - (_TILTS - 1) * epsilon + (_TILTS - 1) * np.log1p(-1 / _TILTS)
        best = float(_TILTS[np.argmin(bounds - np.log(_TILTS))])
        return [best, 1.4 * best]

    def delta(
        self, inverse: float, epsilon: float, tilts: list[float], samples: int, *, weights: bool = False
    ) -> tuple[float, np.ndarray, float]:
        """Returns δ(ε), the weights up to a factor if they are asked for, and the relative standard error of δ(ε)."""
        sums = math.sqrt(inverse) * self._sums[:samples] - inverse * self._diagonal / 2
        log_norms = []
        for place, tilt in enumerate(tilts):
            exponents = tilt * (tilt - 1) * inverse * self._diagonal / 2
            log_norms.append(_log_mean_exp(exponents[np.newaxis])[0])
            shares = np.exp(exponents - exponents.max()).cumsum()
            rows = np.arange(place, len(sums), len(tilts))
            bins = np.searchsorted(shares / shares[-1], self._uniform[rows]).clip(max=len(shares) - 1)
            sums[rows] += tilt * inverse * self._rest[bins]
        largest = sums.max(axis=1)
        sums -= largest[:, np.newaxis]
        parts = np.exp(sums)
        losses = largest + np.log(parts.mean(axis=1))
        log_ratios = np.full(len(tilts), 0.0)[:, np.newaxis] + np.zeros(len(losses))
        for place, tilt in enumerate(tilts):
            tilted = tilt * largest + np.log(np.exp(tilt * sums).mean(axis=1))
            log_ratios[place] = tilted - log_norms[place]
        log_weight = epsilon + math.log(len(tilts)) - np.logaddexp.reduce(log_ratios, axis=0)
        spread = math.sqrt(inverse * self._common)
        values = _expected_excess(losses - epsilon, spread) * np.exp(log_weight)
        mean = float(values.mean())
        error = float(values.std()) / math.sqrt(len(values)) / mean if mean > 0 else math.inf
        if not weights:
            return mean, np.zeros(0), error
        # F'' of the hockey stick is a point mass, which the lognormal factor makes smooth.
        width = max(spread, _NARROWEST)
        near = np.exp(log_weight - ((losses - epsilon) / width - width / 2) ** 2 / 2)
        parts /= parts.sum(axis=1, keepdims=True)
        return mean, (parts * near[:, np.newaxis]).T @ parts, error


def _log_mean_exp(exponents: np.ndarray) -> np.ndarray:
    largest = exponents.max(axis=1)
    return largest + np.log(np.exp(exponents - largest[:, np.newaxis]).mean(axis=1))


def _expected_excess(above: np.ndarray, spread: float) -> np.ndarray:
    """Returns E (e^(x + s·g − s²/2) − 1)₊ over a standard normal g, for x = `above` and s = `spread`."""
    from scipy.special import erfcx, ndtr

    upper = above / spread + spread / 2
    lower = upper - spread
    with np.errstate(over="ignore", invalid="ignore", under="ignore"):
        # Far below, both terms are tiny and nearly equal: their common factor is taken out.
        tail = np.exp(-(lower**2) / 2) * (erfcx(-upper / math.sqrt(2)) - erfcx(-lower / math.sqrt(2))) / 2
        bulk = np.exp(np.minimum(above, 600.0)) * ndtr(upper) - ndtr(lower)
    return np.where(upper < 0, tail, bulk)
