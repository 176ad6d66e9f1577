"""Any lower-triangular matrix, given entry by entry."""

import dataclasses
import functools
from typing import ClassVar, Self

import numpy as np

from tff_mf.base import in_order, matrices, validation
from tff_mf.base.errors import InputValueError
from tff_mf.mechanisms._mechanism import Mechanism


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Dense(Mechanism):
    """A strategy matrix C without structure: its noise needs all earlier noise rows in memory.

    Attributes:
        matrix: C, lower-triangular with a diagonal above 0, float64 `[rounds, rounds]`.

    Example:
        >>> Dense(matrix=[[1.0, 0.0], [0.5, 2.0]]).inverse(2)
        array([[ 1.  ,  0.  ],
               [-0.25,  0.5 ]])
    """

    kind: ClassVar[str] = "dense"
    matrix: np.ndarray

    def __post_init__(self) -> None:
        object.__setattr__(self, "matrix", _checked(self.matrix))
        super().__post_init__()

    @property
    def max_rounds(self) -> int:
        return len(self.matrix)

    def encoder(self, rounds: int) -> np.ndarray:
        rounds = self.check(rounds)
        return self.matrix[:rounds, :rounds].copy()

    def inverse(self, rounds: int) -> np.ndarray:
        rounds = self.check(rounds)
        return self._inverse[:rounds, :rounds].copy()

    def cast_to_float32(self) -> Self:
        """Returns the mechanism with its matrix cast to float32, unless noise of it grows beyond all digits."""
        return self._cast

    @functools.cached_property
    def _cast(self) -> Self:
        with np.errstate(over="ignore", invalid="ignore"):
            cast = dataclasses.replace(self, matrix=self.matrix.astype(np.float32))
            # Where C⁻¹ grows, rows of noise cancel one another, and the draw of a round is rounded away beside them.
            products = np.abs(cast._inverse).sum(axis=0) @ np.abs(cast.matrix)
        matrices.check_digits(self.kind, len(cast.matrix), float(np.max(products)))
        return cast

    @functools.cached_property
    def _inverse(self) -> np.ndarray:
        return in_order.solve(self.matrix, np.eye(len(self.matrix)))


def _checked(matrix: object) -> np.ndarray:
    """Returns a read-only float64 copy."""
    copy = matrices.numbers("matrix", matrix)
    if copy.shape[0] != copy.shape[1]:
        raise InputValueError(f"matrix of shape {copy.shape} must be square, with one row and one column per round.")
    validation.dense(len(copy))
    if np.any(np.triu(copy, 1)):
        raise InputValueError("matrix must be lower-triangular: the noise of a round cannot depend on later rounds.")
    smallest = int(np.argmin(np.diagonal(copy)))
    if copy[smallest, smallest] <= 0:
        raise InputValueError(
            f"matrix[{smallest}, {smallest}]={copy[smallest, smallest]} on the diagonal must be greater than 0."
        )
    copy.setflags(write=False)
    return copy
