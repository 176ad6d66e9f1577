"""Bounds a client's contribution to a sum, whatever the client sends. TensorFlow."""

import tensorflow as tf

# Covers the rounding of a norm in float32, so that a clipped record's true norm is within the clip norm.
_NORM_ROUNDING = 1e-5
_LEAF_ROUNDING = {tf.float16: 2.0**-10, tf.bfloat16: 2.0**-7, tf.float32: 2.0**-23, tf.float64: 2.0**-23}

LEAF_TYPES = tuple(_LEAF_ROUNDING)


def clip_record(leaves: list[tf.Tensor], clip_norm: tf.Tensor) -> list[tf.Tensor]:
    """Returns the leaves scaled so that their joint L2 norm is at most `clip_norm`.

    Formal guarantee: the joint L2 norm of the result is at most `clip_norm` for every input. A record
    with a value that is not finite (in float32) becomes zero: passed on, one NaN would void the
    model and, as no noise hides it, tell everyone that this client took part. Records up to a
    relative 1e-5 below the clip norm (1e-3 for float16, 1e-2 for bfloat16) pass unchanged.

    Args:
        leaves: Tensors of the types in `LEAF_TYPES` and of any shape: one client's record.
        clip_norm: Bound on the norm, float32 `[]`.

    Returns:
        Tensors of the same types and shapes.

    Example:
        >>> [leaf.numpy().round(3) for leaf in clip_record([tf.constant([3.0]), tf.constant([4.0])], tf.constant(1.0))]
        [array([0.6], dtype=float32), array([0.8], dtype=float32)]
    """
    finite, scale = _scale(leaves, clip_norm)
    return [tf.where(finite, _scaled(leaf, scale), tf.zeros_like(leaf)) for leaf in leaves]


def passes(leaves: list[tf.Tensor], clip_norm: tf.Tensor) -> tf.Tensor:
    """Returns whether `clip_record` leaves the record as it is, bool `[]`."""
    finite, scale = _scale(leaves, clip_norm)
    return finite & (scale >= 1.0)


def add(total: tf.Tensor, noise: tf.Tensor) -> tf.Tensor:
    """Returns `total` plus the float32 `noise`, computed in float32 or wider, in the type of `total`."""
    wide = _wide(total.dtype)
    return tf.cast(tf.cast(total, wide) + tf.cast(noise, wide), total.dtype)


def _scale(leaves: list[tf.Tensor], clip_norm: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns whether all values are finite, and if so what to multiply them with."""
    values = [tf.reshape(tf.cast(leaf, tf.float32), [-1]) for leaf in leaves]
    flat = tf.concat(values, axis=0)
    # A maximum may drop a NaN, so finiteness is asked of every value.
    finite = tf.reduce_all(tf.math.is_finite(flat))
    largest = tf.reduce_max(tf.abs(flat))
    # Dividing by the largest value first keeps the norm of a huge record from overflowing.
    divisor = tf.where(finite & (largest > 0), largest, 1.0)
    relative_norm = tf.norm(flat / divisor)
    bound = clip_norm / (1.0 + _NORM_ROUNDING + max(_LEAF_ROUNDING[leaf.dtype] for leaf in leaves))
    return finite, tf.minimum(1.0, (bound / divisor) / tf.maximum(relative_norm, 1.0))


def _scaled(leaf: tf.Tensor, scale: tf.Tensor) -> tf.Tensor:
    wide = _wide(leaf.dtype)
    return tf.cast(tf.cast(leaf, wide) * tf.cast(scale, wide), leaf.dtype)


def _wide(dtype: tf.DType) -> tf.DType:
    return tf.float64 if dtype == tf.float64 else tf.float32
