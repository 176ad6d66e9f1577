"""The recursion over rows of past noise, with coefficients for which every sum is exact."""

import functools
import math
import typing
from collections.abc import Sequence

import numpy as np

from tff_mf import _in_order
from tff_mf.errors import InputValueError
from tff_mf.grids._recursion import MOST_ROUNDS, SLACK, Recursion, allowed
from tff_mf.mechanisms import Banded, BandedToeplitz, Mechanism

# Of a coefficient: a stream ends before sums need more than 52 bits with so few.
_MOST_BITS, _FEWEST_BITS = 48, 10
_INT32_LIMIT = 2**31
# Of all rows of a mechanism that is not banded: 1 GiB in int32.
_MOST_ENTRIES = 2**28


def check_rows(kind: str, *, bands: int, dimension: int) -> None:
    """Refuses the noise of a mechanism that is not banded if it would keep too many numbers.

    Args:
        kind: The kind of the mechanism.
        bands: Number of diagonals of C, including the main one: that of its rounds.
        dimension: Number d of coordinates of a record.

    Example:
        >>> check_rows("dense", bands=64, dimension=4_050_748)
        >>> check_rows("banded", bands=342, dimension=4_050_748)

    Raises:
        InputValueError: If all rows have more than 2^28 entries.
    """
    entries = (bands - 1) * dimension
    if kind in ("dense", "structured") and entries > _MOST_ENTRIES:
        raise InputValueError(
            f"grid with dimension={dimension} is refused: integer noise of a {kind} mechanism needs all {bands} rows "
            f"in memory, {entries:,} numbers, and the limit is {_MOST_ENTRIES:,}. Take a banded mechanism or a BLT; or "
            "grid=None (--grid none), which gives up a guarantee about the numbers that are released: it is then that "
            "of real numbers, and low bits of floats can give clients away."
        )


class RowsRecursion(Recursion[Mechanism]):
    """L_t = Σ K̃_ti n_i, where K̃ is K rounded to multiples of 2^-k so that no sum of products reaches 2^52.

    All products and partial sums are then exact in float64, in any order: e = 0. What the rounding of K changes is a
    change of C, and so of the sensitivity: `column_change`.
    """

    def __init__(self, mechanism: Mechanism, *, deviation: float, largest_normal: float) -> None:
        super().__init__(mechanism, deviation=deviation, largest_normal=largest_normal)
        self._entries = _entries(mechanism)
        diagonal = self._entries[:, 0]
        self.smallest_diagonal, self.largest_diagonal = float(diagonal.min()), float(diagonal.max())
        self.relative_scales = (1 / diagonal) * (1 + 2.0**-50)
        self._fit((deviation * largest_normal + self.largest_diagonal) * SLACK)

    def _fit(self, unit: float) -> None:
        """Sets the coefficients and the last round, so that no sum of products exceeds 2^52.

        C̃ is streamed, and is bounded: where C is nearly singular, C̃⁻¹ can be larger than C⁻¹ by any factor.
        """
        bits, most = math.inf, _MOST_BITS
        while most < bits:
            bits = self.coefficient_bits = most
            self.coefficients = _rounded(self._entries, bits)
            with np.errstate(over="ignore"):
                self._norms = _streamed_norms(self.mechanism, bits) * unit
                needed = self._norms * _sums(self.coefficients)
                self._rounds = allowed(self.mechanism.kind, needed * 2.0**_FEWEST_BITS)
            most = _bits_within(float(needed[self._rounds - 1]))

    @property
    def bands(self) -> int:
        """Number of diagonals of C, including the main one."""
        return self._entries.shape[1]

    @property
    def rounds(self) -> int:
        return self._rounds

    def largest_within(self, rounds: int) -> float:
        return float(self._norms[rounds - 1])

    @property
    def stored(self) -> str:
        """Type in which rows are stored."""
        return "int32" if self.largest < _INT32_LIMIT else "int64"

    @property
    def numbers(self) -> Sequence[np.ndarray]:
        return self.relative_scales, self.coefficients

    @property
    def column_change(self) -> float:
        entries = self._entries
        change = np.abs(entries[:, :1] * self.coefficients - entries[:, 1:])
        # Of the quotient and of this difference.
        change += 2.0**-50 * np.abs(entries[:, 1:])
        if isinstance(self.mechanism, BandedToeplitz):
            return float(np.linalg.norm(change)) * SLACK
        rounds, squares = len(entries), np.zeros(len(entries))
        for offset in range(1, self.bands):
            squares[: rounds - offset] += change[offset:, offset - 1] ** 2
        return float(np.sqrt(squares.max(initial=0.0))) * SLACK

    def error(self, rounds: int) -> float:
        return 0.0


def _sums(coefficients: np.ndarray) -> float:
    """Returns a bound on the sum of absolute values of a row of K, with what its terms are added to."""
    if coefficients.shape[1] == 0:
        return SLACK
    return (float(_in_order.sums(np.abs(coefficients)).max()) + 1) * SLACK


def _bits_within(needed: float) -> int:
    """Returns the largest k with needed·2^k ≤ 2^52."""
    fraction, exponent = math.frexp(needed)
    return 52 - exponent + (fraction == 0.5)


def _rounded(entries: np.ndarray, bits: int) -> np.ndarray:
    """Returns K̃: C below its diagonal, each row divided by its diagonal entry, in multiples of 2^-bits."""
    return np.ldexp(np.rint(np.ldexp(entries[:, 1:] / entries[:, :1], bits)), -bits)


# A calibration asks for many deviations, but few numbers of bits.
@functools.lru_cache(maxsize=2)
def _entries(mechanism: Mechanism) -> np.ndarray:
    """Returns C by rows, from the main diagonal to the left, float64 `[rounds or 1, bands]`."""
    if isinstance(mechanism, BandedToeplitz):
        return np.array([mechanism.column])
    rounds = typing.cast(int, mechanism.max_rounds)
    if isinstance(mechanism, Banded):
        diagonals = mechanism.values
    else:
        encoder = mechanism.encoder(rounds)
        diagonals = np.zeros_like(encoder)
        for offset in range(rounds):
            diagonals[offset, : rounds - offset] = np.diagonal(encoder, -offset)
    table = np.zeros((rounds, len(diagonals)))
    for offset, diagonal in enumerate(diagonals):
        table[offset:, offset] = diagonal[: rounds - offset]
    return table


@functools.lru_cache(maxsize=8)
def _streamed_norms(mechanism: Mechanism, bits: int) -> np.ndarray:
    """Returns the largest sum of absolute values of a row of C̃⁻¹ so far, for each number of rounds."""
    entries = _entries(mechanism)
    diagonal, coefficients = entries[:, 0], _rounded(entries, bits)
    if isinstance(mechanism, BandedToeplitz):
        with np.errstate(over="ignore", invalid="ignore"):
            column = _in_order.reciprocal((1.0, *coefficients[0].tolist()), MOST_ROUNDS)
            return np.add.accumulate(np.abs(column)) / diagonal[0]
    rounds = len(diagonal)
    matrix = np.eye(rounds)
    for offset in range(1, entries.shape[1]):
        later = np.arange(offset, rounds)
        matrix[later, later - offset] = coefficients[later, offset - 1]
    inverse = _in_order.solve(matrix, np.diag(1 / diagonal))
    with np.errstate(over="ignore"):
        return np.maximum.accumulate(_in_order.sums(np.abs(inverse)))
