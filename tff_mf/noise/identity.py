"""Independent noise, without memory."""

import tensorflow as tf

from tff_mf.mechanisms import Identity
from tff_mf.noise._keyed import NoiseState
from tff_mf.noise._stream import NoiseStream


class IdentityStream(NoiseStream[Identity]):
    """x_t = z_t, as C = I."""

    @property
    def row_count(self) -> int:
        return 0

    def step(self, noise: tf.Tensor, state: NoiseState) -> tuple[tf.Tensor, tuple[tf.Tensor, ...]]:
        return noise, state.rows
