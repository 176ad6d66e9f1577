"""Noise of the online tree: one row of memory per level."""

import numpy as np
import tensorflow as tf

from tff_mf.mechanisms import Tree, tree_factors
from tff_mf.noise import _counter
from tff_mf.noise._keyed import NoiseState
from tff_mf.noise._rows import weighted_sums
from tff_mf.noise._stream import NoiseStream


class OnlineTreeStream(NoiseStream[Tree]):
    """The change of a prefix sum's estimate in a round ("Honaker from below").

    Row h is the estimate of the last complete node of height h. A round that completes nodes up to height H merges the
    estimates below into that of the highest node and adds its new noise; on average it reads one row. The shares are
    those of `tree_factors.online_decoder`.
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
        new = tf.constant(tree_factors.online_scale(height), tf.float32) * noise
        if height == 0:
            return (new, *_counter.put(rows, 0, new))
        weights = [1 - tree_factors.online_weight(level) for level in range(1, height + 1)]
        shares = np.cumprod(weights[::-1])[::-1]
        if height == len(rows):
            (change,) = weighted_sums(tf.constant(shares[np.newaxis] - 1, tf.float32), rows)
            return (new + change, *rows)
        known, change = weighted_sums(tf.constant(np.stack([shares, shares - 1]), tf.float32), rows[:height])
        return (new + change, *_counter.put(rows, height, new + known))
