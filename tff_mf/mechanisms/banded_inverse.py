"""Toeplitz matrices with a banded inverse: the noise of a round is a weighted sum of a few independent draws."""

import dataclasses
from collections.abc import Sequence
from typing import ClassVar, Self

import numpy as np

from tff_mf import _in_order, validation
from tff_mf.mechanisms import series
from tff_mf.mechanisms._mechanism import ToeplitzMechanism


@dataclasses.dataclass(frozen=True, kw_only=True)
class BandedInverse(ToeplitzMechanism):
    """C⁻¹ = LtToep(d_0, …, d_{b̂−1}, 0, 0, …).

    Noise C⁻¹z is a weighted sum of the last b̂ rows of z, which are drawn again from stored keys: the state does not
    grow with the model. C itself is not banded. It is defined for any number of rounds.

    Attributes:
        inverse_column: d, the nonzero part of the first column of C⁻¹: one number per band, the first above 0.

    Example:
        >>> BandedInverse(inverse_column=[1.0, -0.5]).coefficients(4)
        array([1.   , 0.5  , 0.25 , 0.125])

    Raises:
        InputTypeError: If a parameter is not a sequence of numbers.
        InputValueError: If a parameter is out of range.
    """

    kind: ClassVar[str] = "banded_inverse"
    inverse_column: Sequence[float]

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "inverse_column", series.checked("inverse_column", self.inverse_column))

    @classmethod
    def square_root(cls, bands: int) -> Self:
        """Returns the banded inverse square root (BISR): the first coefficients of (1 − x)^(1/2).

        Source: Kalinin, McKenna, Upadhyay and Lampert (2025), "Back to square roots".

        Example:
            >>> BandedInverse.square_root(3).inverse_column
            (1.0, -0.5, -0.125)

        Raises:
            InputTypeError: If `bands` is not a whole number.
            InputValueError: If `bands` is below 1.
        """
        return cls(inverse_column=series.square_root(validation.listable(bands, "bands")).tolist())

    @property
    def bands(self) -> int:
        """Number of diagonals b̂ of C⁻¹."""
        return len(self.inverse_column)

    def coefficients(self, rounds: int) -> np.ndarray:
        """Returns the first column of C, float64 `[rounds]`, in O(rounds · bands)."""
        return _in_order.reciprocal(self.inverse_column, validation.listable(rounds))

    def inverse_coefficients(self, rounds: int) -> np.ndarray:
        """Returns the first column of C⁻¹, float64 `[rounds]`."""
        return series.padded(self.inverse_column, validation.listable(rounds))

    def cast_to_float32(self) -> Self:
        return dataclasses.replace(self, inverse_column=series.float32(self.inverse_column))
