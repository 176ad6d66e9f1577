"""Tests whether emitted noise is σ·C⁻¹z with fresh Gaussian z, on the whitened rows C·noise/σ.

The coordinates of a model are independent, so a run with d coordinates gives d samples. Correct noise passes each test
with probability at least 1 − 1e-9.
"""

import itertools

import numpy as np
from scipy import stats

from tff_mf.numerics import normals

from ._result import Test

# Probability that correct noise fails a test.
_CHANCE = 1e-9

# Number of rows on which every shift is tried: some thousand pairs.
_MOST_SHIFTED_ROWS = 48

# A box so wide hardly ever has a pair of float32 normals by chance if it is so many standard deviations out.
# It has one in 2.6 % of all cases, so that more than half of 16 boxes have one with a probability below 1e-9.
_FAR, _BOX, _PRODUCED = 3.25, 0.98e-6, 0.5
_FEWEST_PAIRS, _MOST_PAIRS = 16, 2000

# The tails of finite sums are slightly heavier than a normal distribution's, and float32 rounds.
_ROOM = 1.1


def whitened(noise: np.ndarray, encoder: np.ndarray, sigma: float) -> np.ndarray:
    """Returns C·noise/σ, float64 `[rounds, coordinates]`: independent standard normals if the noise is correct."""
    return encoder @ noise / sigma


def variance(rows: np.ndarray) -> Test:
    """Tests that the variance of each whitened row is 1, by its χ² distribution."""
    rounds, coordinates = rows.shape
    sums = np.sum(np.square(rows), axis=1)
    tails = 2 * np.minimum(stats.chi2.sf(sums, coordinates), stats.chi2.cdf(sums, coordinates))
    worst = int(np.argmin(tails))
    found = float(sums[worst] / coordinates)
    passed = variance_fits(found, rounds, coordinates)
    return Test(name="variance", passed=passed, value=found, limit=1.0, about={"round": worst + 1})


def variance_fits(value: float, rounds: int, coordinates: int) -> bool:
    """Returns whether correct noise can have this variance in the worst of so many rows."""
    return _two_sided(value * coordinates, coordinates) > _CHANCE / rounds


def _two_sided(total: float, coordinates: int) -> float:
    """Returns the two-sided tail probability of a sum of squares of standard normals."""
    return float(2 * min(stats.chi2.sf(total, coordinates), stats.chi2.cdf(total, coordinates)))


def correlation(rows: np.ndarray) -> Test:
    """Tests that no two whitened rows are correlated: the noise has the covariance of the artifact."""
    rounds, coordinates = rows.shape
    products = np.abs(np.tril(rows @ rows.T, -1)) / np.sqrt(coordinates)
    limit = correlation_limit(rounds)
    worst = np.unravel_index(int(np.argmax(products)), products.shape)
    found = float(products[worst])
    about = {"rounds": [int(worst[1]) + 1, int(worst[0]) + 1]}
    return Test(name="covariance", passed=found <= limit, value=found, limit=limit, about=about)


def correlation_limit(rounds: int) -> float:
    """Returns the largest correlation of two rows that correct noise has, in standard deviations."""
    return _ROOM * float(stats.norm.isf(_CHANCE / max(1, rounds**2)))


def normality(rows: np.ndarray) -> Test:
    """Tests that all whitened numbers together are standard normal: Kolmogorov and Smirnov."""
    found = stats.kstest(rows.ravel(), "norm")
    value, p = float(found.statistic), float(found.pvalue)
    return Test(name="normality", passed=p > _CHANCE, value=value, limit=_CHANCE, about={"p": p})


def normality_fits(value: float, count: int) -> bool:
    """Returns whether standard normal numbers can have this distance; approximations differ in the tail."""
    return 0 < value < 1 and float(stats.kstwobign.sf(value * np.sqrt(count))) > _CHANCE / 10


