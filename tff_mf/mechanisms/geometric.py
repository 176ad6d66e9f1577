"""Sums of finite geometric series with their derivatives, accurate for any decay and any length."""

import numpy as np

# Replaces an exponent of 0, for which the formulas are 0/0: here they give the limit to the last bit.
_NO_DECAY = 1e-100

# Below this, e^(−y) − 1 + y loses more digits to cancellation than its series loses to truncation.
_SERIES_BELOW = 1e-2


def geometric_sum(exponent: np.ndarray, terms: np.ndarray | float) -> tuple[np.ndarray, np.ndarray]:
    """Returns Σ_{i < terms} e^(−exponent·i) and its derivative by `exponent`.

    The derivative times `exponent` is accurate to rounding relative to the sum. That is what an
    optimizer over log(exponent) needs; for exponents near 0 the derivative alone is not.

    Args:
        exponent: −log of the ratio of successive terms, at least 0.
        terms: Number of terms, at least 0, of a shape that broadcasts against `exponent`.

    Example:
        >>> float(geometric_sum(np.log(2.0), 3)[0])
        1.75
    """
    exponent = np.maximum(exponent, _NO_DECAY)
    decayed = -np.expm1(-exponent)
    last = np.multiply(exponent, terms)
    value = np.expm1(-last) / -decayed
    slope = (value * (1 - decayed) - terms * np.exp(-last)) / -decayed
    return value, slope


def weighted_geometric_sum(exponent: np.ndarray, terms: float) -> tuple[np.ndarray, np.ndarray]:
    """Returns Σ_{i < terms} (1 − i/terms)·e^(−exponent·i) and its derivative by `exponent`.

    With r = e^(−x) the sum is (n − r(1 − rⁿ)/(1 − r)) / (n(1 − r)). Its numerator cancels to
    order (nx)² for small nx; written with φ(y) = e^(−y) − 1 + y it is r(φ(nx) + n·φ(−x))/(1 − r),
    a sum of positive terms. It is as accurate as `geometric_sum`.

    Args:
        exponent: −log of the ratio of successive terms, at least 0.
        terms: Number of terms, at least 1.

    Example:
        >>> round(float(weighted_geometric_sum(np.log(2.0), 2)[0]), 12)
        1.25
    """
    exponent = np.maximum(exponent, _NO_DECAY)
    ratio = np.exp(-exponent)
    decayed = -np.expm1(-exponent)
    last = exponent * terms
    scale = ratio / (terms * decayed * decayed)
    value = scale * (_phi(last) + terms * _phi(-exponent))
    slope = scale * terms * (decayed / ratio - np.expm1(-last)) - value * (1 + 2 * ratio / decayed)
    return value, slope


def _phi(y: np.ndarray) -> np.ndarray:
    series = 1 - y / 7
    for order in (6, 5, 4, 3):
        series = 1 - y / order * series
    return np.where(np.abs(y) < _SERIES_BELOW, y * y / 2 * series, np.expm1(-y) + y)
