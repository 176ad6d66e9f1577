"""Keys of the noise: 128 bits from the operating system, drawn in the graph when the round runs."""

import tensorflow as tf

from tff_mf.noise._keyed import KEY_WORDS

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
