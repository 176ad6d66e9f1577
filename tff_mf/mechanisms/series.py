"""First columns of lower-triangular Toeplitz matrices as power series: checks, square roots and reciprocals."""

from collections.abc import Sequence

import numpy as np

from tff_mf.base import validation
from tff_mf.base.errors import InputTypeError, InputValueError

# Noise is computed in float32, where smaller numbers are 0 or lose digits, and larger ones are infinite.
SMALLEST = float(np.finfo(np.float32).tiny)
LARGEST = float(np.finfo(np.float32).max)

_BLOCK = 256
_EPSILON = 2.0**-53
# A float64 times this, minus how much larger that is, is its upper half: products of halves are exact.
_SPLITTER = 2.0**27 + 1
# Sums of a residual up to here are within the rounding that a sensitivity is stated up to.
_SMALL_RESIDUAL = 2.0**-41
# Rounds of which each is multiplied with each.
_MOST_PRODUCTS = 2**14


def numbers(name: str, values: object, *, each: str) -> tuple[float, ...]:
    """Returns a sequence of numbers, one per band or buffer, as plain floats."""
    if isinstance(values, str | bytes) or not isinstance(values, Sequence | np.ndarray):
        raise InputTypeError(f"{name}={values!r} must be a sequence of numbers, one per {each}.")
    if (isinstance(values, np.ndarray) and values.ndim != 1) or len(values) == 0:
        raise InputValueError(f"{name}={values!r} must hold one number per {each}, and at least one.")
    return tuple(validation.real(f"{name}[{index}]", value) for index, value in enumerate(values))


def checked(name: str, values: object) -> tuple[float, ...]:
    """Returns the coefficients of a banded Toeplitz matrix as plain floats, the first of them above 0."""
    found = numbers(name, values, each="band")
    if not SMALLEST <= found[0] <= LARGEST:
        raise InputValueError(
            f"{name}[0]={found[0]!r}, the main diagonal, must be at least {SMALLEST} and at most {LARGEST}."
        )
    for index, number in enumerate(found):
        if abs(number) > LARGEST:
            raise InputValueError(
                f"{name}[{index}]={number!r} must be at most {LARGEST}, because noise is computed in float32."
            )
    return found


def float32(coefficients: Sequence[float]) -> tuple[float, ...]:
    """Returns the coefficients as cast to float32."""
    return tuple(float(np.float32(value)) for value in coefficients)


def padded(coefficients: Sequence[float] | np.ndarray, rounds: int) -> np.ndarray:
    """Returns the first `rounds` coefficients, padded with zeros, float64 `[rounds]`."""
    column = np.zeros(rounds)
    given = np.asarray(coefficients[:rounds], dtype=np.float64)
    column[: len(given)] = given
    return column


def quotient(numerator: np.ndarray, coefficients: Sequence[float] | np.ndarray) -> np.ndarray:
    """Returns the coefficients of a(x) / c(x), as many as a = `numerator` has: LtToep(c)⁻¹a.

    By forward substitution, block by block, in O(rounds · bands); methods that are faster for many bands lose the
    digits of small coefficients.
    """
    rounds = len(numerator)
    given = np.asarray(coefficients[:rounds], dtype=np.float64)
    backwards = given[:0:-1]
    reach = len(backwards)
    padded_result = np.zeros(reach + rounds)
    result = padded_result[reach:]
    with np.errstate(over="ignore", invalid="ignore"):
        one = np.zeros(reach + min(_BLOCK, rounds))
        for index in range(len(one) - reach):
            one[reach + index] = ((index == 0) - backwards @ one[index : index + reach]) / given[0]
        for start in range(0, rounds, _BLOCK):
            right = numerator[start : start + _BLOCK].astype(np.float64)
            if reach:
                earlier = np.concatenate([padded_result[start : start + reach], np.zeros(len(right) - 1)])
                right -= np.correlate(earlier, backwards, mode="valid")
            result[start : start + len(right)] = np.convolve(one[reach:], right)[: len(right)]
    return result


