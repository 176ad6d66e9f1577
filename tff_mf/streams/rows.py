"""Noise of a C from its rows, by blocks of rounds: banded, or on a grid of any form."""

from collections.abc import Sequence

import numpy as np

from tff_mf.mechanisms import Banded, BandedToeplitz
from tff_mf.streams._steps import THE_NEW_ROW, Product, Step, Steps, Terms
from tff_mf.streams.blocks import lengths


class RowsSteps(Steps):
    """L_t = Σ_{0<i<b̂} K_{t,t−i} n_{t−i}, for the rows K of C below its diagonal, divided by their diagonal entries.

    The memory is b̂ − 1 rows: the sums for the remaining rounds of the block, in place of the rows that no later block
    needs; then past rows, the oldest first. A round takes the first sum and appends its own row, so that at the start
    of the next block all are rows.

    Args:
        scales: 1 / C_tt, `[rounds]`, or `[1]` if K is the same in each round.
        coefficients: K_{t,t−i} for i = 1, 2, …, `[rounds, bands − 1]`, or `[1, bands − 1]`.
        stored: Type of past rows on a grid.
    """

    def __init__(self, scales: np.ndarray, coefficients: np.ndarray, stored: str = "float64") -> None:
        self.stored = stored
        self._scales, self._coefficients = scales, coefficients
        self._run, self._block = lengths(self.row_count)

    @property
    def row_count(self) -> int:
        return self._coefficients.shape[1]

    def rows_in_use(self, done: int) -> int:
        return min(done, self.row_count)

    def sums(self, done: int) -> int:
        place = done % self._block
        return self._block - place if place else 0

    def step(self, done: int) -> Step:
        scale = float(self._scales[0 if len(self._scales) == 1 else done])
        rows = self.row_count
        if rows == 0:
            return Step(scale=scale)
        place = done % self._block
        if place == 0:
            # Before the first rounds, rows are zero; no sum is without terms.
            used = min(max(done, 1), rows)
            weights = self._entries(done, self._block, range(used, 0, -1))
            product = Product(weights=weights, rows=range(rows - used, rows))
            after = [*_each(range(rows + 1, rows + self._block)), *range(self._block, rows), THE_NEW_ROW]
            return Step(scale=scale, past=((rows, 1.0),), after=tuple(after), product=product)
        in_run = place % self._run
        if in_run:
            entries = self._entries(done, 1, range(in_run, 0, -1))[0].tolist()
            past = ((0, 1.0), *zip(range(rows - in_run, rows), entries, strict=True))
            return Step(scale=scale, past=past, after=(*range(1, rows), THE_NEW_ROW))
        weights = np.hstack([np.eye(self._run), self._entries(done, self._run, range(place, 0, -1))])
        product = Product(weights=weights, rows=[*range(self._run), *range(rows - place, rows)])
        after = [*_each(range(rows + 1, rows + self._run)), *range(self._run, rows), THE_NEW_ROW]
        return Step(scale=scale, past=((rows, 1.0),), after=tuple(after), product=product)

    def _entries(self, done: int, rounds: int, ages: Sequence[int]) -> np.ndarray:
        """Returns K_{t+i, t−age} for t = done, i below `rounds` and each age, `[rounds, ages]`."""
        offsets = np.add.outer(np.arange(rounds), np.asarray(ages, np.int64)) - 1
        inside = offsets < self.row_count
        # Beyond the last round, whatever is not needed.
        lines = np.minimum(done + np.arange(rounds), len(self._coefficients) - 1)[:, np.newaxis]
        return np.where(inside, self._coefficients[lines, np.where(inside, offsets, 0)], 0.0)


def banded_steps(mechanism: Banded) -> RowsSteps:
    """Returns the steps of a banded C in floats."""
    diagonals = mechanism.values
    table = np.zeros(diagonals.shape[::-1])
    for offset, diagonal in enumerate(diagonals):
        table[offset:, offset] = diagonal[: len(table) - offset]
    return RowsSteps(1 / table[:, 0], table[:, 1:] / table[:, :1])


def banded_toeplitz_steps(mechanism: BandedToeplitz) -> RowsSteps:
    """Returns the steps of a banded Toeplitz C in floats."""
    column = np.array(mechanism.column)
    return RowsSteps(1 / column[:1], column[np.newaxis, 1:] / column[0])


def _each(sources: range) -> list[Terms]:
    return [((source, 1.0),) for source in sources]
