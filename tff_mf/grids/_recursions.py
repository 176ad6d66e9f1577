"""The recursion of each kind of mechanism, with bounds that are proven in docs/floating-point.md."""

import functools
import math
from collections.abc import Callable, Sequence

import numpy as np

from tff_mf import _in_order
from tff_mf.errors import InputTypeError
from tff_mf.grids._recursion import MOST_ROUNDS, ROUNDING, SLACK, Recursion, allowed
from tff_mf.grids._rows import RowsRecursion
from tff_mf.grids._trees import TreeRecursion
from tff_mf.mechanisms import (
    BLT,
    Banded,
    BandedInverse,
    BandedPlusLowRank,
    BandedToeplitz,
    Dense,
    Identity,
    Mechanism,
    Tree,
)

# Rounds for which the units of a BLT's buffers are computed one by one.
_BLOCK = 512


class _IdentityRecursion(Recursion[Identity]):
    """L_t = 0."""

    @property
    def rounds(self) -> int:
        return allowed("identity", np.full(MOST_ROUNDS, self.largest_within(MOST_ROUNDS)))

    @property
    def numbers(self) -> Sequence[np.ndarray]:
        return ()

    def largest_within(self, rounds: int) -> float:
        return (self.deviation * self.largest_normal + 1) * SLACK

    def error(self, rounds: int) -> float:
        return 0.0


class _BLTRecursion(Recursion[BLT]):
    """L_t = Σ_j ω_j S_j, then S_j ← θ_j S_j + n_t.

    In exact arithmetic S_j is a sum of past s·z + r, |r| ≤ 1, with the coefficients of x/(1 − θ_j x) times those of
    C⁻¹: a bound B_j. Each step rounds twice, and an error decays as the buffer does; with θ_j = 1 the buffer is a sum
    of integers, which is exact.
    """

    def __init__(self, mechanism: BLT, *, deviation: float, largest_normal: float) -> None:
        super().__init__(mechanism, deviation=deviation, largest_normal=largest_normal)
        with np.errstate(over="ignore", invalid="ignore"):
            self._largest, *self._buffers = _blt_norms(mechanism) * ((deviation * largest_normal + 1) * SLACK)
            # The bounds hold for errors of at most half a unit: where the buffers of C⁻¹ grow, the stream ends before.
            errors = self._errors(np.arange(1, MOST_ROUNDS + 1), self._buffers)
        self._rounds = allowed("blt", functools.reduce(np.maximum, self._buffers, self._largest), errors)

    @property
    def rounds(self) -> int:
        return self._rounds

    @property
    def numbers(self) -> Sequence[np.ndarray]:
        return np.array(self.mechanism.theta), np.array(self.mechanism.omega)

    def largest_within(self, rounds: int) -> float:
        return float(self._largest[rounds - 1])

    def error(self, rounds: int) -> float:
        return float(self._errors(rounds, [buffer[min(rounds, self._rounds) - 1] for buffer in self._buffers]))

    def _errors(self, rounds: np.ndarray | int, bounds: Sequence[np.ndarray]) -> np.ndarray:
        """Returns e for numbers of rounds, from the bounds on the buffers in as many rounds."""
        theta, omega = self.mechanism.theta, self.mechanism.omega
        total = np.sum([scale * bound for scale, bound in zip(omega, bounds, strict=True)], axis=0)
        error = np.asarray((len(bounds) + 3) * ROUNDING * (total + 1))
        for decay, scale, bound in zip(theta, omega, bounds, strict=True):
            if decay < 1:
                error = error + scale * 2 * ROUNDING * bound * np.minimum(rounds, 1 / (1 - decay))
        return error * SLACK


