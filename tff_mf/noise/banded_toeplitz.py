"""Noise of a banded Toeplitz C, with the same coefficients in each round."""

from collections.abc import Sequence

import numpy as np
import tensorflow as tf

from tff_mf.mechanisms import BandedToeplitz
from tff_mf.noise._banded import BandedRowsStream
from tff_mf.noise._keyed import NoiseState


class BandedToeplitzStream(BandedRowsStream[BandedToeplitz]):
    """x_t = (z_t − Σ_{0<i<b̂} c_i x_{t−i}) / c_0, for any number of rounds; see `BandedRowsStream`."""

    def _entries(self, state: NoiseState, rounds: int, ages: Sequence[int]) -> tf.Tensor:
        del state
        offsets = np.add.outer(np.arange(rounds), np.asarray(ages, np.int64))
        column = np.zeros(offsets.max() + self.mechanism.bands, np.float32)
        column[: self.mechanism.bands] = self.mechanism.column
        return tf.constant(column[offsets])

    def _over_diagonal(self, row: tf.Tensor, state: NoiseState) -> tf.Tensor:
        return row if self.mechanism.column[0] == 1.0 else super()._over_diagonal(row, state)
