"""Base class of banded streams: the last bands − 1 noise rows, read once per block of rounds."""

import abc
from collections.abc import Sequence
from typing import TypeVar

import tensorflow as tf

from tff_mf.mechanisms import Banded, BandedToeplitz
from tff_mf.noise._rows import weighted_sums
from tff_mf.noise._stream import NoiseState, NoiseStream

# Rows of memory per round of a block. At the start of a block its sums take twice their final memory: longer blocks
# would cost more memory and save little time (benchmarks/noise.py).
_ROWS_A_ROUND = 11

_M = TypeVar("_M", Banded, BandedToeplitz)
_Rows = tuple[tf.Tensor, ...]


class BandedRowsStream(NoiseStream[_M]):
    """x_t = (z_t − Σ_{0<i<b̂} C_{t,t−i} x_{t−i}) / C_{t,t}, by blocks of rounds.

    At the start of a block, one matrix product computes what the rows so far contribute to each of its rounds, so that
    they are read once per block instead of once per round. A run, a part of a block, does the same with the earlier
    rows of the block. A round itself reads only the rows of its own run.

    The memory is b̂ − 1 rows: the sums for the remaining rounds of the block, in place of the rows that no later block
    needs; then noise rows, the oldest first. A round takes the first sum and appends its own row, so that at the
    start of the next block all are noise rows.
    """

    @property
    def row_count(self) -> int:
        return self.mechanism.bands - 1

    @property
    def _run(self) -> int:
        """Number of rounds in a run."""
        return max(1, round((self.row_count / _ROWS_A_ROUND) ** 0.5))

    @property
    def _block(self) -> int:
        """Number of rounds in a block, a whole number of runs."""
        return self._run * max(1, round(self.row_count / _ROWS_A_ROUND / self._run))

    def rows_in_use(self, step: tf.Tensor) -> tf.Tensor:
        return tf.minimum(step, self.row_count)

    @abc.abstractmethod
    def _entries(self, state: NoiseState, rounds: int, ages: Sequence[int]) -> tf.Tensor:
        """Returns C_{t+i, t−age} for round t of the state, i below `rounds` and each age, float32 `[rounds, ages]`."""

    def step(self, noise: tf.Tensor, state: NoiseState) -> tuple[tf.Tensor, _Rows]:
        if not state.rows:
            return self._over_diagonal(noise, state), ()
        place = state.round % self._block
        # Not ==, which compares objects in the graphs that TFF traces.
        sums = tf.cond(tf.equal(place, 0), lambda: self._begin_block(state), lambda: state.rows[: self._block])
        runs = tf.where(tf.equal(place % self._run, 0), place // self._run, 0)
        sums = tf.switch_case(
            tf.cast(runs, tf.int32),
            [lambda done=done: self._begin_run(state, sums, done) for done in range(0, self._block, self._run)],
        )
        row = tf.switch_case(
            tf.cast(place % self._run, tf.int32),
            [lambda done=done: self._finish(noise, state, sums[0], done) for done in range(self._run)],
        )
        return row, (*sums[1:], *state.rows[self._block :], row)

    def _begin_block(self, state: NoiseState) -> _Rows:
        """Returns the contribution of all rows to each round of the block that starts."""
        return tuple(weighted_sums(self._entries(state, self._block, range(self.row_count, 0, -1)), state.rows))

    def _begin_run(self, state: NoiseState, sums: _Rows, done: int) -> _Rows:
        """Returns the sums, to which those of the starting run get the contribution of the first `done` rounds."""
        if done == 0:
            return tuple(sums)
        new = weighted_sums(self._entries(state, self._run, range(done, 0, -1)), state.rows[-done:])
        return (*(old + more for old, more in zip(sums, new, strict=False)), *sums[self._run :])

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
