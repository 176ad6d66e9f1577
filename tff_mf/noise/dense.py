"""Noise of any lower-triangular C: all rows of z so far, drawn again from their keys."""

import numpy as np
import tensorflow as tf

from tff_mf.errors import InputTypeError
from tff_mf.mechanisms import Mechanism
from tff_mf.noise._keyed import NoiseState
from tff_mf.noise._stream import NoiseStream


class DenseStream(NoiseStream[Mechanism]):
    """x_t = Σ_{i≤t} (C⁻¹)_{t,i} z_i: no rows of memory, and t + 1 draws in round t.

    Slow: n²/2 draws in n rounds. C⁻¹ is rounded to float32, which a `Dense` cast to float32 has no need of. The
    mechanism must have a last round.
    """

    @property
    def row_count(self) -> int:
        return 0

    def coefficients(self) -> tuple[np.ndarray, ...]:
        """Returns the lower triangle of C⁻¹, row by row, float32 `[rounds · (rounds + 1) / 2]`."""
        if self.mechanism.max_rounds is None:
            raise InputTypeError(
                f"mechanism of kind {self.mechanism.kind!r} has no last round, so the rows of its C⁻¹ cannot be "
                "stored: give it max_rounds, or register a stream."
            )
        inverse = self.mechanism.inverse(self.mechanism.max_rounds)
        return (inverse[np.tril_indices(len(inverse))].astype(np.float32),)

    def step(self, noise: tf.Tensor, state: NoiseState) -> tuple[tf.Tensor, tuple[tf.Tensor, ...]]:
        (triangle,) = state.coefficients
        begin = state.round * (state.round + 1) // 2
        weights = triangle[begin : begin + state.round + 1]
        return self.weighted_past(weights[:-1], state.keys, weights[-1] * noise), ()
