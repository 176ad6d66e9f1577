"""Keys of the noise: 128 bits from the operating system, drawn when the round runs."""

import secrets

import numpy as np

from tff_mf import normals

_KEY_BYTES = 16


def system_key() -> np.ndarray:
    """Returns a fresh key, int64 `[2]`, from the operating system's generator."""
    return np.frombuffer(secrets.token_bytes(_KEY_BYTES), np.int64)


def insecure_key(insecure_seed: int, step: int) -> np.ndarray:
    """Returns the key of round `step` for a seed that is not secret, int64 `[2]`: for tests only.

    `tff_mf.noise` has the same: `tf.random.experimental.stateless_fold_in` of the seed.
    """
    (word,) = normals.words(np.array([insecure_seed, 0]), 0, 1)
    return np.array([word, step])
