"""Bounds a client's contribution to a sum, whatever the client sends: in floats, or in the integers of a grid."""

from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from tff_mf.base import validation
from tff_mf.problem.grids import Grid

LEAF_TYPES = (tf.float16, tf.bfloat16, tf.float32, tf.float64)

# Derived in `clip_record` from the rounding of norms and products.
_PASSING = 1 - 8e-7
_PASSING_AGAIN = 1 - 3e-7
_SCALED = 1 / (1 + 1.5e-6)
_SMALLEST_NORMAL = 2.0**-126

# Squares of integers and their sums are compared with 4^bits, which float64 does exactly up to 2⁵³.
LARGEST_BITS = 26

# Rounding adds d/12 to the square of a norm, and 0.3 or so of either sign to a norm of 2^bits, if the values round
# independently of each other. A record that is too long is scaled so that this margin is left.
_MARGIN = 2.0

# The largest share of 4^bits, and of 2^bits, that is left for what rounding may add.
_LARGEST_SHARE = 2.0**-13


class Clipped(NamedTuple):
    """A clipped record, and how it was clipped.

    Attributes:
        leaves: The record: float64 where a leaf was, float32 otherwise.
        scaled: Whether it was scaled down, bool `[]`.
        zeroed: Whether it was set to zero, because a value is not finite or float32 cannot scale it, bool `[]`.
    """

    leaves: list[tf.Tensor]
    scaled: tf.Tensor
    zeroed: tf.Tensor


def checked_clip_norm(value: object) -> np.float32:
    """Returns the largest float32 that is at most a clip norm."""
    clip_norm = validation.clip_norm(value)
    nearest = np.float32(clip_norm)
    return np.nextafter(nearest, np.float32(0)) if float(nearest) > clip_norm else nearest


def clip_record(leaves: list[tf.Tensor], clip_norm: tf.Tensor) -> list[tf.Tensor]:
    """Returns the leaves scaled so that their joint L2 norm is at most `clip_norm`, in the type they are summed in.

    Formal guarantee: the joint L2 norm of the result, in exact arithmetic, is at most ζ = `clip_norm` for every input
    of up to 2³² values and for any order of summation; and `clip_again` returns the result bit for bit, even if it sums
    in another order. The squares of float32 values are exact in float64, and their sum has a relative rounding error of
    at most 2⁻²¹, so the norm's is at most 2⁻²²; reading a float64 value as float32, the factor and the product
    have rounding errors of 2⁻²⁴ each.

    - `clip_again` leaves a record unchanged if its computed norm is at most ζ(1 − 3e-7). Its norm is then at most ζ,
      because 3e-7 exceeds 2⁻²² + 2⁻²⁴: the norm, and values read as float32.
    - This function leaves it unchanged only up to ζ(1 − 8e-7). That leaves 2·2⁻²² for the difference of the two norms.
    - Both scale any other record by ζ/(1 + 1.5e-6) over the computed norm. Its norm is then at most ζ, because 1.5e-6
      exceeds 2⁻²² + 2·2⁻²⁴. Its newly computed norm is at most ζ(1 − 8e-7), so that both leave it unchanged, because
      1.5e-6 exceeds 8e-7 + 2·2⁻²² + 3·2⁻²⁴ = 1.46e-6: two norms, the factor, the product, and a float64 value read as
      float32.

    Values that are subnormal or zero in float32 (below 2⁻¹²⁶) add at most 2¹⁶·2⁻¹²⁶ to a norm, a relative 1e-13 of the
    smallest clip norm. A leaf of 16 bits is exact in float32, in which it is clipped, sent and summed.

    A record with a value that is not finite in float32 becomes zero: one NaN would destroy the model and, because noise
    does not hide it, reveal that this client took part. So does a record whose norm exceeds the clip norm times 2¹²⁶,
    which float32 cannot scale.

    Args:
        leaves: Tensors of the types in `LEAF_TYPES` and of any shape: one client's record.
        clip_norm: Bound on the norm, float32 `[]`, from 1e-20 to 1e20.

    Returns:
        Tensors of the same shapes: float64 where the leaf was, float32 otherwise. In 16 bits, scaled values would round
        up by more than the margins, and their sum could overflow to infinity, which noise does not hide.

    Example:
        >>> [leaf.numpy().round(3) for leaf in clip_record([tf.constant([3.0]), tf.constant([4.0])], tf.constant(1.0))]
        [array([0.6], dtype=float32), array([0.8], dtype=float32)]
    """
    return _clipped(leaves, clip_norm, _PASSING).leaves