def error_of_reciprocal(coefficients: Sequence[float] | np.ndarray, column: np.ndarray) -> float:
    """Returns a bound η on the error of a computed ĉ = `column` of 1 / d(x), relative to columns of LtToep(ĉ).

    For the exact c, ‖c_0, …, c_m − ĉ_0, …, ĉ_m‖ ≤ η·‖ĉ_0, …, ĉ_m‖ for each m.

    Proof: let d·ĉ = 1 + r, so that c − ĉ = −ĉ·r / (1 + r). If ‖r‖₁ < 1, then η = ‖r‖₁ / (1 − ‖r‖₁) is enough, because
    a product with r has at most ‖r‖₁ times the norm. Otherwise let m ≥ |r|, entry by entry, and m·m ≤ αm with α < 1:
    then |r / (1 + r)| ≤ m + m² + m³ + … ≤ m / (1 − α), and |c − ĉ| ≤ |ĉ|·m / (1 − α).

    Args:
        coefficients: d, the first of which is not 0.
        column: ĉ, float64 `[rounds]`.

    Example:
        >>> error_of_reciprocal([1.0, -0.5], np.array([1.0, 0.5, 0.25])) < 1e-20
        True
        >>> error_of_reciprocal([1.0, -0.5], np.array([1.0, 0.5, 0.26])) > 0.01 / 1.15
        True
    """
    rounds = len(column)
    with np.errstate(over="ignore", invalid="ignore"):
        residual = _residual(np.asarray(coefficients[:rounds], np.float64), column)
        total = float(np.sum(residual)) * (1 + rounds * _EPSILON)
        if total <= _SMALL_RESIDUAL or rounds > _MOST_PRODUCTS:
            return total / (1 - total) if total < 1 else np.inf
        sizes = np.abs(column)
        most = np.maximum(residual, _EPSILON * np.maximum.accumulate(sizes))
        again = np.max(np.convolve(most, most)[:rounds] / most)
        error = np.convolve(sizes, most)[:rounds] / (1 - again)
        found = np.sqrt(np.max(np.cumsum(np.square(error)) / np.cumsum(np.square(sizes)))) * (1 + rounds * _EPSILON)
    return float(found) if again < 0.5 and found >= 0 else np.inf


def _residual(coefficients: np.ndarray, column: np.ndarray) -> np.ndarray:
    """Returns upper bounds on |d·ĉ − 1| of each round, float64 `[rounds]`, from twice the digits of float64."""
    rounds = len(column)
    total, rest, sizes = -np.eye(1, rounds)[0], np.zeros(rounds), np.ones(rounds)
    for lag, factor in enumerate(coefficients.tolist()):
        high, low = _exact_product(factor, column[: rounds - lag])
        before = total[lag:].copy()
        total[lag:] += high
        # Knuth's exact error of a sum.
        part = total[lag:] - before
        rest[lag:] += ((before - (total[lag:] - part)) + (high - part)) + low
        sizes[lag:] += np.abs(high)
    terms = 2 * (len(coefficients) + 2)
    return np.abs(total + rest) * (1 + 4 * _EPSILON) + (terms * _EPSILON) ** 2 * sizes


def _exact_product(factor: float, values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns factor·values as a sum of two: the rounded products, and their errors (Dekker, 1971)."""
    product = factor * values
    left, right = _halves(np.array(factor)), _halves(values)
    error = ((left[0] * right[0] - product) + left[0] * right[1] + left[1] * right[0]) + left[1] * right[1]
    return product, error


def _halves(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    scaled = _SPLITTER * values
    high = scaled - (scaled - values)
    return high, values - high


def inverse_square_root(terms: int) -> np.ndarray:
    """Returns the first coefficients of (1 − x)^(−1/2): the column of the C with C·C = A for prefix sums.

    Source: Fichtenberger, Henzinger and Upadhyay (2023): c_l = Π_{j ≤ l} (2j − 1) / (2j).
    """
    steps = np.arange(1, terms)
    return np.concatenate([[1.0], np.cumprod((2 * steps - 1) / (2 * steps))])


def square_root(terms: int) -> np.ndarray:
    """Returns the first coefficients of (1 − x)^(1/2), the reciprocal of `inverse_square_root`."""
    steps = np.arange(1, terms)
    return np.concatenate([[1.0], np.cumprod((2 * steps - 3) / (2 * steps))])
