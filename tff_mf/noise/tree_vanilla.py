"""Noise of the vanilla tree: one row of memory per level."""

import tensorflow as tf

from tff_mf.mechanisms import Tree
from tff_mf.noise import _counter
from tff_mf.noise._keyed import NoiseState
from tff_mf.noise._stream import NoiseStream


class VanillaTreeStream(NoiseStream[Tree]):
    """The change of a prefix sum's noise in a round: that of the node that it completes, less those that it replaces.

    Row h is the noise of the last complete node of height h that is in use. A round that completes nodes up to height H
    replaces the rows below H by one; on average it reads one row.
    """

    @property
    def row_count(self) -> int:
        return _counter.row_count(self.mechanism.rounds)

    def rows_in_use(self, step: tf.Tensor) -> tf.Tensor:
        return _counter.in_use(step, self.row_count)

    def step(self, noise: tf.Tensor, state: NoiseState) -> tuple[tf.Tensor, tuple[tf.Tensor, ...]]:
        row, *rows = _counter.carry(
            state.round, self.row_count, lambda height: self._completed(noise, state.rows, height)
        )
        return row, tuple(rows)

    def _completed(self, noise: tf.Tensor, rows: _counter.Rows, height: int) -> tuple[tf.Tensor, ...]:
        """Returns this round's row and the rows of memory, for a round that completes nodes up to `height`."""
        row = noise - tf.add_n(rows[:height]) if height else noise
        return (row, *_counter.put(rows, height, noise))
