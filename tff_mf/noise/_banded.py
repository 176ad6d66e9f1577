"""Base class of banded streams: the last bands − 1 noise rows, read once per block of rounds."""

import abc
import functools
from collections.abc import Sequence
from typing import TypeVar

import tensorflow as tf

from tff_mf.mechanisms import Banded, BandedToeplitz
from tff_mf.noise._blocks import Blocks
from tff_mf.noise._keyed import NoiseState
from tff_mf.noise._rows import weighted_sums
from tff_mf.noise._stream import NoiseStream

_M = TypeVar("_M", Banded, BandedToeplitz)
_Rows = tuple[tf.Tensor, ...]


class BandedRowsStream(NoiseStream[_M]):
    """x_t = (z_t − Σ_{0<i<b̂} C_{t,t−i} x_{t−i}) / C_{t,t}, by blocks of rounds.

    Past rows are read block by block: see `Blocks`.

    The memory is b̂ − 1 rows: the sums for the remaining rounds of the block, in place of the rows that no later block
    needs; then noise rows, the oldest first. A round takes the first sum and appends its own row, so that at the
    start of the next block all are noise rows.
    """

    @property
    def row_count(self) -> int:
        return self.mechanism.bands - 1

    @functools.cached_property
    def _blocks(self) -> Blocks:
        return Blocks(self.row_count, self._entries)

    @property
    def _block(self) -> int:
        """Number of rounds in a block."""
        return self._blocks.block

    def rows_in_use(self, step: tf.Tensor) -> tf.Tensor:
        return tf.minimum(step, self.row_count)

    @abc.abstractmethod
    def _entries(self, state: NoiseState, rounds: int, ages: Sequence[int]) -> tf.Tensor:
        """Returns C_{t+i, t−age} for round t of the state, i below `rounds` and each age, float32 `[rounds, ages]`."""

    def step(self, noise: tf.Tensor, state: NoiseState) -> tuple[tf.Tensor, _Rows]:
        if not state.rows:
            return self._over_diagonal(noise, state), ()
        sums = self._blocks.sums(state, state.rows[: self._block], state.rows)
        row = self._blocks.in_run(state, lambda done: self._finish(noise, state, sums[0], done))
        return row, (*sums[1:], *state.rows[self._block :], row)

    def _finish(self, noise: tf.Tensor, state: NoiseState, sum_: tf.Tensor, done: int) -> tf.Tensor:
        """Returns this round's row, after `done` rounds of its run."""
        if done == 0:
            return self._over_diagonal(noise - sum_, state)
        entries = self._entries(state, 1, range(done, 0, -1))
        weights = tf.concat([tf.constant([[1.0, -1.0]]), -entries], axis=1)
        (row,) = weighted_sums(weights, (noise, sum_, *state.rows[-done:]))
        return self._over_diagonal(row, state)

    def _over_diagonal(self, row: tf.Tensor, state: NoiseState) -> tf.Tensor:
        return row / self._entries(state, 1, [0])[0, 0]
