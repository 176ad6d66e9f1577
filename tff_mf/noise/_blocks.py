"""Weighted sums of past rows, by blocks of rounds and runs of a block: each row is read a few times in all."""

from collections.abc import Callable, Sequence

import tensorflow as tf

from tff_mf.noise._keyed import NoiseState
from tff_mf.noise._rows import weighted_sums
from tff_mf.streams.blocks import lengths

Rows = tuple[tf.Tensor, ...]


class Blocks:
    """At the start of a block, one matrix product computes what the rows so far contribute to each of its rounds.

    They are then read once per block instead of once per round. A run, a part of a block, does the same with the
    earlier rows of the block. A round itself reads only the rows of its own run.

    Args:
        rows: Number of past rows that a round depends on.
        entries: A function of a state, a number of rounds and the ages of rows that returns the weight, in each of the
            next rounds, of the row that is so old now.
    """

    def __init__(self, rows: int, entries: Callable[[NoiseState, int, Sequence[int]], tf.Tensor]) -> None:
        self._rows, self._entries = rows, entries
        self.run, self.block = lengths(rows)

    def sums(self, state: NoiseState, sums: Rows, rows: Rows) -> Rows:
        """Returns the sums of the remaining rounds of the block, this round's first, without the rows of its run."""
        place = state.round % self.block
        # Not ==, which compares objects in the graphs that TFF traces.
        sums = tf.cond(tf.equal(place, 0), lambda: self._begin_block(state, rows), lambda: tuple(sums))
        runs = tf.where(tf.equal(place % self.run, 0), place // self.run, 0)
        branches = [
            lambda done=done: self._begin_run(state, sums, rows, done) for done in range(0, self.block, self.run)
        ]
        return tf.switch_case(tf.cast(runs, tf.int32), branches)

    def in_run(self, state: NoiseState, finish: Callable[[int], tf.Tensor]) -> tf.Tensor:
        """Returns what `finish` returns for the number of rounds of the run that are done."""
        done = state.round % self.block % self.run
        return tf.switch_case(tf.cast(done, tf.int32), [lambda done=done: finish(done) for done in range(self.run)])

    def past(self, state: NoiseState, sum_: tf.Tensor, rows: Rows) -> tf.Tensor:
        """Returns the whole weighted sum of this round, from its sum without the rows of its run."""

        def finish(done: int) -> tf.Tensor:
            if done == 0:
                return sum_
            entries = self._entries(state, 1, range(done, 0, -1))
            weights = tf.concat([tf.ones([1, 1], entries.dtype), entries], axis=1)
            (whole,) = weighted_sums(weights, (sum_, *rows[-done:]))
            return whole

        return self.in_run(state, finish)

    def _begin_block(self, state: NoiseState, rows: Rows) -> Rows:
        """Returns the contribution of all rows to each round of the block that starts."""
        return tuple(weighted_sums(self._entries(state, self.block, range(self._rows, 0, -1)), rows))

    def _begin_run(self, state: NoiseState, sums: Rows, rows: Rows, done: int) -> Rows:
        """Returns the sums, to which those of the starting run get the contribution of the first `done` rounds."""
        if done == 0:
            return tuple(sums)
        new = weighted_sums(self._entries(state, self.run, range(done, 0, -1)), rows[-done:])
        return (*(old + more for old, more in zip(sums, new, strict=False)), *sums[self.run :])
