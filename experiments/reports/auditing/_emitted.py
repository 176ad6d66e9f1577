"""The noise of the streams that the queries run, round by round."""

import numpy as np
import tensorflow as tf

import tff_mf
from tff_mf import queries
from tff_mf.noise import tensorflow as noise

from ...output import progress

# Norms of records, for a clip norm of 1.
_ABOVE, _BELOW = 2.0, 0.5


def emit(
    mechanism: tff_mf.Mechanism,
    rounds: int,
    *,
    coordinates: int,
    stddev: float,
    insecure_seed: int | None = None,
    restart_every: int | None = None,
    grid: tff_mf.Grid | None = None,
) -> np.ndarray:
    """Returns the noise of a whole run, with all of its restarts, for a clip norm of 1: `[rounds, coordinates]`.

    It is float32; on a grid it is float64, and whole multiples of 2^-bits.
    """
    stream = noise.build_stream(mechanism, dimension=coordinates, stddev=stddev, insecure_seed=insecure_seed, grid=grid)
    step = tf.function(stream.next, reduce_retracing=True)
    state, rows = stream.init(), []
    for number in range(rounds):
        if number and restart_every is not None and number % restart_every == 0:
            state = stream.init()
        row, state = step(state)
        rows.append(_for_clip_norm_1(row, grid))
        progress.step()
    return np.array(rows)


def _for_clip_norm_1(row: tf.Tensor, grid: tff_mf.Grid | None) -> np.ndarray:
    # A power of two: exact.
    return row.numpy() if grid is None else row.numpy() / grid.largest_norm


def count_moved(adjacency: str) -> float:
    """Returns by how much one client changes the count of adaptive clipping in a round, as computed by the query.

    The client's update is above the clip norm; its neighbour's is zero, or another update below the clip norm.
    """
    clipping = queries.AdaptiveClipping(count_stddev=1.0)
    query = queries.AdaptiveClippingQuery(
        tff_mf.Identity(),
        record_specs=tf.TensorSpec([1]),
        clip_norm=1.0,
        noise_multiplier=1.0,
        clipping=clipping,
        clients_per_round=1,
    )
    params = query.derive_sample_params(query.initial_global_state())
    neighbour = 0.0 if adjacency == "zero-out" else -_BELOW
    counts = [query.preprocess_record(params, tf.constant([value]))[1] for value in (_ABOVE, neighbour)]
    return abs(float(counts[0]) - float(counts[1]))


def step_twice(
    mechanism: tff_mf.Mechanism,
    rounds: int,
    *,
    coordinates: int,
    stddev: float,
    insecure_seed: int | None = None,
    grid: tff_mf.Grid | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """Returns the noise of the last round, and the noise of a second step from the same state."""
    stream = noise.build_stream(mechanism, dimension=coordinates, stddev=stddev, insecure_seed=insecure_seed, grid=grid)
    step = tf.function(stream.next, reduce_retracing=True)
    state = stream.init()
    for _ in range(rounds - 1):
        _, state = step(state)
    return _for_clip_norm_1(step(state)[0], grid), _for_clip_norm_1(step(state)[0], grid)
