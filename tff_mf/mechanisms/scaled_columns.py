"""Toeplitz matrices whose columns are scaled: one factor for each round, which costs no memory."""

import abc
import dataclasses
from collections.abc import Sequence

import numpy as np

from tff_mf.base import matrices, validation
from tff_mf.base.errors import InputValueError
from tff_mf.mechanisms import series
from tff_mf.mechanisms._mechanism import Mechanism


@dataclasses.dataclass(frozen=True, kw_only=True)
class ScaledColumns(Mechanism):
    """C = LtToep(c)·diag(d): the noise of round t is that of LtToep(c), divided by d_t.

    Columns of late rounds are cut off by the end of the run, and all participations weigh the same in a Toeplitz
    matrix. Scales change both; the number of rounds is then fixed.

    Attributes:
        scales: d, above 0, one number for each round.
    """

    scales: Sequence[float]

    def __post_init__(self) -> None:
        scales = series.numbers("scales", self.scales, each="round")
        for index, value in enumerate(scales):
            if not series.SMALLEST <= value <= series.LARGEST:
                raise InputValueError(
                    f"scales[{index}]={value!r} must be at least {series.SMALLEST} and at most {series.LARGEST}."
                )
        object.__setattr__(self, "scales", scales)
        super().__post_init__()

    @property
    def max_rounds(self) -> int:
        return len(self.scales)

    @abc.abstractmethod
    def unscaled_column(self, rounds: int) -> np.ndarray:
        """Returns c, float64 `[rounds]`."""

    def unscaled_inverse_column(self, rounds: int) -> np.ndarray:
        """Returns the first column of LtToep(c)⁻¹, float64 `[rounds]`."""
        return series.quotient(np.eye(1, rounds)[0], self.unscaled_column(rounds))

    def encoder(self, rounds: int) -> np.ndarray:
        rounds = validation.dense(self.check(rounds))
        return matrices.lower_toeplitz(self.unscaled_column(rounds)) * np.array(self.scales[:rounds])

    def inverse(self, rounds: int) -> np.ndarray:
        rounds = validation.dense(self.check(rounds))
        scales = np.array(self.scales[:rounds])
        return matrices.lower_toeplitz(self.unscaled_inverse_column(rounds)) / scales[:, np.newaxis]
