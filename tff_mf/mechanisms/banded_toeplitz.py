"""Banded Toeplitz matrices: C has few diagonals, each of them constant."""

import dataclasses
from collections.abc import Sequence
from typing import ClassVar, Self

import numpy as np

from tff_mf.base import in_order, validation
from tff_mf.mechanisms import series
from tff_mf.mechanisms._mechanism import ToeplitzMechanism
from tff_mf.mechanisms.grid_recursion import GridRecursion
from tff_mf.mechanisms.past_rows import OfRows, past_rows
from tff_mf.mechanisms.recursion import Recursion


@dataclasses.dataclass(frozen=True, kw_only=True)
class BandedToeplitz(ToeplitzMechanism):
    """C = LtToep(c_0, …, c_{b̂−1}, 0, 0, …); its noise needs the last b̂ − 1 noise rows in memory.

    It is defined for any number of rounds.

    Attributes:
        column: c, the nonzero part of the first column of C: one number per band, the first above 0.

    Example:
        >>> BandedToeplitz(column=[1.0, 0.5]).coefficients(4)
        array([1. , 0.5, 0. , 0. ])
        >>> BandedToeplitz(column=[1.0, 0.5]).inverse_coefficients(4)
        array([ 1.   , -0.5  ,  0.25 , -0.125])
    """

    kind: ClassVar[str] = "banded_toeplitz"
    column: Sequence[float]

    def __post_init__(self) -> None:
        super().__post_init__()
        checked = series.checked("column", self.column)
        object.__setattr__(self, "column", checked)

    @classmethod
    def square_root(cls, bands: int) -> Self:
        """Returns the first bands of the square root of the prefix sums: c_l = Π_{j ≤ l} (2j − 1) / (2j).

        Source: Fichtenberger, Henzinger and Upadhyay (2023), cut off after `bands` as in Kalinin and
        Lampert (2024).

        Example:
            >>> BandedToeplitz.square_root(3).column
            (1.0, 0.5, 0.375)
        """
        return cls(column=series.inverse_square_root(validation.listable(bands, "bands")).tolist())

    @property
    def bands(self) -> int:
        """Number of diagonals b̂ of C."""
        return len(self.column)

    def coefficients(self, rounds: int) -> np.ndarray:
        return series.padded(self.column, validation.listable(rounds))

    def inverse_coefficients(self, rounds: int) -> np.ndarray:
        """Returns the first column of C⁻¹, float64 `[rounds]`, in O(rounds · bands)."""
        return in_order.reciprocal(self.column, validation.listable(rounds))

    def cast_to_float32(self) -> Self:
        return dataclasses.replace(self, column=series.float32(self.column))

    def recursion(self) -> Recursion:
        """x_t = (z_t − Σ_{0<i<b̂} c_i x_{t−i}) / c_0, for any number of rounds."""
        column = np.array(self.column)
        return past_rows(1 / column[:1], column[np.newaxis, 1:] / column[0])

    def grid_recursion(self, *, deviation: float, largest_normal: float) -> GridRecursion:
        entries = np.array([self.column])
        return OfRows(self, entries, deviation=deviation, largest_normal=largest_normal, banded=True)
