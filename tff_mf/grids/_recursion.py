"""What is known of a mechanism's integer recursion before it runs: its last round, its largest integer, its error."""

import abc
from collections.abc import Sequence
from typing import Generic, TypeVar

import numpy as np

from tff_mf import _matrices
from tff_mf.errors import InputValueError
from tff_mf.mechanisms import Mechanism

_M = TypeVar("_M", bound=Mechanism)

# Largest relative error of one operation in float64.
ROUNDING = 2.0**-53
# Exceeds the relative rounding error of the bounds themselves.
SLACK = 1 + 2.0**-10
# Rounds of a stream whose mechanism has no last one.
MOST_ROUNDS = 2**17
# A recursion may differ from the exact one by this much, in units of the grid; a stream ends before.
_LARGEST_ERROR = 2.0**-6
# Of a row, so that its sum with records is exact.
_LARGEST = 2.0**52


class Recursion(abc.ABC, Generic[_M]):
    """n_t = R(s_t·z_t − L_t), with L_t = Σ_{i<t} K_ti n_i for row t of C divided by C_tt, and s_t = s / C_tt.

    Args:
        mechanism: The mechanism, cast to float32.
        deviation: s, standard deviation of a coordinate of the independent noise in units of the grid.
        largest_normal: T, largest absolute value of a standard normal that is drawn.
    """

    def __init__(self, mechanism: _M, *, deviation: float, largest_normal: float) -> None:
        self.mechanism, self.deviation, self.largest_normal = mechanism, deviation, largest_normal
        self.smallest_diagonal, self.largest_diagonal = 1.0, 1.0

    @property
    @abc.abstractmethod
    def rounds(self) -> int:
        """Last round of the stream."""

    @property
    def largest(self) -> float:
        """Bound on |n_t| in all rounds of the stream."""
        return self.largest_within(self.rounds)

    @abc.abstractmethod
    def largest_within(self, rounds: int) -> float:
        """Returns N: bound on |n_t| in the first rounds, which are at most those of the stream."""

    @property
    def column_change(self) -> float:
        """Bound on the norm of a column of C̃ − C, for the C̃ with the entries that the recursion computes with."""
        return 0.0

    @property
    @abc.abstractmethod
    def numbers(self) -> Sequence[np.ndarray]:
        """Everything that the integers are computed from beside s and the normals: 1 / C_tt, weights, decays."""

    @property
    def digest(self) -> str:
        """SHA-256 of `numbers`, for fingerprints: a stream with other numbers does not continue a state."""
        return _matrices.digest(self.numbers)

    @abc.abstractmethod
    def error(self, rounds: int) -> float:
        """Returns e: bound on the error of a computed L_t − ½, as a function of past n, in units of the grid."""


def allowed(name: str, largest: np.ndarray, error: np.ndarray | float = 0.0) -> int:
    """Returns how many rounds have integers and errors within their bounds, for bounds that never decrease.

    Raises:
        InputValueError: If the first round has not.
    """
    with np.errstate(invalid="ignore"):
        fits = (largest <= _LARGEST) & (np.asarray(error) <= _LARGEST_ERROR)
    rounds = len(fits) if fits.all() else int(np.argmin(fits))
    if rounds == 0:
        raise InputValueError(
            f"grid does not fit the noise of this {name} mechanism: its integers would exceed 2^52 or lose their last "
            "digits. Take fewer bits or less noise."
        )
    return rounds
