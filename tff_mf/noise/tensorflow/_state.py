"""The state of noise: its fingerprint, and the keys of past rounds in a tensor whose shape rarely changes."""

from typing import NamedTuple

import numpy as np
import tensorflow as tf

from tff_mf.base.errors import InputValueError
from tff_mf.noise._keyed import KEY_WORDS

KEYS_SHAPE = (None, KEY_WORDS)
# 16 KB. A larger one would make the state of every short run larger, a smaller one would change shape more often.
_FIRST_CAPACITY = 1024
_FINGERPRINT_WORDS = 4


class NoiseState(NamedTuple):
    """Everything that the noise of the next round depends on. Secret: with it, the noise can be subtracted.

    Attributes:
        fingerprint: Digest of everything that the noise depends on except its keys, int64 `[4]`. A stream continues a
            state only if it has the same fingerprint.
        round: Number of rounds drawn so far, int64 `[]`.
        keys: Key of each round drawn so far, followed by zeros, int64 `[capacity, 2]`: see `past_keys`. The capacity
            is the number of rounds of the mechanism, or the number needed so far, rounded up so that it rarely
            changes: a `tf.function` is traced again for every shape.
        rows: Rows of memory, each `[dimension]`: float32, or the recursion's types on a grid. A row that a round does
            not change is passed on without a copy.
        coefficients: Tables of the mechanism's matrix, for mechanisms whose rounds differ. They are not part of the
            graph, where every call would pay for them.
    """

    fingerprint: tf.Tensor
    round: tf.Tensor
    keys: tf.Tensor
    rows: tuple[tf.Tensor, ...]
    coefficients: tuple[tf.Tensor, ...]

    def __repr__(self) -> str:
        """Tells no secret: states are printed, logged, and quoted in TFF's errors."""
        return f"{type(self).__name__}(round={self.round!r}, secret)"

    @property
    def past_keys(self) -> tf.Tensor:
        """Key of each round drawn so far, int64 `[round, 2]`, from which past noise can be drawn again."""
        return self.keys[: self.round]

    def refuse_constant(self) -> None:
        """Raises if a `tf.function` takes the state from outside of it, which would be the same one in every call."""
        if not (tf.executing_eagerly() or isinstance(self.round, tf.Variable) or tf.is_symbolic_tensor(self.round)):
            raise InputValueError(
                "state must be an argument of the tf.function that steps it, or be created in it: a state from outside "
                "is a constant, and every call would draw the noise of the same round. Optimizers of TensorFlow "
                "Privacy keep their first state: train with tff_mf.keras."
            )


def fingerprint_words(digest: bytes) -> tf.Tensor:
    """Returns a digest of 32 bytes as a state stores it, int64 `[4]`."""
    return tf.constant(np.frombuffer(digest, "<i8"), tf.int64, [_FINGERPRINT_WORDS])


def no_keys(limit: int | None) -> tf.Tensor:
    """Returns zeros in place of the first keys of a stream of at most `limit` rounds, int64 `[capacity, 2]`."""
    capacity = _FIRST_CAPACITY if limit is None else min(limit, _FIRST_CAPACITY)
    # TFF takes the type of a state from the first one, and the capacity must not be part of the type.
    return tf.compat.v1.placeholder_with_default(tf.zeros([capacity, KEY_WORDS], tf.int64), KEYS_SHAPE)


def with_key(keys: tf.Tensor, step: tf.Tensor, key: tf.Tensor, limit: int | None) -> tf.Tensor:
    """Returns the keys with that of round `step`, after doubling the capacity if it was full."""
    capacity = tf.shape(keys, tf.int64)[0]
    room = capacity if limit is None else tf.minimum(capacity, limit - capacity)
    keys = tf.pad(keys, [[0, tf.where(step < capacity, tf.zeros([], tf.int64), room)], [0, 0]])
    # Padding loses the static length of a key, which TFF needs.
    return tf.ensure_shape(tf.tensor_scatter_nd_update(keys, [[step]], [key]), KEYS_SHAPE)
