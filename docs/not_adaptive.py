"""Noise that is private for records that are fixed in advance, and not for records that depend on earlier models.

Denisov et al. (2022), section D.1, as a plugin, which is refused because its noise is not C⁻¹z:

    tff-mf --plugin docs/not_adaptive.py audit not-adaptive --rounds 2 --min-sep 1 --max-participations 2
"""

import dataclasses
import math

import numpy as np

import tff_mf
from tff_mf.mechanisms import ToeplitzMechanism


def weak_share(dimension):
    """η: the standard deviation of the second noise in the direction of the first; 1 in all other directions."""
    return min(1.0, 5 * math.sqrt(math.log(dimension)) / dimension)


@dataclasses.dataclass(frozen=True, kw_only=True)
class NotAdaptive(ToeplitzMechanism):
    """It says that its noise is independent, C = I, and no covariance of fixed coordinates contradicts that."""

    kind = "not_adaptive"

    def coefficients(self, rounds):
        return np.eye(rounds)[0]

    def inverse_coefficients(self, rounds):
        return np.eye(rounds)[0]

    def cast_to_float32(self):
        return self


def stream(mechanism, **arguments):
    """A in even rounds; B in odd ones, which has almost no noise in the direction of A."""
    import tensorflow as tf

    from tff_mf.noise import NoiseStream

    class WeakStream(NoiseStream):
        @property
        def row_count(self):
            return 1

        def step(self, noise, state):
            direction = tf.math.l2_normalize(state.rows[0])
            weak = (1 - weak_share(self.dimension)) * tf.reduce_sum(noise * direction) * direction
            return tf.where(tf.equal(state.round % 2, 1), noise - weak, noise), (noise,)

    return WeakStream(mechanism, **arguments)


tff_mf.register_mechanism(NotAdaptive, stream=stream, named={"not-adaptive": lambda _: NotAdaptive()})
