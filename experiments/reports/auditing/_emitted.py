"""The noise of the streams that the queries run, round by round."""

from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

import tff_mf
from tff_mf import queries
from tff_mf.noise import tensorflow as noise

from ...output import progress

# Norms of records, for a clip norm of 1.
_ABOVE, _BELOW = 2.0, 0.5


def emit(mechanism: tff_mf.Mechanism, rounds: int, *, restart_every: int | None = None, **of_stream: Any) -> np.ndarray:
    """Returns the noise of a whole run, with all of its restarts, for a clip norm of 1: `[rounds, coordinates]`.

    It is float32; on a grid it is float64, and whole multiples of 2^-bits.
    """
    begin, step = _stream(mechanism, **of_stream)
    state, rows = begin(), []
    for number in range(rounds):
        if number and restart_every is not None and number % restart_every == 0:
            state = begin()
        row, state = step(state)
        rows.append(row)
        progress.step()
    return np.array(rows)


def step_twice(mechanism: tff_mf.Mechanism, rounds: int, **of_stream: Any) -> tuple[np.ndarray, np.ndarray]:
    """Returns the noise of the last round, and the noise of a second step from the same state."""
    begin, step = _stream(mechanism, **of_stream)
    state = begin()
    for _ in range(rounds - 1):
        _, state = step(state)
    return step(state)[0], step(state)[0]


def _stream(
    mechanism: tff_mf.Mechanism, *, coordinates: int, grid: tff_mf.Grid | None = None, **noise_of: Any
) -> tuple[Callable[[], Any], Callable[[Any], tuple[np.ndarray, Any]]]:
    """Returns what makes the first state of a stream, and what steps it: to a row for a clip norm of 1, and a state."""
    stream = noise.build_stream(mechanism, dimension=coordinates, grid=grid, **noise_of)
    following = tf.function(stream.next, reduce_retracing=True)

    def step(state: Any) -> tuple[np.ndarray, Any]:
        row, state = following(state)
        # A power of two: exact.
        return (row.numpy() if grid is None else row.numpy() / grid.largest_norm), state

    return stream.init, step


def count_moved(adjacency: str) -> float:
    """Returns by how much one client changes the count of adaptive clipping in a round, as computed by the query.

    The client's update is above the clip norm; its neighbour's is zero, or another update below the clip norm.
    """
    query = queries.AdaptiveClippingQuery(
        tff_mf.Identity(),
        record_specs=tf.TensorSpec([1]),
        clip_norm=1.0,
        noise_multiplier=1.0,
        clipping=queries.AdaptiveClipping(count_stddev=1.0),
        clients_per_round=1,
    )
    params = query.derive_sample_params(query.initial_global_state())
    neighbour = 0.0 if adjacency == "zero-out" else -_BELOW
    counts = [query.preprocess_record(params, tf.constant([value]))[1] for value in (_ABOVE, neighbour)]
    return abs(float(counts[0]) - float(counts[1]))
