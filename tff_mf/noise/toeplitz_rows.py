"""Noise of any Toeplitz C: all rows of z so far, drawn again from their keys."""

import numpy as np
import tensorflow as tf

from tff_mf.mechanisms import ToeplitzMechanism
from tff_mf.noise._keyed import NoiseState
from tff_mf.noise._stream import NoiseStream


class ToeplitzRowsStream(NoiseStream[ToeplitzMechanism]):
    """x_t = Σ_{i≤t} d_i z_{t−i}, for the first column d of C⁻¹: no rows of memory, and t + 1 draws in round t.

    Slow: n²/2 draws in n rounds. d is rounded to float32. For a mechanism without a last round, the last round of the
    stream is 16,384.
    """

    MOST_ROUNDS = 2**14

    @property
    def row_count(self) -> int:
        return 0

    def coefficients(self) -> tuple[np.ndarray, ...]:
        """Returns the first column of C⁻¹, float32 `[rounds]`."""
        column = self.mechanism.inverse_coefficients(self.mechanism.max_rounds or self.MOST_ROUNDS)
        return (column.astype(np.float32),)

    def step(self, noise: tf.Tensor, state: NoiseState) -> tuple[tf.Tensor, tuple[tf.Tensor, ...]]:
        (column,) = state.coefficients
        weights = tf.reverse(column[1 : state.round + 1], axis=[0])
        return self.weighted_past(weights, state.keys[: state.round], column[0] * noise), ()
