"""The last bands − 1 rows of noise, read once in a block of rounds: what banded streams have in common."""

import abc
from collections.abc import Sequence
from typing import TypeVar

import tensorflow as tf

from tff_mf.mechanisms import Banded, BandedToeplitz
from tff_mf.noise._rows import weighted_sums
from tff_mf.noise._stream import NoiseState, NoiseStream

# Rows remembered for each round of a block. While a block begins, its sums take up twice their final place: longer
# blocks would cost more memory, and save little time (benchmarks/noise.py).
_ROWS_A_ROUND = 11

_M = TypeVar("_M", Banded, BandedToeplitz)
_Rows = tuple[tf.Tensor, ...]


class BandedRowsStream(NoiseStream[_M]):
    """x_t = (z_t − Σ_{0<i<b̂} C_{t,t−i} x_{t−i}) / C_{t,t}, by blocks of rounds.

    Where a block begins, one matrix product adds up what the rows so far contribute to each of its rounds, so that
    they are read once a block and not once a round. A run, a part of a block, does the same with the
    rows of the block before it. What is left to a round are the rows of its own run.

    Remembered are b̂ − 1 rows: the sums for the rounds of the block to come, in place of the rows that no later
    block needs; then rows of noise, the oldest first. A round takes the first sum and puts its row behind the
    last, and so the next block finds nothing but rows.
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
        """What all rows contribute to each round of the block that begins."""
        return tuple(weighted_sums(self._entries(state, self._block, range(self.row_count, 0, -1)), state.rows))

    def _begin_run(self, state: NoiseState, sums: _Rows, done: int) -> _Rows:
        """The sums with what the `done` rounds of the block contribute added to those of the run that begins."""
        if done == 0:
            return tuple(sums)
        new = weighted_sums(self._entries(state, self._run, range(done, 0, -1)), state.rows[-done:])
        return (*(old + more for old, more in zip(sums, new, strict=False)), *sums[self._run :])

    def _finish(self, noise: tf.Tensor, state: NoiseState, sum_: tf.Tensor, done: int) -> tf.Tensor:
        """This round's row, in a run of which `done` rounds are done."""
        if done == 0:
            return self._over_diagonal(noise - sum_, state)
        entries = self._entries(state, 1, range(done, 0, -1))
        weights = tf.concat([tf.constant([[1.0, -1.0]]), -entries], axis=1)
        (row,) = weighted_sums(weights, (noise, sum_, *state.rows[-done:]))
        return self._over_diagonal(row, state)

    def _over_diagonal(self, row: tf.Tensor, state: NoiseState) -> tf.Tensor:
        return row / self._entries(state, 1, [0])[0, 0]
