"""The noise of the streams that queries run, round by round."""

import numpy as np
import tensorflow as tf

import tff_mf
from tff_mf import noise


def emit(
    mechanism: tff_mf.Mechanism, rounds: int, *, coordinates: int, stddev: float, insecure_seed: int | None = None
) -> np.ndarray:
    """Returns the noise of a whole run, float32 `[rounds, coordinates]`."""
    stream = noise.build_stream(mechanism, dimension=coordinates, stddev=stddev, insecure_seed=insecure_seed)
    step = tf.function(stream.next, reduce_retracing=True)
    state, rows = stream.init(), []
    for _ in range(rounds):
        row, state = step(state)
        rows.append(row.numpy())
    return np.array(rows)


def step_twice(
    mechanism: tff_mf.Mechanism, rounds: int, *, coordinates: int, stddev: float, insecure_seed: int | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Returns the noise of the last of so many rounds, and that of the same state once more."""
    stream = noise.build_stream(mechanism, dimension=coordinates, stddev=stddev, insecure_seed=insecure_seed)
    step = tf.function(stream.next, reduce_retracing=True)
    state = stream.init()
    for _ in range(rounds - 1):
        _, state = step(state)
    return step(state)[0].numpy(), step(state)[0].numpy()
