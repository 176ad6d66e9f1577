"""Bounds a client's contribution to a sum, whatever the client sends."""

from typing import NamedTuple

import numpy as np
import tensorflow as tf

from tff_mf import validation

LEAF_TYPES = (tf.float16, tf.bfloat16, tf.float32, tf.float64)

# Derived in `clip_record` from the rounding of norms and products.
_PASSING = 1 - 8e-7
_PASSING_AGAIN = 1 - 3e-7
_SCALED = 1 / (1 + 1.5e-6)
SMALLEST_NORMAL = 2.0**-126


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
    """Returns the largest float32 that is at most a clip norm.

    Raises:
        InputTypeError: If it is not a number.
        InputValueError: If it is out of range.
    """
    clip_norm = validation.clip_norm(value)
    result = np.float32(clip_norm)
    return np.nextafter(result, np.float32(0)) if float(result) > clip_norm else result


def clip_record(leaves: list[tf.Tensor], clip_norm: tf.Tensor) -> list[tf.Tensor]:
    """Returns the leaves scaled so that their joint L2 norm is at most `clip_norm`, in the type they are summed in.

    Formal guarantee: the joint L2 norm of the result, in exact arithmetic, is at most ζ = `clip_norm` for every input
    of up to 2³² values and for any order of summation; and `clip_again` returns the result bit for bit, even if it sums
    in another order. The squares of float32 values are exact in float64, and their sum has a relative rounding error of
    at most 2⁻²¹, so that of the norm is at most 2⁻²²; reading a float64 value as float32, the factor and the product
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
    found = tf.where(norm_passes(norms, clip_norm), tf.ones_like(norms, tf.float32), _factor(norms, clip_norm))
    return tf.where(tf.math.is_finite(norms), found, 0.0)


def norm(leaves: list[tf.Tensor]) -> tf.Tensor:
    """Returns the joint norm, float64 `[]`: finite if and only if all values are, because no square overflows."""
    # To float32 first, so that every type has the same largest value.
    values = [tf.cast(tf.cast(leaf, tf.float32), tf.float64) for leaf in leaves]
    return tf.sqrt(tf.add_n([tf.reduce_sum(tf.square(value)) for value in values]))


def finite(leaves: list[tf.Tensor]) -> tf.Tensor:
    """Returns whether all values are finite in float32, bool `[]`; `clip_record` sets any other record to zero."""
    return tf.math.is_finite(norm(leaves))


def passes(leaves: list[tf.Tensor], clip_norm: tf.Tensor) -> tf.Tensor:
    """Returns whether `clip_record` leaves the record unchanged, bool `[]`."""
    return norm_passes(norm(leaves), clip_norm)


def norm_passes(length: tf.Tensor, clip_norm: tf.Tensor) -> tf.Tensor:
    """Returns whether `clip_record` leaves a record of this computed norm unchanged, bool of the shape of `length`."""
    return _passed(length, clip_norm, _PASSING)


def add(total: tf.Tensor, noise: tf.Tensor, dtype: tf.DType) -> tf.Tensor:
    """Returns `total`, of the type that `clip_record` returns, plus the float32 `noise`, in the type of the leaf."""
    return tf.cast(total + tf.cast(noise, total.dtype), dtype)


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
    return tf.cast(tf.where(factor >= SMALLEST_NORMAL, factor, tf.zeros_like(factor)), tf.float32)
