"""Noise of any lower-triangular C: all rows of z so far, drawn again from their keys."""

import numpy as np
import tensorflow as tf

from tff_mf.errors import InputTypeError
from tff_mf.mechanisms import Mechanism
from tff_mf.noise._stream import NoiseState, NoiseStream


class DenseStream(NoiseStream[Mechanism]):
    """x_t = Σ_{i≤t} (C⁻¹)_{t,i} z_i: no row of memory, and t + 1 draws in round t.

    Slow: n²/2 draws in n rounds. C⁻¹ is rounded to float32, which changes nothing for a `Dense` as it is cast. The
    mechanism must have an end.
    """

    @property
    def row_count(self) -> int:
        return 0

    def coefficients(self) -> tuple[tf.Tensor, ...]:
        """The lower triangle of C⁻¹, row after row, float32 `[rounds · (rounds + 1) / 2]`."""
        if self.mechanism.max_rounds is None:
            raise InputTypeError(
                f"mechanism of kind {self.mechanism.kind!r} has no last round, and rows of C⁻¹ for ever have no end: "
                "give it max_rounds, or register a stream."
            )
        inverse = self.mechanism.inverse(self.mechanism.max_rounds)
        return (tf.constant(inverse[np.tril_indices(len(inverse))].astype(np.float32)),)

    def step(self, noise: tf.Tensor, state: NoiseState) -> tuple[tf.Tensor, tuple[tf.Tensor, ...]]:
        (triangle,) = state.coefficients
        begin = state.round * (state.round + 1) // 2
        weights = triangle[begin : begin + state.round + 1]
        return self.weighted_past(weights[:-1], state.keys, weights[-1] * noise), ()
