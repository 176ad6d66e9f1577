"""Base class of streams of integers: rounding inside the recursion."""

import abc
from collections.abc import Callable
from typing import Any, ClassVar, TypeVar

import numpy as np
import tensorflow as tf

from tff_mf import validation
from tff_mf.grids import LARGEST_NORMAL, Grid, recursion, sampler
from tff_mf.mechanisms import Mechanism
from tff_mf.noise._keyed import KeyedStream, NoiseState
from tff_mf.noise._normals import in_parts

_M = TypeVar("_M", bound=Mechanism)

Tensors = tuple[tf.Tensor, ...]
Bound = tf.Tensor | int
# Gets the bounds of a part, and returns that part of L_t: float64 `[end - begin]`, or `[]` if all of it is equal.
Past = Callable[[Bound, Bound], tf.Tensor]
# Gets a part of s_t·z_t with its bounds, and returns that part of n_t.
Rounded = Callable[[tf.Tensor, Bound, Bound], tf.Tensor]


def whole(past: tf.Tensor) -> Past:
    """Returns what gives parts of an L_t that has been computed for all coordinates, float64 `[dimension]`."""
    return lambda begin, end: past[begin:end]


def no_past(begin: Bound, end: Bound) -> tf.Tensor:
    """Returns L_t of rounds that do not depend on earlier ones: 0."""
    del begin, end
    return tf.zeros([], tf.float64)


class GridStream(KeyedStream[_M]):
    """Streams integers n_t = R(s_t·z_t − L_t) in units of the grid, with R(v) = ⌊v + ½⌋.

    L_t is a function of past n alone, equal to Σ_{i<t} C_ti n_i / C_tt up to the error of `Recursion`, and s_t is
    s / C_tt, rounded up. Released sums y = x + n of integers x are then a function of the adaptive Gaussian release
    Cx + z, up to that error: R commutes with the shift by x_t. `tf.round` does not, because it rounds halves to even.

    A subclass defines `past`, which does not get z, and `after`.

    Formal guarantee: as for `KeyedStream` for the keys. What errors and the normals cost is in `tff_mf.guarantee` with
    the same grid; see docs/floating-point.md. Rows are float64 that hold integers below 2^52, so that a refused round
    can be NaN: add them to sums in float64, which is exact. A cast to an integer would turn NaN into a number.

    Args:
        mechanism: The mechanism.
        dimension: Number of coordinates of a row.
        stddev: Standard deviation of each coordinate of the independent noise, in units of the clip norm.
        grid: The grid, in units of which rows are.
        insecure_seed: Makes the noise repeatable. TEST ONLY: there is no privacy with it.

    Raises:
        InputTypeError: If an argument is of the wrong type.
        InputValueError: If an argument is out of range, or the integers would be too large.
    """

    _row_type: ClassVar[tf.DType] = tf.float64

    def __init__(
        self, mechanism: _M, *, dimension: int, stddev: float, grid: Grid, insecure_seed: int | None = None
    ) -> None:
        deviation = validation.nonnegative("stddev", stddev) * 2**grid.bits
        self._recursion: Any = recursion(mechanism, deviation=deviation, largest_normal=LARGEST_NORMAL)
        super().__init__(
            mechanism,
            dimension=dimension,
            stddev=np.float64(deviation),
            insecure_seed=insecure_seed,
            limit=self._recursion.rounds,
            setting=(repr(grid), sampler(), self._recursion.digest),
        )

    @property
    def stddev(self) -> np.float64:
        """Standard deviation s of each coordinate of the independent noise, in units of the grid."""
        return self._stddev

    @abc.abstractmethod
    def past(self, state: NoiseState) -> tuple[Past, Tensors]:
        """Returns what gives parts of L_t, and what `after` needs that has been computed for it.

        A weighted sum of rows is faster by parts, which stay in the cache.
        """

    @abc.abstractmethod
    def after(self, row: tf.Tensor, state: NoiseState, computed: Tensors) -> Tensors:
        """Returns the rows of memory after a round.

        Args:
            row: The round's integers n_t, float64 `[dimension]`.
            state: The state before this round.
            computed: The second result of `past`.
        """

    def relative_scale(self, state: NoiseState) -> tf.Tensor | float:
        """Returns 1 / C_tt for the round of a state, rounded up: float64 `[]`."""
        del state
        return 1.0

    def _first_rows(self) -> Tensors:
        return tuple(tf.zeros([self._dimension], self._row_type) for _ in range(self.row_count))

    def _row(self, key: tf.Tensor, state: NoiseState, stddev: tf.Tensor) -> tuple[tf.Tensor, Tensors]:
        scale = stddev * self.relative_scale(state)

        def row_of(rounded: Rounded) -> tf.Tensor:
            def of_part(part: tf.Tensor, begin: tf.Tensor, end: tf.Tensor) -> Tensors:
                return (rounded(part * scale, begin, end),)

            return in_parts(key, self._dimension, of_part, [tf.float64])[0]

        return self._rounded(row_of, state)

    def _rounded(self, row_of: Callable[[Rounded], tf.Tensor], state: NoiseState) -> tuple[tf.Tensor, Tensors]:
        """Returns n_t and the rows of memory after it; `row_of` joins what the function makes of parts of s_t·z_t."""
        past, computed = self.past(state)

        def rounded(noise: tf.Tensor, begin: Bound, end: Bound) -> tf.Tensor:
            # ½ is subtracted from what depends on past n alone: one operation less in which z_t is rounded.
            return tf.floor(noise - (past(begin, end) - 0.5))

        row = row_of(rounded)
        return row, self.after(row, state, computed)
