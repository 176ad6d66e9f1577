"""Noise of a banded C."""

from collections.abc import Sequence

import numpy as np
import tensorflow as tf

from tff_mf.mechanisms import Banded
from tff_mf.noise._banded import BandedRowsStream
from tff_mf.noise._keyed import NoiseState


class BandedStream(BandedRowsStream[Banded]):
    """x_t = (z_t − Σ_{0<i<b̂} C_{t,t−i} x_{t−i}) / C_{t,t}; see `BandedRowsStream`."""

    def coefficients(self) -> tuple[np.ndarray, ...]:
        """Returns C by rows, from the main diagonal to the left, followed by rows of zeros for the last block."""
        diagonals = self.mechanism.values
        bands, rounds = diagonals.shape
        table = np.zeros((rounds + self._block, bands), np.float32)
        for offset, diagonal in enumerate(diagonals):
            table[offset:rounds, offset] = diagonal[: rounds - offset]
        return (table,)

    def _entries(self, state: NoiseState, rounds: int, ages: Sequence[int]) -> tf.Tensor:
        (table,) = state.coefficients
        offsets = np.add.outer(np.arange(rounds), np.asarray(ages, np.int64))
        inside = offsets < self.mechanism.bands
        lines = tf.slice(table, [state.round, 0], [rounds, self.mechanism.bands])
        entries = tf.gather(lines, np.where(inside, offsets, 0), batch_dims=1)
        return tf.where(inside, entries, 0.0)
