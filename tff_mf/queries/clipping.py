"""Bounds a client's contribution to a sum, whatever the client sends. TensorFlow."""

from typing import NamedTuple

import numpy as np
import tensorflow as tf

from tff_mf import _validate

LEAF_TYPES = (tf.float16, tf.bfloat16, tf.float32, tf.float64)

# `clip_record` derives them from the rounding of norms and products.
_PASSING = 1 - 8e-7
_PASSING_AGAIN = 1 - 3e-7
_SCALED = 1 / (1 + 1.5e-6)
_SMALLEST_NORMAL = 2.0**-126


class Clipped(NamedTuple):
    """A record within the bound, and what was done for that.

    Attributes:
        leaves: The record: float64 where a leaf was, float32 otherwise.
        scaled: Whether it was scaled down, bool `[]`.
        zeroed: Whether it was made zero, since a value is not finite or float32 cannot scale it, bool `[]`.
    """

    leaves: list[tf.Tensor]
    scaled: tf.Tensor
    zeroed: tf.Tensor


def checked_clip_norm(value: object) -> np.float32:
    """Returns the largest float32 that is no larger than a clip norm.

    Raises:
        InputTypeError: If it is no number.
        InputValueError: If it is out of range.
    """
    clip_norm = _validate.clip_norm(value)
    result = np.float32(clip_norm)
    return np.nextafter(result, np.float32(0)) if float(result) > clip_norm else result


def clip_record(leaves: list[tf.Tensor], clip_norm: tf.Tensor) -> list[tf.Tensor]:
    """Returns the leaves scaled so that their joint L2 norm is at most `clip_norm`, in the type they are summed in.

    Formal guarantee: the joint L2 norm of the result, in exact arithmetic, is at most ζ = `clip_norm` for every input
    of up to 2³² values and in whatever order the norm is added up; and `clip_again` returns the result bit for bit,
    even if it adds up the norm in another order. The squares of float32 values are exact in float64, and their sum
    rounds by a relative 2⁻²¹ at most, so that the norm is computed to 2⁻²²; a float64 value read as float32, the factor
    and the product round by 2⁻²⁴ each.

    - `clip_again` passes a record unchanged if its computed norm is at most ζ(1 − 3e-7). Its norm then is at most ζ,
      since 3e-7 is above 2⁻²² + 2⁻²⁴: the norm, and values read as float32.
    - This function passes it at ζ(1 − 8e-7) already. That leaves 2·2⁻²² for what the two norms may differ by.
    - Both scale any other by ζ/(1 + 1.5e-6) over the computed norm, and its norm is at most ζ, since 1.5e-6 is above
      2⁻²² + 2·2⁻²⁴. Once more its computed norm is at most ζ(1 − 8e-7), so that both pass it, since 1.5e-6 is above
      8e-7 + 2·2⁻²² + 3·2⁻²⁴ = 1.46e-6: two norms, the factor and the product, and a float64 value read as float32.

    Values that float32 holds in part or not at all (below 2⁻¹²⁶) add at most 2¹⁶·2⁻¹²⁶ to a norm, a relative 1e-13 of
    the smallest clip norm. A leaf of 16 bits is exact in float32, which is what it is clipped, sent and summed in.

    A record with a value that is not finite (in float32) becomes zero: passed on, one NaN would void the model and,
    as no noise hides it, tell everyone that this client took part. So does one whose norm is above the clip norm
    times 2¹²⁶, which float32 cannot scale.

    Args:
        leaves: Tensors of the types in `LEAF_TYPES` and of any shape: one client's record.
        clip_norm: Bound on the norm, float32 `[]`, one that `_validate.clip_norm` passes.

    Returns:
        Tensors of the same shapes: float64 where the leaf was, float32 otherwise. Scaled in 16 bits, values would be
        rounded up by more than any margin, and their sum would overflow to an infinity that no noise hides.

    Example:
        >>> [leaf.numpy().round(3) for leaf in clip_record([tf.constant([3.0]), tf.constant([4.0])], tf.constant(1.0))]
        [array([0.6], dtype=float32), array([0.8], dtype=float32)]
    """
    return _clipped(leaves, clip_norm, _PASSING).leaves


