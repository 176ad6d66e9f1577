"""Noise of a Toeplitz C with a banded inverse: the last rows of z, drawn again from their keys."""

import tensorflow as tf

from tff_mf.mechanisms import BandedInverse
from tff_mf.noise._keyed import NoiseState
from tff_mf.noise._stream import NoiseStream


class BandedInverseStream(NoiseStream[BandedInverse]):
    """x_t = Σ_{i<b̂} d_i z_{t−i}: no rows of memory, and b̂ draws per round."""

    @property
    def row_count(self) -> int:
        return 0

    def step(self, noise: tf.Tensor, state: NoiseState) -> tuple[tf.Tensor, tuple[tf.Tensor, ...]]:
        column = tf.constant(self.mechanism.inverse_column, tf.float32)
        first = tf.maximum(state.round - (self.mechanism.bands - 1), 0)
        weights = tf.reverse(column[1 : state.round - first + 1], axis=[0])
        return self.weighted_past(weights, state.keys[first:], column[0] * noise), ()
