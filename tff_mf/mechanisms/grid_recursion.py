"""Recursions on a grid of integers, with the bounds that ε is computed from: docs/proofs/floating-point.md."""

import abc
from typing import TYPE_CHECKING, Generic, TypeVar

import numpy as np

from tff_mf.base.errors import InputValueError
from tff_mf.mechanisms.recursion import Recursion

if TYPE_CHECKING:
    from tff_mf.mechanisms._mechanism import Mechanism

# Largest relative error of one operation in float64.
ROUNDING = 2.0**-53
# Exceeds the relative rounding error of the bounds themselves.
SLACK = 1 + 2.0**-10
# Rounds of a stream whose mechanism has no last one.
MOST_ROUNDS = 2**17
# Up to so many rounds, a matrix is formed for bounds.
MOST_WHOLE_ROUNDS = 2**12
# A recursion may differ from the exact one by this much, in units of the grid; a stream ends before.
LARGEST_ERROR = 2.0**-6
# Of a row, so that its sum with records is exact.
LARGEST = 2.0**52
# Of all rows of a mechanism that is not banded: 1 GiB in int32.
_MOST_ENTRIES = 2**28


_M = TypeVar("_M", bound="Mechanism")


class GridRecursion(abc.ABC, Generic[_M]):
    """n_t = R(s_t·z_t − L_t), with L_t = Σ_{i<t} K_ti n_i for row t of C divided by C_tt, and s_t = s / C_tt.

    Args:
        mechanism: The mechanism, cast to float32.
        deviation: s, standard deviation of a coordinate of the independent noise in units of the grid.
        largest_normal: T, largest absolute value of a standard normal that is drawn.

    Attributes:
        rounds: Last round of the stream.
        column_change: Bound on the norm of a column of C̃ − C, for the C̃ with the entries that the recursion computes
            with.
        smallest_diagonal: Bound on the entries of C's diagonal.
        largest_diagonal: Bound on the entries of C's diagonal.
    """

    rounds: int
    column_change = 0.0
    smallest_diagonal = largest_diagonal = 1.0

    def __init__(self, mechanism: _M, *, deviation: float, largest_normal: float) -> None:
        self.mechanism, self.deviation, self.largest_normal = mechanism, deviation, largest_normal

    @property
    def unit(self) -> float:
        """Bound on |s·z + C_tt·r|, where |r| ≤ 1 is what rounding adds to n_t."""
        return (self.deviation * self.largest_normal + self.largest_diagonal) * SLACK

    @property
    @abc.abstractmethod
    def recursion(self) -> Recursion:
        """What is computed in each round; a row of memory never changes its type."""

    @property
    def in_place(self) -> Recursion:
        """The same integers with less memory, of which a row may change its type."""
        return self.recursion

    @property
    def largest(self) -> float:
        """Bound on |n_t| in all rounds of the stream."""
        return self.largest_within(self.rounds)

    @property
    def digest(self) -> str:
        """SHA-256 of what integers are computed from beside s and the normals, for fingerprints."""
        return self.recursion.digest

    @abc.abstractmethod
    def largest_within(self, rounds: int) -> float:
        """Returns N: bound on |n_t| in the first rounds, which are at most those of the stream."""

    @abc.abstractmethod
    def error(self, rounds: int) -> float:
        """Returns e: bound on the error of a computed L_t − ½, as a function of past n, in units of the grid."""

    def check(self, dimension: int) -> None:
        """Refuses a recursion that would keep too many numbers: of a mechanism that is not banded, `check_rows`."""


def allowed(name: str, largest: np.ndarray, error: np.ndarray | float = 0.0) -> int:
    """Returns how many rounds have integers and errors within their bounds, for bounds that never decrease."""
    with np.errstate(invalid="ignore"):
        fits = (largest <= LARGEST) & (np.asarray(error) <= LARGEST_ERROR)
    rounds = len(fits) if fits.all() else int(np.argmin(fits))
    if rounds == 0:
        raise InputValueError(
            f"grid does not fit the noise of this {name} mechanism: its integers would exceed 2^52 or lose their last "
            "digits. Take fewer bits or less noise."
        )
    return rounds


def check_rows(kind: str, *, bands: int, dimension: int) -> None:
    """Refuses the noise of a mechanism that is not banded if it would keep more than 2^28 numbers.

    Args:
        kind: The kind of the mechanism.
        bands: Number of diagonals of C, including the main one: the number of its rounds.
        dimension: Number d of coordinates of a record.

    Example:
        >>> check_rows("dense", bands=64, dimension=4_050_748)
    """
    entries = (bands - 1) * dimension
    if entries > _MOST_ENTRIES:
        raise InputValueError(
            f"grid with dimension={dimension} is refused: integer noise of a {kind} mechanism needs all {bands} rows "
            f"in memory, {entries:,} numbers, and the limit is {_MOST_ENTRIES:,}. Take a banded mechanism or a BLT; or "
            "grid=None (--grid none), which gives up a guarantee about the numbers that are released: it is then that "
            "of real numbers, and low bits of floats can give clients away."
        )