class _InverseRecursion(Recursion[BandedInverse]):
    """q_t = n_t + L_t with L_t = −Σ_{j>0} (d_j/d_0) q_{t−j}: q is C·n divided by the diagonal of C.

    As n_t = R(s_t·z_t − L_t), |q_t| is at most T·s_t + 1, whatever the error of L_t. What a step adds to that error
    goes through the same recursion as z, whose response is C.
    """

    def __init__(self, mechanism: BandedInverse, *, deviation: float, largest_normal: float) -> None:
        super().__init__(mechanism, deviation=deviation, largest_normal=largest_normal)
        first, *others = mechanism.inverse_column
        self.smallest_diagonal = self.largest_diagonal = 1 / first
        weight = math.fsum(map(abs, others)) / first
        bound = (deviation * first * largest_normal + 1) * SLACK
        self._largest = (1 + weight) * bound
        with np.errstate(over="ignore", invalid="ignore"):
            response = np.add.accumulate(np.abs(mechanism.coefficients(MOST_ROUNDS))) * first
        step = ((mechanism.bands + 3) * weight + 2) * ROUNDING * bound
        self._errors = (response * step + ROUNDING * (self._largest + 1)) * SLACK
        self._rounds = allowed("banded_inverse", np.full(MOST_ROUNDS, self._largest), self._errors)

    @property
    def rounds(self) -> int:
        return self._rounds

    @property
    def numbers(self) -> Sequence[np.ndarray]:
        return (np.array(self.mechanism.inverse_column),)

    def largest_within(self, rounds: int) -> float:
        return self._largest

    def error(self, rounds: int) -> float:
        return float(self._errors[min(rounds, self._rounds) - 1])


@functools.lru_cache(maxsize=8)
def _blt_norms(mechanism: BLT) -> np.ndarray:
    """Returns bounds on |n_t| and on each buffer for |s·z + r| ≤ 1, for each number of rounds, `[1 + buffers, rounds]`.

    The recursion is linear: with what it makes of one unit in each buffer in a block of rounds, all later blocks are
    weighted sums.
    """
    theta, omega = (np.array(each)[:, np.newaxis] for each in (mechanism.theta, mechanism.omega))
    count = len(theta)
    units, buffers = np.zeros((_BLOCK, 1 + count, count)), np.eye(count)
    with np.errstate(over="ignore", invalid="ignore"):
        for each in units:
            each[1:] = buffers
            each[0] = -_in_order.sums((omega * buffers).T)
            buffers = theta * buffers + each[0]
        # n_0 = 1 is in each buffer of round 1.
        start, blocks = np.ones(count), []
        for _ in range(0, MOST_ROUNDS - 1, _BLOCK):
            blocks.append(_in_order.sums(units * start))
            start = _in_order.sums(buffers * start)
        first = np.array([[1.0, *[0.0] * count]])
        responses = np.concatenate([first, *blocks])[:MOST_ROUNDS]
        return np.add.accumulate(np.abs(responses), axis=0).T


_RECURSIONS: dict[type[Mechanism], Callable[..., Recursion]] = {
    Identity: _IdentityRecursion,
    BLT: _BLTRecursion,
    BandedInverse: _InverseRecursion,
    Tree: TreeRecursion,
    Banded: RowsRecursion,
    BandedToeplitz: RowsRecursion,
    Dense: RowsRecursion,
    BandedPlusLowRank: RowsRecursion,
}


def recursion(mechanism: Mechanism, *, deviation: float, largest_normal: float) -> Recursion:
    """Returns the recursion of a mechanism on a grid, with the bounds that its guarantee is computed from.

    Args:
        mechanism: The mechanism; its parameters are cast to float32.
        deviation: s, standard deviation of a coordinate of the independent noise in units of the grid.
        largest_normal: T, largest absolute value of a standard normal that is drawn.

    Example:
        >>> from tff_mf import BLT
        >>> found = recursion(BLT.production("b400"), deviation=7.0 * 2**16, largest_normal=13.0)
        >>> found.error(2052) < 1e-6, found.largest < 2**31
        (True, True)

    Raises:
        InputTypeError: If the mechanism is of a kind from outside of this package.
        InputValueError: If its integers would be too large.
    """
    if type(mechanism) not in _RECURSIONS:
        raise InputTypeError(
            f"mechanism of kind {mechanism.kind!r} has no integer recursion: kinds from outside of tff_mf take no "
            "grid. Pass grid=None (--grid none), which gives up a guarantee about the numbers that are released: it is "
            "then that of real numbers, and low bits of floats can give clients away."
        )
    kind = _RECURSIONS[type(mechanism)]
    return kind(mechanism.cast_to_float32(), deviation=deviation, largest_normal=largest_normal)
