"""C = I: independent noise, as in DP-SGD and DP-FedAvg."""

import dataclasses
from typing import ClassVar, Self

import numpy as np

from tff_mf.base import validation
from tff_mf.mechanisms._mechanism import ToeplitzMechanism
from tff_mf.mechanisms.grid import GridBounds, Linear
from tff_mf.mechanisms.recursion import Recursion


@dataclasses.dataclass(frozen=True, kw_only=True)
class Identity(ToeplitzMechanism):
    """Independent noise in every round.

    Example:
        >>> Identity().coefficients(3)
        array([1., 0., 0.])
    """

    kind: ClassVar[str] = "identity"

    def coefficients(self, rounds: int) -> np.ndarray:
        column = np.zeros(validation.listable(rounds))
        column[0] = 1.0
        return column

    def inverse_coefficients(self, rounds: int) -> np.ndarray:
        return self.coefficients(rounds)

    def cast_to_float32(self) -> Self:
        return self

    def recursion(self) -> Recursion:
        return Recursion.linear(past=[], after=[])

    def grid_bounds(self) -> GridBounds:
        return Linear(self, as_stored=True)
