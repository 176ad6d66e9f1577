"""Keys of past rounds, in a tensor whose shape rarely changes."""

import tensorflow as tf

from tff_mf.noise import _keys

SHAPE = (None, _keys.KEY_WORDS)

# 16 KB. A larger one would make the state of every short run larger, a smaller one would change shape more often.
_FIRST_CAPACITY = 1024


def no_keys(limit: int | None) -> tf.Tensor:
    """Returns zeros in place of the first keys of a stream of at most `limit` rounds, int64 `[capacity, 2]`."""
    capacity = _FIRST_CAPACITY if limit is None else min(limit, _FIRST_CAPACITY)
    # TFF takes the type of a state from the first one, and the capacity must not be part of the type.
    return tf.compat.v1.placeholder_with_default(tf.zeros([capacity, _keys.KEY_WORDS], tf.int64), SHAPE)


def with_key(keys: tf.Tensor, step: tf.Tensor, key: tf.Tensor, limit: int | None) -> tf.Tensor:
    """Returns the keys with that of round `step`, after doubling the capacity if it was full."""
    capacity = tf.shape(keys, tf.int64)[0]
    room = capacity if limit is None else tf.minimum(capacity, limit - capacity)
    keys = tf.pad(keys, [[0, tf.where(step < capacity, tf.zeros([], tf.int64), room)], [0, 0]])
    # Padding loses the static length of a key, which TFF needs.
    return tf.ensure_shape(tf.tensor_scatter_nd_update(keys, [[step]], [key]), SHAPE)
