"""The recursion over rows of past noise, with coefficients for which every sum is exact."""

import functools
import typing

import numpy as np

from tff_mf.errors import InputValueError
from tff_mf.grids._recursion import MOST_ROUNDS, SLACK, Recursion, allowed
from tff_mf.mechanisms import Banded, BandedToeplitz, Mechanism, series

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
        self._toeplitz = isinstance(mechanism, BandedToeplitz)
        diagonal = self._entries[:, 0]
        self.smallest_diagonal, self.largest_diagonal = float(diagonal.min()), float(diagonal.max())
        unit = (deviation * largest_normal + self.largest_diagonal) * SLACK
        exact = self._entries[:, 1:] / diagonal[:, np.newaxis]
        with np.errstate(over="ignore"):
            self._norms = self._fit(exact, unit)
        self.relative_scales = (1 / diagonal) * (1 + 2.0**-50)

    def _fit(self, exact: np.ndarray, unit: float) -> np.ndarray:
        """Sets the coefficients and the last round, so that no sum of products exceeds 2^52; returns N by rounds."""
        kind = self.mechanism.kind
        needed = _row_norms(self.mechanism) * unit * _sums(exact)
        self._rounds = allowed(kind, needed * 2.0**_FEWEST_BITS)
        bits = min(_MOST_BITS, int(np.floor(52 - np.log2(needed[self._rounds - 1]))))
        while True:
            self.coefficient_bits, self.coefficients = bits, np.ldexp(np.rint(np.ldexp(exact, bits)), -bits)
            # Of C̃, which is streamed: where C is nearly singular, C̃⁻¹ can be larger than C⁻¹ by any factor.
            norms = self._streamed_norms() * unit
            needed = norms * _sums(self.coefficients) * 2.0**bits
            excess = needed[self._rounds - 1] / 2.0**52
            if excess <= 1:
                break
            fewer = bits - int(np.ceil(np.log2(excess))) if np.isfinite(excess) else 0
            if fewer < _FEWEST_BITS:
                self._rounds = allowed(kind, needed)
                break
            bits = fewer
        return norms

    def _streamed_norms(self) -> np.ndarray:
        """Returns the largest sum of absolute values of a row of C̃⁻¹ so far, for each number of rounds."""
        diagonal = self._entries[:, 0]
        if self._toeplitz:
            with np.errstate(over="ignore", invalid="ignore"):
                column = series.reciprocal((1.0, *self.coefficients[0].tolist()), MOST_ROUNDS)
                return np.cumsum(np.abs(column)) / diagonal[0]
        # Imported here: it takes a good part of the import time of the package.
        from scipy.linalg import solve_triangular

        rounds = len(diagonal)
        matrix = np.eye(rounds)
        for offset in range(1, self.bands):
            later = np.arange(offset, rounds)
            matrix[later, later - offset] = self.coefficients[later, offset - 1]
        with np.errstate(over="ignore", invalid="ignore"):
            inverse = solve_triangular(matrix, np.diag(1 / diagonal), lower=True, check_finite=False)
            return np.maximum.accumulate(np.abs(inverse).sum(axis=1))

    @functools.cached_property
    def _entries(self) -> np.ndarray:
        """C by rows, from the main diagonal to the left, float64 `[rounds or 1, bands]`."""
        if isinstance(self.mechanism, BandedToeplitz):
            return np.array([self.mechanism.column])
        rounds = typing.cast(int, self.mechanism.max_rounds)
        if isinstance(self.mechanism, Banded):
            diagonals = self.mechanism.values
        else:
            encoder = self.mechanism.encoder(rounds)
            diagonals = np.zeros_like(encoder)
            for offset in range(rounds):
                diagonals[offset, : rounds - offset] = np.diagonal(encoder, -offset)
        table = np.zeros((rounds, len(diagonals)))
        for offset, diagonal in enumerate(diagonals):
            table[offset:, offset] = diagonal[: rounds - offset]
        return table

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
    def digits(self) -> str:
        return f"coefficients of {self.coefficient_bits} bits"

    @property
    def column_change(self) -> float:
        entries = self._entries
        change = np.abs(entries[:, :1] * self.coefficients - entries[:, 1:])
        # Of the quotient and of this difference.
        change += 2.0**-50 * np.abs(entries[:, 1:])
        if self._toeplitz:
            return float(np.linalg.norm(change)) * SLACK
        rounds, squares = len(entries), np.zeros(len(entries))
        for offset in range(1, self.bands):
            squares[: rounds - offset] += change[offset:, offset - 1] ** 2
        return float(np.sqrt(squares.max(initial=0.0))) * SLACK

    def error(self, rounds: int) -> float:
        return 0.0


def _sums(coefficients: np.ndarray) -> float:
    """Returns a bound on the sum of absolute values of a row of K, with what its terms are added to."""
    return (float(np.abs(coefficients).sum(axis=1).max(initial=0.0)) + 1) * SLACK


def _row_norms(mechanism: Mechanism) -> np.ndarray:
    """Returns the largest sum of absolute values of a row of C⁻¹ so far, for each number of rounds."""
    if isinstance(mechanism, BandedToeplitz):
        with np.errstate(over="ignore", invalid="ignore"):
            return np.cumsum(np.abs(mechanism.inverse_coefficients(MOST_ROUNDS)))
    return np.maximum.accumulate(np.abs(mechanism.inverse(typing.cast(int, mechanism.max_rounds))).sum(axis=1))