def repeats(rows: np.ndarray, others: np.ndarray) -> Test:
    """Tests that no row is a shifted copy of another row of its stream, or of a row of a second stream.

    Args:
        rows: Whitened rows of a stream.
        others: Whitened rows of the second stream.
    """
    chosen = _shifted(len(rows))
    first, second = np.fft.rfft(rows[chosen]), np.fft.rfft(others[chosen])
    coordinates = rows.shape[1]
    pairs = [(a, b, first) for a, b in itertools.combinations(range(len(chosen)), 2)]
    pairs += [(a, b, second) for a in range(len(chosen)) for b in range(len(chosen))]
    found, where = 0.0, {"rounds": [], "other_stream": False}
    for a, b, other in pairs:
        shifted = np.fft.irfft(first[a] * np.conj(other[b]), coordinates) / np.sqrt(coordinates)
        largest = float(np.max(np.abs(shifted)))
        if largest > found:
            found = largest
            where = {"rounds": [int(chosen[a]) + 1, int(chosen[b]) + 1], "other_stream": other is second}
    limit = repeats_limit(len(rows), coordinates)
    return Test(name="repeats", passed=found <= limit, value=found, limit=limit, about=where)


def _shifted(rounds: int) -> np.ndarray:
    """Returns the rows on which every shift is tried."""
    return np.unique(np.linspace(0, rounds - 1, min(rounds, _MOST_SHIFTED_ROWS)).astype(int))


def repeats_limit(rounds: int, coordinates: int) -> float:
    """Returns the largest correlation at any shift that correct noise has, in standard deviations."""
    rows = len(_shifted(rounds))
    pairs = rows * (rows - 1) // 2 + rows**2
    return _ROOM * float(stats.norm.isf(_CHANCE / (pairs * coordinates)))


def not_on_grid(noise: np.ndarray, units: int) -> int:
    """Returns how many numbers of the noise, for a clip norm of 1, are not whole multiples of 1 / units."""
    scaled = noise * units
    return int(np.count_nonzero(scaled != np.rint(scaled)))


def integers(inexact: int) -> Test:
    """Tests that all noise was on the grid."""
    return Test(name="integers", passed=integers_fit(inexact), value=inexact, limit=0.0)


def integers_fit(value: float) -> bool:
    """Returns whether noise on a grid can have so many numbers that are not on it."""
    return value == 0


def pairs(rows: np.ndarray) -> Test:
    """Tests that the normals behind the noise are not TensorFlow's in float32, which give clients away.

    An adversary who knows all other updates computes the whitened rows. Of pairs that are far out, float32 normals can
    give nearly all of their own, and hardly any other, so that another one proves that a client took part.
    """
    even = rows.shape[1] // 2 * 2
    found, seen = 0, 0
    for row in rows:
        far = row[:even].reshape(-1, 2)
        far = far[np.linalg.norm(far, axis=1) > _FAR]
        found += int(np.count_nonzero(normals.producible_pairs(far - _BOX / 2, far + _BOX / 2, stddev=1.0)))
        seen += len(far)
        if seen >= _MOST_PAIRS:
            break
    share = found / seen if seen >= _FEWEST_PAIRS else 0.0
    about = {"seen": seen, "needed": _FEWEST_PAIRS}
    return Test(name="pairs", passed=pairs_fit(share), value=share, limit=_PRODUCED, about=about)


def pairs_fit(value: float) -> bool:
    """Returns whether normals other than float32 normals can have this share."""
    return 0 <= value <= _PRODUCED


def fresh_steps(first: np.ndarray, second: np.ndarray, stddev: float) -> Test:
    """Tests that two steps from one state give two rows with independent new noise.

    Args:
        first: The row of one step, `[coordinates]`.
        second: The row of another step from the same state.
        stddev: Standard deviation of the new noise in such a row.
    """
    found = float(np.mean(np.square(first - second)) / (2 * stddev**2))
    return Test(name="fresh steps", passed=fresh_steps_fit(found, len(first)), value=found, limit=1.0)


def fresh_steps_fit(value: float, coordinates: int) -> bool:
    """Returns whether fresh noise can have this variance of the difference, relative to its expectation."""
    return _two_sided(value * coordinates, coordinates) > _CHANCE
