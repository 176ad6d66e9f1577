"""The state of noise, and its keys: 128 bits from the operating system, drawn in the graph when the round runs."""

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
                "Privacy keep their first state: train with tff_mf.frameworks.keras."
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
    """Returns the keys with the key of round `step`, after doubling the capacity if it was full."""
    capacity = tf.shape(keys, tf.int64)[0]
    room = capacity if limit is None else tf.minimum(capacity, limit - capacity)
    keys = tf.pad(keys, [[0, tf.where(step < capacity, tf.zeros([], tf.int64), room)], [0, 0]])
    # Padding loses the static length of a key, which TFF needs.
    return tf.ensure_shape(tf.tensor_scatter_nd_update(keys, [[step]], [key]), KEYS_SHAPE)


_ENTROPY_SOURCE = "/dev/urandom"
_KEY_BYTES = 16
# A line of random bytes ends with probability 1/256 at each byte, so eight lines have fewer than sixteen bytes once in
# 10¹³ rounds; that round fails instead of using a short key.
_LINES = 8


def system_key() -> tf.Tensor:
    """Returns a fresh key, int64 `[2]`, from the operating system's generator.

    Formal guarantee: each execution of the op reads `/dev/urandom` again, in graph and eager mode and in every process,
    so that no key can be computed from earlier keys, the graph or the state. A text reader removes the bytes 10 and
    13: 127.8 bits remain.

    `tf.raw_ops.NonDeterministicInts` and `tf.random.Generator.from_non_deterministic_state` must not
    be used here: both read one 64-bit Mersenne Twister per process, seeded with 32 bits. A test
    recovers its state from 312 outputs and predicts the rest.

    A data set is the only stateful reader in TensorFlow. `tf.io.read_file` is declared a pure function, which the
    runtime may fold into a constant: the same key in every round.
    """
    lines = tf.data.TextLineDataset(_ENTROPY_SOURCE, buffer_size=2048).take(_LINES).batch(_LINES)
    random_bytes = tf.strings.reduce_join(lines.get_single_element())
    enough = tf.debugging.assert_greater_equal(
        tf.strings.length(random_bytes), _KEY_BYTES, message=f"{_ENTROPY_SOURCE} gave too few bytes for a noise key."
    )
    with tf.control_dependencies([enough]):
        key = tf.io.decode_raw(tf.strings.substr(random_bytes, 0, _KEY_BYTES), tf.int64)
    return tf.ensure_shape(key, [KEY_WORDS])


def insecure_key(insecure_seed: int, step: tf.Tensor) -> tf.Tensor:
    """Returns the key of round `step` for a seed that is not secret, int64 `[2]`: for tests only.

    The generator itself mixes rounds and seeds. With addition, two seeds would give the same stream, shifted.
    """
    seed = tf.constant([insecure_seed, 0], tf.int64)
    return tf.random.experimental.stateless_fold_in(seed, step, alg="philox")


def standard_normal(key: tf.Tensor, dimension: int) -> tf.Tensor:
    """Returns the standard Gaussian row of a key, float32 `[dimension]`, by Philox."""
    return tf.random.stateless_normal([dimension], seed=key, dtype=tf.float32, alg="philox")
