"""Fingerprints of noise in its state, so that no other stream continues it."""

import numpy as np
import tensorflow as tf

_WORDS = 4
_MESSAGE = (
    "This state is of other noise than this process draws: mechanism, clip_norm, noise_multiplier, restart_every, "
    "adaptive_clipping, grid or insecure_seed differ. Continue it with the arguments that it was begun with."
)


def words(digest: bytes) -> tf.Tensor:
    """Returns a digest of 32 bytes as a state stores it, int64 `[4]`."""
    return tf.constant(np.frombuffer(digest, "<i8"), tf.int64, [_WORDS])


def checks(found: tf.Tensor, digest: bytes) -> list[tf.Operation]:
    """Returns the operations, in a graph, that fail if a state's fingerprint is not that of `digest`.

    Formal guarantee: operations that depend on them do not run for a state of other noise. C⁻¹z cancels earlier noise;
    with a smaller scale or another matrix, it would cancel noise that past rounds need.

    Raises:
        tf.errors.InvalidArgumentError: When run eagerly on such a state.
    """
    check = tf.debugging.assert_equal(found, words(digest), message=_MESSAGE)
    return [] if check is None else [check]
