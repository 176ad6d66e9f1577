"""First columns of lower-triangular Toeplitz matrices as power series, and sums of finite geometric series."""

from collections.abc import Sequence

import numpy as np

from tff_mf.base import validation
from tff_mf.base.errors import InputValueError

# Noise is computed in float32, where smaller numbers are 0 or lose digits, and larger ones are infinite.
SMALLEST = float(np.finfo(np.float32).tiny)
LARGEST = float(np.finfo(np.float32).max)

_BLOCK = 256

# Replaces an exponent of 0, for which the formulas are 0/0: here they give the limit to the last bit.
_NO_DECAY = 1e-100

# Below this, e^(−y) − 1 + y loses more digits to cancellation than its series loses to truncation.
_SERIES_BELOW = 1e-2


def checked(name: str, values: object) -> tuple[float, ...]:
    """Returns the coefficients of a banded Toeplitz matrix as plain floats, the first of them above 0."""
    coefficients = validation.sequence(name, values, per="band")
    if not SMALLEST <= coefficients[0] <= LARGEST:
        raise InputValueError(
            f"{name}[0]={coefficients[0]!r}, the main diagonal, must be at least {SMALLEST} and at most {LARGEST}."
        )
    for index, number in enumerate(coefficients):
        if abs(number) > LARGEST:
            raise InputValueError(
                f"{name}[{index}]={number!r} must be at most {LARGEST}, because noise is computed in float32."
            )
    return coefficients


def float32(coefficients: Sequence[float]) -> tuple[float, ...]:
    """Returns the coefficients as cast to float32."""
    return tuple(float(np.float32(value)) for value in coefficients)


def padded(coefficients: Sequence[float] | np.ndarray, rounds: int) -> np.ndarray:
    """Returns the first `rounds` coefficients, padded with zeros, float64 `[rounds]`."""
    column = np.zeros(rounds)
    leading = np.asarray(coefficients[:rounds], dtype=np.float64)
    column[: len(leading)] = leading
    return column


def quotient(numerator: np.ndarray, coefficients: Sequence[float] | np.ndarray) -> np.ndarray:
    """Returns the coefficients of a(x) / c(x), as many as a = `numerator` has: LtToep(c)⁻¹a.

    By forward substitution, block by block, in O(rounds · bands); methods that are faster for many bands lose the
    digits of small coefficients.
    """
    rounds = len(numerator)
    leading = np.asarray(coefficients[:rounds], dtype=np.float64)
    backwards = leading[:0:-1]
    reach = len(backwards)
    padded_quotient = np.zeros(reach + rounds)
    quotients = padded_quotient[reach:]
    with np.errstate(over="ignore", invalid="ignore"):
        response = np.zeros(reach + min(_BLOCK, rounds))
        for index in range(len(response) - reach):
            response[reach + index] = ((index == 0) - backwards @ response[index : index + reach]) / leading[0]
        for start in range(0, rounds, _BLOCK):
            remainder = numerator[start : start + _BLOCK].astype(np.float64)
            if reach:
                earlier = np.concatenate([padded_quotient[start : start + reach], np.zeros(len(remainder) - 1)])
                remainder -= np.correlate(earlier, backwards, mode="valid")
            quotients[start : start + len(remainder)] = np.convolve(response[reach:], remainder)[: len(remainder)]
    return quotients


def inverse_square_root(terms: int) -> np.ndarray:
    """Returns the first coefficients of (1 − x)^(−1/2): the column of the C with C·C = A for prefix sums.

    Source: Fichtenberger, Henzinger and Upadhyay (2023): c_l = Π_{j ≤ l} (2j − 1) / (2j).
    """
    steps = np.arange(1, terms)
    return np.concatenate([[1.0], np.cumprod((2 * steps - 1) / (2 * steps))])


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