def clip_again(leaves: list[tf.Tensor], clip_norm: tf.Tensor) -> Clipped:
    """Returns a record that somebody else was to clip, clipped, and whether that was not done; see `clip_record`.

    Formal guarantee: that of `clip_record`, for any record. What that returned passes, and is counted as neither scaled
    nor made zero.

    Example:
        >>> clipped = clip_again([tf.constant([3.0, float("nan")])], tf.constant(1.0))
        >>> clipped.leaves[0].numpy(), bool(clipped.scaled), bool(clipped.zeroed)
        (array([0., 0.], dtype=float32), False, True)
    """
    return _clipped(leaves, clip_norm, _PASSING_AGAIN)


def finite(leaves: list[tf.Tensor]) -> tf.Tensor:
    """Returns whether all values are finite in float32, bool `[]`: `clip_record` makes any other record zero."""
    return tf.math.is_finite(_norm(leaves))


def passes(leaves: list[tf.Tensor], clip_norm: tf.Tensor) -> tf.Tensor:
    """Returns whether `clip_record` leaves the record as it is, bool `[]`."""
    return _passed(_norm(leaves), clip_norm, _PASSING)


def add(total: tf.Tensor, noise: tf.Tensor, dtype: tf.DType) -> tf.Tensor:
    """Returns `total`, of the type that `clip_record` returns, plus the float32 `noise`, in the type of the leaf."""
    return tf.cast(total + tf.cast(noise, total.dtype), dtype)


def summed_type(dtype: tf.DType) -> tf.DType:
    """Returns the type in which leaves of a type are clipped and summed."""
    return tf.float64 if dtype == tf.float64 else tf.float32


def _clipped(leaves: list[tf.Tensor], clip_norm: tf.Tensor, passing: float) -> Clipped:
    norm = _norm(leaves)
    passed, factor = _passed(norm, clip_norm, passing), _factor(norm, clip_norm)
    wide = [tf.cast(leaf, summed_type(leaf.dtype)) for leaf in leaves]
    bounded = [
        # No product where a record passes: it would flush values that float32 holds in part. And 0 times NaN is 0 here.
        tf.where(passed, leaf, tf.math.multiply_no_nan(leaf, tf.cast(factor, leaf.dtype)))
        for leaf in wide
    ]
    zeroed = tf.equal(factor, 0.0)
    return Clipped(bounded, ~(passed | zeroed), zeroed)


def _norm(leaves: list[tf.Tensor]) -> tf.Tensor:
    """Returns the joint norm, float64 `[]`: not finite if and only if a value is not, since no square overflows."""
    # By float32 first, so that every type has the same largest value.
    values = [tf.cast(tf.cast(leaf, tf.float32), tf.float64) for leaf in leaves]
    return tf.sqrt(tf.add_n([tf.reduce_sum(tf.square(value)) for value in values]))


def _passed(norm: tf.Tensor, clip_norm: tf.Tensor, passing: float) -> tf.Tensor:
    return norm <= passing * tf.cast(clip_norm, tf.float64)


def _factor(norm: tf.Tensor, clip_norm: tf.Tensor) -> tf.Tensor:
    """Returns what to multiply a record with that does not pass, float32 `[]`: 0 if there is no such number."""
    factor = _SCALED * tf.cast(clip_norm, tf.float64) / norm
    # Rounded to a number that float32 holds in part, a factor might grow by half. Of a norm that is NaN, it is NaN.
    return tf.cast(tf.where(factor >= _SMALLEST_NORMAL, factor, tf.zeros_like(factor)), tf.float32)
