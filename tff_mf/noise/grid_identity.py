"""Independent integer noise, without memory."""

import tensorflow as tf

from tff_mf.mechanisms import Identity
from tff_mf.noise._grid import GridStream, Past, Tensors, no_past
from tff_mf.noise._keyed import NoiseState


class IdentityGridStream(GridStream[Identity]):
    """n_t = R(s·z_t)."""

    @property
    def row_count(self) -> int:
        return 0

    def past(self, state: NoiseState) -> tuple[Past, Tensors]:
        return no_past, ()

    def after(self, row: tf.Tensor, state: NoiseState, computed: Tensors) -> Tensors:
        return ()
