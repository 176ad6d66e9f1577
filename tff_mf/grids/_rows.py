"""The recursion over rows of past noise, with coefficients for which every sum is exact."""

import functools
import typing

import numpy as np

from tff_mf.grids._recursion import MOST_ROUNDS, SLACK, Recursion, allowed
from tff_mf.mechanisms import Banded, BandedToeplitz, Mechanism

# Of a coefficient: a stream ends before sums need more than 52 bits with so few.
_MOST_BITS, _FEWEST_BITS = 48, 10
_INT32_LIMIT = 2**31


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
        most = float(np.abs(exact).sum(axis=1).max(initial=0.0)) + 1
        with np.errstate(over="ignore"):
            norms = _row_norms(mechanism) * unit
            self._rounds = allowed(mechanism.kind, norms * (most * SLACK * 2.0**_FEWEST_BITS))
        self._largest = float(norms[self._rounds - 1])
        bits = min(_MOST_BITS, int(np.floor(52 - np.log2(self._largest * most * SLACK))))
        self.coefficient_bits = bits
        self.coefficients = np.ldexp(np.rint(np.ldexp(exact, bits)), -bits)
        self.relative_scales = (1 / diagonal) * (1 + 2.0**-50)

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

    @property
    def largest(self) -> float:
        return self._largest

    @property
    def stored(self) -> str:
        """Type in which rows are stored."""
        return "int32" if self._largest < _INT32_LIMIT else "int64"

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


def _row_norms(mechanism: Mechanism) -> np.ndarray:
    """Returns the largest sum of absolute values of a row of C⁻¹ so far, for each number of rounds."""
    if isinstance(mechanism, BandedToeplitz):
        with np.errstate(over="ignore", invalid="ignore"):
            return np.cumsum(np.abs(mechanism.inverse_coefficients(MOST_ROUNDS)))
    return np.maximum.accumulate(np.abs(mechanism.inverse(typing.cast(int, mechanism.max_rounds))).sum(axis=1))
