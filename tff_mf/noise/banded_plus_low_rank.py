"""Noise of a decoder that is banded plus low rank."""

import numpy as np
import tensorflow as tf

from tff_mf.mechanisms import BandedPlusLowRank
from tff_mf.noise._keyed import NoiseState
from tff_mf.noise._rows import weighted_sums
from tff_mf.noise._stream import NoiseStream


class BandedPlusLowRankStream(NoiseStream[BandedPlusLowRank]):
    """x_t = y_t − y_{t−1} for y = Bz, B = D + (L·Rᵀ below D): Denisov et al. (2022), appendix H.

    The memory is the last h − 1 rows of z, the newest first; the r sums Σ_{i ≤ t−h} R_i z_i of older rows; and y_{t−1}.
    """

    @property
    def row_count(self) -> int:
        return len(self.mechanism.diagonals) + self.mechanism.left.shape[1]

    def coefficients(self) -> tuple[np.ndarray, ...]:
        """Returns D by rows followed by L, and the row of R for the row of z that leaves the diagonals in a round."""
        diagonals, left, right = (getattr(self.mechanism, name) for name in ("diagonals", "left", "right"))
        leaving = np.zeros_like(right)
        offset = len(diagonals) - 1
        leaving[offset:] = right[: len(right) - offset]
        return np.hstack([diagonals.T, left]).astype(np.float32), leaving.astype(np.float32)

    def step(self, noise: tf.Tensor, state: NoiseState) -> tuple[tf.Tensor, tuple[tf.Tensor, ...]]:
        decoder, leaving = (table[state.round] for table in state.coefficients)
        recent = (noise, *state.rows[: len(self.mechanism.diagonals) - 1])
        *sums, before = state.rows[len(recent) - 1 :]
        (after,) = weighted_sums(decoder[tf.newaxis], (*recent, *sums))
        sums = [sum_ + weight * recent[-1] for sum_, weight in zip(sums, tf.unstack(leaving), strict=True)]
        return after - before, (*recent[:-1], *sums, after)