def clip_again(leaves: list[tf.Tensor], clip_norm: tf.Tensor) -> Clipped:
    """Clips a record that its client should have clipped, and says whether it had not; see `clip_record`.

    Formal guarantee: as for `clip_record`, for any record. A record from `clip_record` is unchanged: neither scaled
    nor zeroed.

    Example:
        >>> clipped = clip_again([tf.constant([3.0, float("nan")])], tf.constant(1.0))
        >>> clipped.leaves[0].numpy(), bool(clipped.scaled), bool(clipped.zeroed)
        (array([0., 0.], dtype=float32), False, True)
    """
    return _clipped(leaves, clip_norm, _PASSING_AGAIN)


def factors(norms: tf.Tensor, clip_norm: tf.Tensor) -> tf.Tensor:
    """Returns by what records of float32 values are to be multiplied, so that each has a norm of at most `clip_norm`.

    Formal guarantee: as for `clip_record`, for norms with a relative error of at most 2⁻²², and products that are
    rounded at most twice to float32. The factor is 0 for a norm that is not finite; the product must then be 0 too, as
    by `tf.math.multiply_no_nan`.

    Args:
        norms: L2 norms of records, float64 of any shape.
        clip_norm: Bound ζ, float32 `[]`, from 1e-20 to 1e20.

    Returns:
        Factors from 0 to 1, float32 of the same shape.

    Example:
        >>> factors(tf.constant([0.5, 2.0, float("nan")], tf.float64), tf.constant(1.0)).numpy().round(3).tolist()
        [1.0, 0.5, 0.0]
    """
    values = tf.where(norm_passes(norms, clip_norm), tf.ones_like(norms, tf.float32), _factor(norms, clip_norm))
    return tf.where(tf.math.is_finite(norms), values, 0.0)


def norm(leaves: list[tf.Tensor]) -> tf.Tensor:
    """Returns the joint norm, float64 `[]`: finite if and only if all values are, because no square overflows."""
    # To float32 first, so that every type has the same largest value.
    values = [tf.cast(tf.cast(leaf, tf.float32), tf.float64) for leaf in leaves]
    return tf.sqrt(tf.add_n([tf.reduce_sum(tf.square(value)) for value in values]))


def passes(leaves: list[tf.Tensor], clip_norm: tf.Tensor) -> tf.Tensor:
    """Returns whether `clip_record` leaves the record unchanged, bool `[]`."""
    return norm_passes(norm(leaves), clip_norm)


def norm_passes(length: tf.Tensor, clip_norm: tf.Tensor) -> tf.Tensor:
    """Returns whether `clip_record` leaves a record of this computed norm unchanged, bool of the shape of `length`."""
    return _passed(length, clip_norm, _PASSING)


def summed_type(dtype: tf.DType) -> tf.DType:
    """Returns the type in which leaves of a type are clipped and summed."""
    return tf.float64 if dtype == tf.float64 else tf.float32


def _clipped(leaves: list[tf.Tensor], clip_norm: tf.Tensor, passing: float) -> Clipped:
    length = norm(leaves)
    passed, factor = _passed(length, clip_norm, passing), _factor(length, clip_norm)
    wide = [tf.cast(leaf, summed_type(leaf.dtype)) for leaf in leaves]
    bounded = [
        # No product for a record that passes, because it would flush subnormal values. Here, 0 times NaN is 0.
        tf.where(passed, leaf, tf.math.multiply_no_nan(leaf, tf.cast(factor, leaf.dtype)))
        for leaf in wide
    ]
    zeroed = tf.equal(factor, 0.0)
    return Clipped(bounded, ~(passed | zeroed), zeroed)


def _passed(length: tf.Tensor, clip_norm: tf.Tensor, passing: float) -> tf.Tensor:
    return length <= passing * tf.cast(clip_norm, tf.float64)


def _factor(length: tf.Tensor, clip_norm: tf.Tensor) -> tf.Tensor:
    """Returns the factor for a record that does not pass, float32 `[]`: 0 if float32 has no such factor."""
    factor = _SCALED * tf.cast(clip_norm, tf.float64) / length
    # Rounding to a subnormal number might increase the factor by half. For a norm that is NaN, the factor is NaN.
    return tf.cast(tf.where(factor >= _SMALLEST_NORMAL, factor, tf.zeros_like(factor)), tf.float32)


