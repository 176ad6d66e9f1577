"""Banded matrices: C has few diagonals, with any values, or each of them constant."""

import dataclasses
from collections.abc import Sequence
from typing import ClassVar, Self

import numpy as np

from tff_mf.base import in_order, validation
from tff_mf.base.errors import InputTypeError, InputValueError
from tff_mf.mechanisms import series
from tff_mf.mechanisms._mechanism import BandedMechanism, ToeplitzMechanism
from tff_mf.mechanisms.grid import GridBounds, Rows
from tff_mf.mechanisms.recursion import Recursion, of_diagonals, of_rows


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Banded(BandedMechanism):
    """A banded strategy matrix (BandMF); its noise needs the last b̂ − 1 noise rows in memory.

    Attributes:
        values: Diagonals of C, float64 `[bands, rounds]`: entry `[i, t]` is C_{t+i,t}, so that a column holds a
            column of C, from the main diagonal downwards. The main diagonal is above 0. Entries with
            t + i ≥ rounds belong to no row, and are stored as 0.

    Example:
        >>> Banded(values=[[1.0, 1.0, 2.0], [0.5, 0.25, 0.0]]).encoder(3)
        array([[1.  , 0.  , 0.  ],
               [0.5 , 1.  , 0.  ],
               [0.  , 0.25, 2.  ]])
    """

    kind: ClassVar[str] = "banded"
    values: np.ndarray

    def __post_init__(self) -> None:
        object.__setattr__(self, "values", _checked(self.values))
        super().__post_init__()

    @property
    def bands(self) -> int:
        return self.values.shape[0]

    @property
    def max_rounds(self) -> int:
        return self.values.shape[1]

    def diagonals(self, rounds: int) -> np.ndarray:
        return self.values[:, : self.check(rounds)]

    def cast_to_float32(self) -> Self:
        return dataclasses.replace(self, values=self.values.astype(np.float32).astype(np.float64))

    def grid_bounds(self) -> GridBounds:
        rows = of_diagonals(self.values)
        return Rows(self, rows, banded=True)


def _checked(values: object) -> np.ndarray:
    """Returns a read-only float64 copy, zero where it belongs to no row."""
    array = np.asarray(values)
    if array.dtype.kind not in "fiu":
        raise InputTypeError(f"values of type {array.dtype} must be numbers, with one row per diagonal of C.")
    if array.ndim != 2 or 0 in array.shape or array.shape[0] > array.shape[1]:
        raise InputValueError(
            f"values of shape {array.shape} must have the shape [bands, rounds], with at least one band and at most as "
            "many bands as rounds."
        )
    bands, rounds = array.shape
    copy = np.where(in_matrix(bands, rounds), array, 0.0).astype(np.float64)
    if not np.all(np.abs(copy) <= series.LARGEST):
        raise InputValueError(
            f"values must be finite and at most {series.LARGEST}, because noise is computed in float32."
        )
    smallest = int(np.argmin(copy[0]))
    if copy[0, smallest] < series.SMALLEST:
        raise InputValueError(
            f"values[0, {smallest}]={copy[0, smallest]!r} on the main diagonal must be at least {series.SMALLEST}."
        )
    # -0.0 and 0.0 are equal but have different bytes: equal mechanisms must hash and save alike.
    copy += 0.0
    copy.setflags(write=False)
    return copy


def in_matrix(bands: int, rounds: int) -> np.ndarray:
    """Returns which entries of stored diagonals belong to a row, bool `[bands, rounds]`."""
    return np.add.outer(np.arange(bands), np.arange(rounds)) < rounds


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
        return of_rows(np.array([self.column]))

    def grid_bounds(self) -> GridBounds:
        rows = np.array([self.column])
        return Rows(self, rows, banded=True)
