"""What clients' records are summed as: floating-point numbers, or integers of a grid."""

import abc
from typing import Any

import numpy as np
import tensorflow as tf

from tff_mf.grids import Grid
from tff_mf.queries import clipping, grid_clipping


class Summands(abc.ABC):
    """How a record becomes a summand, and how the noised sum becomes floating-point numbers."""

    @abc.abstractmethod
    def summed_type(self, dtype: tf.DType) -> tf.DType:
        """Returns the type in which leaves of a type are summed."""

    @abc.abstractmethod
    def clipped(self, leaves: list[tf.Tensor], clip_norm: tf.Tensor) -> list[tf.Tensor]:
        """Returns the leaves of a record, clipped, in the types in which they are summed."""

    @abc.abstractmethod
    def clipped_again(self, summand: Any, clip_norm: tf.Tensor) -> tuple[Any, clipping.Clipped]:
        """Returns a summand as the server adds it, whatever its client sent, and how it was clipped."""

    @abc.abstractmethod
    def of(self, records: Any, clients: int) -> Any:
        """Returns the summand, or the sum, of the records of so many clients."""

    @abc.abstractmethod
    def opened(self, total: Any, clip_norm: np.float32 | tf.Tensor) -> tuple[Any, tf.Tensor | None]:
        """Returns the sum of the records and its unit, `None` for 1, and NaN for a sum that must not be released."""

    @abc.abstractmethod
    def noised(self, total: tf.Tensor, noise: tf.Tensor, unit: tf.Tensor | None, dtype: tf.DType) -> tf.Tensor:
        """Returns a leaf of the sum with its noise, as floating-point numbers of type `dtype`."""


class Floats(Summands):
    """Records are summed in float32, and in float64 where a leaf is."""

    def summed_type(self, dtype: tf.DType) -> tf.DType:
        return clipping.summed_type(dtype)

    def clipped(self, leaves: list[tf.Tensor], clip_norm: tf.Tensor) -> list[tf.Tensor]:
        return clipping.clip_record(leaves, clip_norm)

    def clipped_again(self, summand: Any, clip_norm: tf.Tensor) -> tuple[Any, clipping.Clipped]:
        clipped = clipping.clip_again(tf.nest.flatten(summand), clip_norm)
        return tf.nest.pack_sequence_as(summand, clipped.leaves), clipped

    def of(self, records: Any, clients: int) -> Any:
        del clients
        return records

    def opened(self, total: Any, clip_norm: np.float32 | tf.Tensor) -> tuple[Any, tf.Tensor | None]:
        del clip_norm
        return total, None

    def noised(self, total: tf.Tensor, noise: tf.Tensor, unit: tf.Tensor | None, dtype: tf.DType) -> tf.Tensor:
        del unit
        return clipping.add(total, noise, dtype)


class Integers(Summands):
    """Records are summed in the integers of a grid, together with the number of clients.

    Formal guarantee: the release is a function of y = exact sum + integer noise alone, and does not depend on the order
    of the clients. Nothing overflows: the sum of at most `max_clients` records fits into the grid's integers in every
    order, and is at most 2⁵²; so is the noise, and float64 represents y exactly. (If it did not, it would round y,
    which is post-processing.) The multiplication by g and the cast to the leaf's type are post-processing. If more
    clients were summed, the graph fails, and its result is NaN where assertions are stripped.

    Args:
        grid: The grid.
    """

    def __init__(self, grid: Grid) -> None:
        self._grid, self._type = grid, tf.as_dtype(grid.integers)

    def summed_type(self, dtype: tf.DType) -> tf.DType:
        del dtype
        return self._type

    def clipped(self, leaves: list[tf.Tensor], clip_norm: tf.Tensor) -> list[tf.Tensor]:
        return grid_clipping.clip_to_grid(leaves, clip_norm, bits=self._grid.bits, dtype=self._type)

    def clipped_again(self, summand: Any, clip_norm: tf.Tensor) -> tuple[Any, clipping.Clipped]:
        del clip_norm
        records, _ = summand
        clipped = grid_clipping.clip_integers_again(tf.nest.flatten(records), bits=self._grid.bits)
        return self.of(tf.nest.pack_sequence_as(records, clipped.leaves), 1), clipped

    def of(self, records: Any, clients: int) -> Any:
        return records, tf.constant(clients, self._type)

    def opened(self, total: Any, clip_norm: np.float32 | tf.Tensor) -> tuple[Any, tf.Tensor | None]:
        records, clients = total
        most = tf.constant(self._grid.max_clients, self._type)
        message = (
            f"More than max_clients={self._grid.max_clients} clients of the grid are in the sum: nothing is released. "
            "Build the query with a Grid of more clients."
        )
        check = tf.debugging.assert_less_equal(clients, most, message=message)
        with tf.control_dependencies([] if check is None else [check]):
            records = tf.nest.map_structure(tf.identity, records)
        unit = tf.cast(clip_norm, tf.float64) * 2.0**-self._grid.bits
        return records, tf.where(clients <= most, unit, tf.constant(float("nan"), tf.float64))

    def noised(self, total: tf.Tensor, noise: tf.Tensor, unit: tf.Tensor | None, dtype: tf.DType) -> tf.Tensor:
        # Exact: both are whole numbers of at most 2⁵². An invalid row of noise is NaN, and so is the release.
        exact = tf.cast(total, tf.float64) + tf.cast(noise, tf.float64)
        return tf.cast(exact * unit, dtype)


def summands(grid: Grid | None) -> Summands:
    """Returns how records are summed: in floating point if `grid` is `None`."""
    return Floats() if grid is None else Integers(grid)
