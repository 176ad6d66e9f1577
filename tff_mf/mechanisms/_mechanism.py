"""What every mechanism is: a strategy matrix C, known by its name and its parameters."""

import abc
import dataclasses
from typing import ClassVar, Self

import numpy as np
import scipy.linalg

from tff_mf import _validate
from tff_mf.participation import Participation


@dataclasses.dataclass(frozen=True, kw_only=True)
class MadeFor:
    """The setting a mechanism was optimized for; it may well be used in another.

    Attributes:
        rounds: Number of rounds n.
        participation: The participation schema.
    """

    rounds: int
    participation: Participation

    def __post_init__(self) -> None:
        _validate.instance("participation", self.participation, Participation, "pass MinSep or SingleParticipation")
        object.__setattr__(self, "rounds", self.participation.check(self.rounds))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Mechanism(abc.ABC):
    """A lower-triangular strategy matrix C; noise is C⁻¹z for independent Gaussian rows z.

    Attributes:
        made_for: Setting that C was optimized for, or `None`.
    """

    kind: ClassVar[str]
    made_for: MadeFor | None = None

    @property
    def max_rounds(self) -> int | None:
        """Rounds that C is defined for; `None` if it goes on for ever."""
        return None

    @abc.abstractmethod
    def encoder(self, rounds: int) -> np.ndarray:
        """Returns C, lower-triangular, float64 `[rounds, rounds]`."""

    @abc.abstractmethod
    def inverse(self, rounds: int) -> np.ndarray:
        """Returns C⁻¹, lower-triangular, float64 `[rounds, rounds]`."""

    @abc.abstractmethod
    def as_run(self) -> Self:
        """Returns the mechanism whose parameters are those the noise runs with, cast to float32.

        Privacy is accounted for this one: a parameter that rounds in the cast changes C, and it is
        the rounded C that the released noise belongs to.
        """


@dataclasses.dataclass(frozen=True, kw_only=True)
class ToeplitzMechanism(Mechanism):
    """A strategy matrix that is constant along each diagonal."""

    @abc.abstractmethod
    def coefficients(self, rounds: int) -> np.ndarray:
        """Returns the first column of C, float64 `[rounds]`."""

    @abc.abstractmethod
    def inverse_coefficients(self, rounds: int) -> np.ndarray:
        """Returns the first column of C⁻¹, float64 `[rounds]`."""

    def encoder(self, rounds: int) -> np.ndarray:
        return _lower_toeplitz(self.coefficients(rounds))

    def inverse(self, rounds: int) -> np.ndarray:
        return _lower_toeplitz(self.inverse_coefficients(rounds))


def _lower_toeplitz(column: np.ndarray) -> np.ndarray:
    return scipy.linalg.toeplitz(column, np.zeros_like(column))
