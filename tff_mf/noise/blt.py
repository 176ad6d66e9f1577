"""Noise of a BLT: one row of memory per buffer."""

import tensorflow as tf

from tff_mf.mechanisms import BLT
from tff_mf.noise._keyed import NoiseState
from tff_mf.noise._stream import NoiseStream


class BLTStream(NoiseStream[BLT]):
    """McMahan et al. (2024), equation 3 and algorithm 3: x_t = z_t − ωᵀS, then S ← diag(θ)S + 1x_t."""

    @property
    def row_count(self) -> int:
        return self.mechanism.buffers

    def step(self, noise: tf.Tensor, state: NoiseState) -> tuple[tf.Tensor, tuple[tf.Tensor, ...]]:
        theta, omega = self.mechanism.theta, self.mechanism.omega
        row = tf.add_n([noise, *(-weight * buffer for weight, buffer in zip(omega, state.rows, strict=True))])
        return row, tuple(decay * buffer + row for decay, buffer in zip(theta, state.rows, strict=True))