def clip_to_grid(leaves: list[tf.Tensor], clip_norm: tf.Tensor, *, bits: int, dtype: tf.DType) -> list[tf.Tensor]:
    """Returns the leaves as integers q in units of g = ζ·2^-bits, with Σq² ≤ 4^bits: a norm of at most ζ = `clip_norm`.

    The record is multiplied by 1/g in float32 and rounded to the nearest integers. A record that is longer than ζ is
    multiplied by a smaller factor, so that its rounded norm is expected to be ζ·(1 − 2^(1 − bits)). Only if the norm of
    the integers exceeds the bound is the record scaled down again, by that norm, and rounded again. If that exceeds the
    bound too, as only values do that are close to one another, it is rounded toward zero. A record that is not finite
    becomes zero, as does one whose norm is so large that float32 has no such factor.

    Formal guarantee: Σq² ≤ 4^bits in exact arithmetic, for every input of any length, for `bits` up to 26, and for any
    order of summation: whatever was computed before, the integers are returned only if they pass `within`, and are zero
    otherwise. In units of ζ, the norm is therefore at most 1 exactly, with no margin for rounding errors. Every |q| is
    at most 2^bits, which int32 can represent.

    Args:
        leaves: Tensors of the types in `LEAF_TYPES` and of any shape: one client's record.
        clip_norm: Bound ζ on the norm, float32 `[]`, from 1e-20 to 1e20.
        bits: Number of bits of 2^bits = ζ/g, from 1 to 26.
        dtype: Type of the integers: `tf.int32` or `tf.int64`.

    Returns:
        Tensors of the same shapes and of type `dtype`.

    Example:
        >>> clip_to_grid([tf.constant([3.0]), tf.constant([4.0])], tf.constant(1.0), bits=10, dtype=tf.int32)[1].numpy()
        array([819], dtype=int32)
    """
    factor = _grid_factor(leaves, clip_norm, bits)
    wide = [tf.cast(leaf, summed_type(leaf.dtype)) for leaf in leaves]
    values = [leaf * tf.cast(factor, leaf.dtype) for leaf in wide]
    nearest = [tf.round(value) for value in values]
    square = _square([tf.cast(value, tf.float64) for value in nearest])

    def smaller() -> list[tf.Tensor]:
        scaled = _scaled_down([tf.cast(value, tf.float64) for value in values], square, bits)
        return [tf.cast(value, dtype) for value in scaled]

    return list(tf.cond(square <= 4.0**bits, lambda: [tf.cast(value, dtype) for value in nearest], smaller))


def clip_integers_again(leaves: list[tf.Tensor], *, bits: int) -> Clipped:
    """Clips a record of int32 or int64 that its client should have clipped, and says whether it had not.

    Formal guarantee: as for `clip_to_grid` for any integers, also for the smallest and the largest that their type can
    represent. A record that is within the bound is unchanged: neither scaled nor zeroed.

    Example:
        >>> clipped = clip_integers_again([tf.constant([3000, -4000])], bits=10)
        >>> clipped.leaves[0].numpy(), bool(clipped.scaled), bool(clipped.zeroed)
        (array([ 613, -818], dtype=int32), True, False)
    """
    # The cast rounds values beyond 2⁵³, with which a record does not pass.
    values = [tf.cast(leaf, tf.float64) for leaf in leaves]
    square = _square(values)
    passed = square <= 4.0**bits

    def unchanged() -> tuple[list[tf.Tensor], tf.Tensor]:
        return [tf.identity(leaf) for leaf in leaves], tf.constant(False)

    def scaled() -> tuple[list[tf.Tensor], tf.Tensor]:
        shorter = _scaled_down(values, square, bits)
        smaller = [tf.cast(value, leaf.dtype) for value, leaf in zip(shorter, leaves, strict=True)]
        # A record that does not pass has a value other than zero.
        return smaller, ~tf.reduce_any(tf.stack([tf.reduce_any(tf.not_equal(leaf, 0)) for leaf in smaller]))

    bounded, zeroed = tf.cond(passed, unchanged, scaled)
    return Clipped(list(bounded), ~(passed | zeroed), zeroed)


def within(values: list[tf.Tensor], bits: int) -> tf.Tensor:
    """Returns whether Σq² ≤ 4^bits for float64 values q that are whole numbers or not finite, bool `[]`.

    Formal guarantee: exact for every input, of any length and for any order of summation. By induction over the order
    in which squares are added, each computed subtotal is the true one if that is at most 2⁵³, and at least 2⁵³
    otherwise: the sum of two nonnegative whole numbers is exact up to 2⁵³, and rounding to nearest is monotone, so that
    a sum which exceeds 2⁵³, or has a term that does, is not rounded below it. The same holds for each square, and for a
    multiplication fused with an addition. Since 4^bits ≤ 2⁵², the comparison agrees with the true sum's. Nothing wraps
    around, as it could in int64: with 2³² values of 2^26 the sum is 2⁸⁴. A value that is not finite is not within.

    Example:
        >>> within([tf.constant([3.0, 4.0, 16384.0], tf.float64)], 14), within([tf.constant([16384.0], tf.float64)], 14)
        (<tf.Tensor: shape=(), dtype=bool, numpy=False>, <tf.Tensor: shape=(), dtype=bool, numpy=True>)
    """
    return _square(values) <= 4.0**bits


