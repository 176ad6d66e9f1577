"""Integer noise of a Toeplitz C with a banded inverse: the last rows of C·n, computed from n."""

import functools
import operator

import tensorflow as tf

from tff_mf.mechanisms import BandedInverse
from tff_mf.noise._grid import GridStream, Tensors
from tff_mf.noise._keyed import NoiseState


class BandedInverseGridStream(GridStream[BandedInverse]):
    """q_t = n_t + L_t with L_t = −Σ_{0<j<b̂} (d_j/d_0) q_{t−j}: the last b̂ − 1 rows q, the newest first."""

    @property
    def row_count(self) -> int:
        return self.mechanism.bands - 1

    def relative_scale(self, state: NoiseState) -> float:
        # Exact: C_tt is 1 / d_0.
        return self.mechanism.inverse_column[0]

    def past(self, state: NoiseState) -> tuple[tf.Tensor, Tensors]:
        first, *others = self.mechanism.inverse_column
        if not others:
            past = tf.zeros([], tf.float64)
        else:
            past = functools.reduce(
                operator.add, [(-other / first) * row for other, row in zip(others, state.rows, strict=True)]
            )
        return past, (past,)

    def after(self, row: tf.Tensor, state: NoiseState, computed: Tensors) -> Tensors:
        (past,) = computed
        return (row + past, *state.rows)[: self.row_count]
