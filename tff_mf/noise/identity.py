"""Independent noise: nothing to remember."""

import tensorflow as tf

from tff_mf.mechanisms import Identity
from tff_mf.noise._stream import NoiseStream


class IdentityStream(NoiseStream[Identity]):
    """C = I, so that C⁻¹z is z."""

    def _initial_rows(self) -> tuple[tf.Tensor, ...]:
        return ()

    def _step(self, rows: tuple[tf.Tensor, ...], noise: tf.Tensor) -> tuple[tf.Tensor, tuple[tf.Tensor, ...]]:
        return noise, rows
