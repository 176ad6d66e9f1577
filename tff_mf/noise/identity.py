"""Independent noise: nothing to remember."""

import tensorflow as tf

from tff_mf.mechanisms import Identity
from tff_mf.noise._stream import NoiseState, NoiseStream


class IdentityStream(NoiseStream[Identity]):
    """C = I, so that C⁻¹z is z."""

    @property
    def row_count(self) -> int:
        return 0

    def step(self, noise: tf.Tensor, state: NoiseState) -> tuple[tf.Tensor, tuple[tf.Tensor, ...]]:
        return noise, state.rows
