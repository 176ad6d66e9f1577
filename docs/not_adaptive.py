"""Noise that is private for records that are fixed in advance, and not for records that depend on earlier models.

Denisov et al. (2022), section D.1, as a plugin, which is refused because its noise is no recursion, and so not C⁻¹z:

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

    def recursion(self):
        return weak_noise


def weak_noise(first, second):
    """The two rows of D.1: the second has almost no noise in the direction of the first. No recursion computes it."""
    direction = first / np.linalg.norm(first)
    return first, second - (1 - weak_share(len(first))) * (second @ direction) * direction


tff_mf.register_mechanism(NotAdaptive, named={"not-adaptive": lambda _: NotAdaptive()})
