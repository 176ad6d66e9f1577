"""Privacy amplification by random allocation, of mechanisms whose noise is independent in every round."""

from tff_mf.allocation._account import (
    calibrate_random_allocation_noise_multiplier as calibrate_random_allocation_noise_multiplier,
)
from tff_mf.allocation._account import one_of_many as one_of_many
from tff_mf.allocation._account import random_allocation_epsilon as random_allocation_epsilon
from tff_mf.allocation._atoms import Atoms as Atoms
