"""Noise of any lower-triangular C: all rows of z so far, drawn again from their keys."""

import numpy as np
import tensorflow as tf

from tff_mf.mechanisms import Dense
from tff_mf.noise._stream import NoiseState, NoiseStream


class DenseStream(NoiseStream[Dense]):
    """x_t = Σ_{i≤t} (C⁻¹)_{t,i} z_i: no row of memory, and t + 1 draws in round t."""

    @property
    def _row_count(self) -> int:
        return 0

    def _coefficients(self) -> tuple[tf.Tensor, ...]:
        """The lower triangle of C⁻¹, row after row, float32 `[rounds · (rounds + 1) / 2]`."""
        inverse = self._mechanism.inverse(self._mechanism.max_rounds)
        return (tf.constant(inverse[np.tril_indices(len(inverse))].astype(np.float32)),)

    def _step(self, noise: tf.Tensor, state: NoiseState) -> tuple[tf.Tensor, tuple[tf.Tensor, ...]]:
        (triangle,) = state.coefficients
        begin = state.round * (state.round + 1) // 2
        weights = triangle[begin : begin + state.round + 1]
        return self._weighted_past(weights[:-1], state.keys, weights[-1] * noise), ()
