"""Bounds a client's contribution to a sum, whatever the client sends. TensorFlow."""

import numpy as np
import tensorflow as tf

from tff_mf import _validate

LEAF_TYPES = (tf.float16, tf.bfloat16, tf.float32, tf.float64)

# Above the rounding of a clipped record's norm, which `clip_record` derives.
_ROUNDING = 1e-6
_SMALLEST_NORMAL = 2.0**-126


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

    Formal guarantee: the joint L2 norm of the result, in exact arithmetic, is at most `clip_norm` for every input of
    up to 2³² values and in whatever order the norm is added up. The squares of float32 values are exact in float64,
    and their sum rounds by a relative 2⁻²¹ at most, the norm by half of that; a value read as float32, the factor
    and the product round by 2⁻²⁴ each. Together that is less than the 1e-6 which the bound is lowered by.

    A record with a value that is not finite (in float32) becomes zero: passed on, one NaN would void the model and,
    as no noise hides it, tell everyone that this client took part. So does one whose norm is above the clip norm
    times 2¹²⁶, which float32 cannot scale. Records up to a relative 1e-6 below the clip norm pass unchanged.

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
    is_finite, scale = _scale(leaves, clip_norm)
    return [
        tf.where(is_finite, wide * tf.cast(scale, wide.dtype), tf.zeros_like(wide)) for wide in map(_widened, leaves)
    ]


def finite(leaves: list[tf.Tensor]) -> tf.Tensor:
    """Returns whether all values are finite in float32, bool `[]`: `clip_record` makes any other record zero."""
    return tf.math.is_finite(_norm(leaves))


def passes(leaves: list[tf.Tensor], clip_norm: tf.Tensor) -> tf.Tensor:
    """Returns whether `clip_record` leaves the record as it is, bool `[]`."""
    is_finite, scale = _scale(leaves, clip_norm)
    return is_finite & (scale >= 1.0)


def add(total: tf.Tensor, noise: tf.Tensor, dtype: tf.DType) -> tf.Tensor:
    """Returns `total`, of the type that `clip_record` returns, plus the float32 `noise`, in the type of the leaf."""
    return tf.cast(total + tf.cast(noise, total.dtype), dtype)


def summed_type(dtype: tf.DType) -> tf.DType:
    """Returns the type in which leaves of a type are clipped and summed."""
    return tf.float64 if dtype == tf.float64 else tf.float32


def _norm(leaves: list[tf.Tensor]) -> tf.Tensor:
    """Returns the joint norm, float64 `[]`: not finite if and only if a value is not, since no square overflows."""
    # By float32 first, so that every type has the same largest value.
    values = [tf.cast(tf.cast(leaf, tf.float32), tf.float64) for leaf in leaves]
    return tf.sqrt(tf.add_n([tf.reduce_sum(tf.square(value)) for value in values]))


def _scale(leaves: list[tf.Tensor], clip_norm: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns whether all values are finite, and if so what to multiply them with, float32 `[]`."""
    norm = _norm(leaves)
    factor = tf.minimum(tf.cast(clip_norm, tf.float64) / ((1.0 + _ROUNDING) * norm), 1.0)
    # Rounded to a number that float32 holds in part, a factor might grow by half.
    return tf.math.is_finite(norm), tf.cast(
        tf.where(factor < _SMALLEST_NORMAL, tf.zeros_like(factor), factor), tf.float32
    )


def _widened(leaf: tf.Tensor) -> tf.Tensor:
    return tf.cast(leaf, summed_type(leaf.dtype))
