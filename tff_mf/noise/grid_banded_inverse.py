"""Integer noise of a Toeplitz C with a banded inverse: the last rows of C·n, computed from n."""

import tensorflow as tf

from tff_mf.mechanisms import BandedInverse
from tff_mf.noise._grid import GridStream, Past, Tensors, whole
from tff_mf.noise._in_order import sum_in_order
from tff_mf.noise._keyed import NoiseState


class BandedInverseGridStream(GridStream[BandedInverse]):
    """q_t = n_t + L_t with L_t = −Σ_{0<j<b̂} (d_j/d_0) q_{t−j}: the last b̂ − 1 rows q, the newest first."""

    @property
    def row_count(self) -> int:
        return self.mechanism.bands - 1

    def relative_scale(self, state: NoiseState) -> float:
        # 1 / C_tt is d_0, and the product with s is rounded.
        return self.mechanism.inverse_column[0] * (1 + 2.0**-50)

    def past(self, state: NoiseState) -> tuple[Past, Tensors]:
        first, *others = self.mechanism.inverse_column
        weights = [-other / first for other in others]
        past = sum_in_order(weights, state.rows) if others else tf.zeros([self.dimension], tf.float64)
        return whole(past), (past,)

    def after(self, row: tf.Tensor, state: NoiseState, computed: Tensors) -> Tensors:
        (past,) = computed
        return (row + past, *state.rows)[: self.row_count]
