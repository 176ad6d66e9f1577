"""Toeplitz matrices with a banded inverse: the noise of a round is a weighted sum of a few independent draws."""

import dataclasses
import math
from collections.abc import Sequence
from typing import Any, ClassVar, Self

import numpy as np

from tff_mf.base import in_order, validation
from tff_mf.base.errors import InputValueError
from tff_mf.mechanisms import series
from tff_mf.mechanisms._mechanism import ToeplitzMechanism
from tff_mf.mechanisms.grid_recursion import MOST_ROUNDS, ROUNDING, SLACK, GridRecursion, allowed
from tff_mf.mechanisms.recursion import NEW, PAST, Case, Recursion

# Relative, of columns of C: whoever computes with them has at least six digits.
_LARGEST_ERROR = 2.0**-20


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
        """
        return cls(inverse_column=series.square_root(validation.listable(bands, "bands")).tolist())

    @property
    def bands(self) -> int:
        """Number of diagonals b̂ of C⁻¹."""
        return len(self.inverse_column)

    def coefficients(self, rounds: int) -> np.ndarray:
        """Returns the first column of C, float64 `[rounds]`, in O(rounds · bands).

        Raises:
            InputValueError: If C is not known well enough: its coefficients grow, and digits are lost. The noise is
                that of `inverse_column`, so that another C would be accounted for.
        """
        column = in_order.reciprocal(self.inverse_column, validation.listable(rounds))
        if not series.error_of_reciprocal(self.inverse_column, column) <= _LARGEST_ERROR:
            raise InputValueError(
                f"rounds={rounds} are too many for this {self.kind} mechanism: coefficients of C overflow, or lose "
                f"digits, because they grow to {np.max(np.abs(column)):.1e}. Take an inverse whose C does not grow, or "
                "fewer rounds."
            )
        return column

    def inverse_coefficients(self, rounds: int) -> np.ndarray:
        return series.padded(self.inverse_column, validation.listable(rounds))

    def cast_to_float32(self) -> Self:
        return dataclasses.replace(self, inverse_column=series.float32(self.inverse_column))

    def recursion(self) -> Recursion:
        """x_t = Σ_{i<b̂} d_i z_{t−i}: no rows of memory, and b̂ draws per round."""
        reach = self.bands - 1

        def again(done: Any, tables: Sequence[Any], operations: Any) -> tuple[Any, Any]:
            count = operations.minimum(done, reach)
            return done - count, tables[0][reach - count :]

        backwards = np.array(self.inverse_column[:0:-1])
        case = Case(scale=self.inverse_column[0])
        return Recursion(rows=0, cases=(case,), tables=(backwards,), again=again, kept=self.kept_recursion())

    def kept_recursion(self) -> Recursion:
        """q_t = n_t + L_t with L_t = −Σ_{j>0} (d_j/d_0) q_{t−j}: the last b̂ − 1 rows q, the newest first."""
        first, *others = self.inverse_column
        past = tuple((row, -other / first) for row, other in enumerate(others))
        after = (((NEW, 1.0), (PAST, 1.0)), *range(len(others) - 1)) if others else ()
        # 1 / C_tt is d_0, and the product with s is rounded.
        return Recursion(rows=len(others), cases=(Case(scale=first * (1 + 2.0**-50), past=past, after=after),))

    def grid_recursion(self, *, deviation: float, largest_normal: float) -> GridRecursion:
        return _OnGrid(self, deviation=deviation, largest_normal=largest_normal)


class _OnGrid(GridRecursion[BandedInverse]):
    """q_t = n_t + L_t with L_t = −Σ_{j>0} (d_j/d_0) q_{t−j}: q is C·n divided by the diagonal of C.

    As n_t = R(s_t·z_t − L_t), |q_t| is at most T·s_t + 1, whatever the error of L_t. What a step adds to that error
    goes through the same recursion as z, whose response is C: a closer bound than that of absolute values.
    """

    def __init__(self, mechanism: BandedInverse, *, deviation: float, largest_normal: float) -> None:
        super().__init__(mechanism, deviation=deviation, largest_normal=largest_normal)
        first, *others = mechanism.inverse_column
        self.smallest_diagonal = self.largest_diagonal = 1 / first
        weight = math.fsum(map(abs, others)) / first
        bound = (deviation * first * largest_normal + 1) * SLACK
        self._largest = (1 + weight) * bound
        with np.errstate(over="ignore", invalid="ignore"):
            column = in_order.reciprocal(mechanism.inverse_column, MOST_ROUNDS)
            response = np.add.accumulate(np.abs(column)) * first
        step = ((mechanism.bands + 3) * weight + 2) * ROUNDING * bound
        self._errors = (response * step + ROUNDING * (self._largest + 1)) * SLACK
        self.rounds = allowed("banded_inverse", np.full(MOST_ROUNDS, self._largest), self._errors)

    @property
    def recursion(self) -> Recursion:
        return self.mechanism.kept_recursion()

    def largest_within(self, rounds: int) -> float:
        return self._largest

    def error(self, rounds: int) -> float:
        return float(self._errors[min(rounds, self.rounds) - 1])
