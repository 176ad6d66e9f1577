"""Noise of a BLT: one row of memory a buffer."""

import tensorflow as tf

from tff_mf.mechanisms import BLT
from tff_mf.noise._stream import NoiseStream


class BLTStream(NoiseStream[BLT]):
    """McMahan et al. (2024), equation 3 and algorithm 3: x_t = z_t − ωᵀS, then S ← diag(θ)S + 1x_t."""

    def _initial_rows(self) -> tuple[tf.Tensor, ...]:
        return tuple(tf.zeros([self._dimension], tf.float32) for _ in range(self._mechanism.buffers))

    def _step(self, rows: tuple[tf.Tensor, ...], noise: tf.Tensor) -> tuple[tf.Tensor, tuple[tf.Tensor, ...]]:
        row = noise - tf.add_n([omega * buffer for omega, buffer in zip(self._mechanism.omega, rows, strict=True)])
        return row, tuple(theta * buffer + row for theta, buffer in zip(self._mechanism.theta, rows, strict=True))