def _square(values: list[tf.Tensor]) -> tf.Tensor:
    return tf.add_n([tf.reduce_sum(tf.square(value)) for value in values])


def _grid_factor(leaves: list[tf.Tensor], clip_norm: tf.Tensor, bits: int) -> tf.Tensor:
    """Returns by what a record is multiplied before it is rounded, float32 `[]`: 0 if float32 has no such factor."""
    length, largest = norm(leaves), 2.0**bits
    size = tf.cast(tf.add_n([tf.size(leaf, tf.int64) for leaf in leaves]), tf.float64)
    expected = tf.sqrt(largest**2 - tf.minimum(size / 12, _LARGEST_SHARE * largest**2))
    longer = (expected - min(_MARGIN, _LARGEST_SHARE * largest)) / length
    factor = tf.where(norm_passes(length, clip_norm), largest / tf.cast(clip_norm, tf.float64), longer)
    # A factor that is NaN is not at least that.
    return tf.cast(tf.where(factor >= _SMALLEST_NORMAL, factor, tf.zeros_like(factor)), tf.float32)


def _scaled_down(values: list[tf.Tensor], square: tf.Tensor, bits: int) -> list[tf.Tensor]:
    """Returns values, in units of the grid, as whole numbers within the bound; their squares, rounded, exceed it."""
    factor = (2.0**bits - _MARGIN) / tf.sqrt(square)
    scaled = [value * factor for value in values]
    nearest = [tf.round(value) for value in scaled]
    return list(tf.cond(within(nearest, bits), lambda: nearest, lambda: _toward_zero(scaled, bits)))


def _toward_zero(values: list[tf.Tensor], bits: int) -> list[tf.Tensor]:
    smaller = [tf.sign(value) * tf.floor(tf.abs(value)) for value in values]
    passed = within(smaller, bits)
    return [tf.where(passed, value, tf.zeros_like(value)) for value in smaller]


class Summands:
    """What records are summed as: floats of 32 bits, and of 64 where a leaf has them."""

    def summed_type(self, dtype: tf.DType) -> tf.DType:
        """Returns the type in which leaves of a type are summed."""
        return summed_type(dtype)

    def clipped(self, leaves: list[tf.Tensor], clip_norm: tf.Tensor) -> list[tf.Tensor]:
        """Returns the leaves of a record, clipped, in the types in which they are summed."""
        return clip_record(leaves, clip_norm)

    def clipped_again(self, summand: Any, clip_norm: tf.Tensor) -> tuple[Any, Clipped]:
        """Returns a summand as the server adds it, whatever its client sent, and how it was clipped."""
        clipped = clip_again(tf.nest.flatten(summand), clip_norm)
        return tf.nest.pack_sequence_as(summand, clipped.leaves), clipped

    def of(self, records: Any, clients: int) -> Any:
        """Returns the summand, or the sum, of the records of this many clients."""
        del clients
        return records

    def opened(self, total: Any, clip_norm: np.float32 | tf.Tensor) -> tuple[Any, tf.Tensor | None]:
        """Returns the sum of the records and its unit, `None` for 1, and NaN for a sum that must not be released."""
        del clip_norm
        return total, None

    def noised(self, total: tf.Tensor, noise: tf.Tensor, unit: tf.Tensor | None, dtype: tf.DType) -> tf.Tensor:
        """Returns a leaf of the sum with its noise, as floating-point numbers of type `dtype`."""
        del unit
        # In a type that is wider than the noise, the last bits of the sum would be released as they are.
        return tf.cast(tf.cast(total, noise.dtype) + noise, dtype)


class GridSummands(Summands):
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
        return clip_to_grid(leaves, clip_norm, bits=self._grid.bits, dtype=self._type)

    def clipped_again(self, summand: Any, clip_norm: tf.Tensor) -> tuple[Any, Clipped]:
        del clip_norm
        records, _ = summand
        clipped = clip_integers_again(tf.nest.flatten(records), bits=self._grid.bits)
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
