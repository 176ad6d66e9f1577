"""Integer noise of a C whose coefficients are multiples of a power of two: banded, or of few rounds and any form."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tff_mf import grids
from tff_mf.mechanisms import BandedToeplitz, Mechanism
from tff_mf.noise._blocks import Blocks
from tff_mf.noise._grid import GridStream, Past, Tensors, no_past, whole
from tff_mf.noise._keyed import NoiseState


class RowsGridStream(GridStream[Mechanism]):
    """L_t = Σ_{0<i<b̂} K̃_{t,t−i} n_{t−i}, by blocks of rounds: exact, so that blocks change no bit.

    The memory is the sums of the remaining rounds of the block, float64, then the last b̂ − 1 rows of integers.
    A mechanism that is not banded has as many bands as rounds: it is for small models.

    Raises:
        InputValueError: If all rows of a mechanism that is not banded have more than 2^28 entries.
    """

    def __init__(self, mechanism: Mechanism, **arguments: Any) -> None:
        super().__init__(mechanism, **arguments)
        self._bands = self._recursion.bands
        grids.check_rows(mechanism.kind, bands=self._bands, dimension=self.dimension)
        self._blocks = Blocks(self._bands - 1, self._entries)

    @property
    def row_count(self) -> int:
        return self._blocks.block + self._bands - 1 if self._bands > 1 else 0

    def rows_in_use(self, step: tf.Tensor) -> tf.Tensor:
        return tf.minimum(step, self._bands - 1)

    def _first_rows(self) -> Tensors:
        if self._bands == 1:
            return ()
        sums = [tf.zeros([self.dimension], tf.float64) for _ in range(self._blocks.block)]
        rows = [tf.zeros([self.dimension], self._recursion.stored) for _ in range(self._bands - 1)]
        return (*sums, *rows)

    def coefficients(self) -> tuple[np.ndarray, ...]:
        """Returns 1 / C_tt by round, and K̃ by rows followed by rows of zeros for the last block; Toeplitz has none."""
        if isinstance(self.mechanism, BandedToeplitz):
            return ()
        table = np.pad(self._recursion.coefficients, [(0, self._blocks.block), (0, 0)])
        return self._recursion.relative_scales, table

    def relative_scale(self, state: NoiseState) -> tf.Tensor | float:
        if isinstance(self.mechanism, BandedToeplitz):
            return float(self._recursion.relative_scales[0])
        return state.coefficients[0][state.round]

    def _entries(self, state: NoiseState, rounds: int, ages: Sequence[int]) -> tf.Tensor:
        """Returns K̃_{t+i, t−age} for round t of the state, i below `rounds` and each age, float64 `[rounds, ages]`."""
        offsets = np.add.outer(np.arange(rounds), np.asarray(ages, np.int64)) - 1
        inside = offsets < self._bands - 1
        if isinstance(self.mechanism, BandedToeplitz):
            column = self._recursion.coefficients[0]
            return tf.constant(np.where(inside, column[np.where(inside, offsets, 0)], 0.0))
        lines = tf.slice(state.coefficients[1], [state.round, 0], [rounds, self._bands - 1])
        return tf.where(inside, tf.gather(lines, np.where(inside, offsets, 0), batch_dims=1), 0.0)

    def past(self, state: NoiseState) -> tuple[Past, Tensors]:
        if self._bands == 1:
            return no_past, ()
        sums, rows = state.rows[: self._blocks.block], state.rows[self._blocks.block :]
        sums = self._blocks.sums(state, sums, rows)
        return whole(self._blocks.past(state, sums[0], rows)), sums

    def after(self, row: tf.Tensor, state: NoiseState, computed: Tensors) -> Tensors:
        if self._bands == 1:
            return ()
        rows = state.rows[self._blocks.block + 1 :]
        # The place of the sum that was used is free until the next block begins.
        return (*computed[1:], computed[0], *rows, tf.cast(row, self._recursion.stored))
