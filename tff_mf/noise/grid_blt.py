"""Integer noise of a BLT: one row of memory per buffer."""

import tensorflow as tf

from tff_mf.mechanisms import BLT
from tff_mf.noise._grid import GridStream, Past, Tensors
from tff_mf.noise._in_order import parts_in_order
from tff_mf.noise._keyed import NoiseState


class BLTGridStream(GridStream[BLT]):
    """L_t = ωᵀS, then S ← diag(θ)S + 1n_t, in float64: one operation after another, as NumPy would."""

    @property
    def row_count(self) -> int:
        return self.mechanism.buffers

    def past(self, state: NoiseState) -> tuple[Past, Tensors]:
        return parts_in_order(self.mechanism.omega, state.rows), ()

    def after(self, row: tf.Tensor, state: NoiseState, computed: Tensors) -> Tensors:
        return tuple(decay * buffer + row for decay, buffer in zip(self.mechanism.theta, state.rows, strict=True))
