"""Noise of any lower-triangular C: all rows of z so far, drawn again from their keys."""

import numpy as np

from tff_mf import _matrices
from tff_mf.errors import InputTypeError
from tff_mf.mechanisms import Mechanism, ToeplitzMechanism
from tff_mf.streams._steps import Step, Steps


class InverseRowsSteps(Steps):
    """n_t = Σ_{i≤t} (C⁻¹)_{t,i} s·z_i: no rows of memory, and t + 1 draws in round t.

    Slow: n²/2 draws in n rounds. For a Toeplitz mechanism without a last round, the last round is 16,384.

    Raises:
        InputTypeError: If the mechanism has no last round and is not Toeplitz.
    """

    MOST_ROUNDS = 2**14

    def __init__(self, mechanism: Mechanism) -> None:
        self._toeplitz = isinstance(mechanism, ToeplitzMechanism)
        if isinstance(mechanism, ToeplitzMechanism):
            self._inverse = mechanism.inverse_coefficients(mechanism.max_rounds or self.MOST_ROUNDS)
        elif mechanism.max_rounds is None:
            raise InputTypeError(
                f"mechanism of kind {mechanism.kind!r} has no last round, so the rows of its C⁻¹ cannot be stored: "
                "give it max_rounds."
            )
        else:
            self._inverse = mechanism.inverse(mechanism.max_rounds)

    @property
    def digest(self) -> str:
        """SHA-256 of what is computed of C⁻¹, for fingerprints."""
        return _matrices.digest([self._inverse])

    def first_rows(self, rounds: int) -> np.ndarray:
        """Returns the first rows and columns of the C⁻¹ that noise is computed from, float64 `[rounds, rounds]`."""
        return _matrices.lower_toeplitz(self._inverse[:rounds]) if self._toeplitz else self._inverse[:rounds, :rounds]

    @property
    def row_count(self) -> int:
        return 0

    def step(self, done: int) -> Step:
        weights = self._inverse[done::-1] if self._toeplitz else self._inverse[done, : done + 1]
        past = [(index, float(weight)) for index, weight in enumerate(weights[:-1]) if weight]
        return Step(scale=float(weights[-1]), drawn_again=past)
