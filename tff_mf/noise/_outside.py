"""Streams from outside of this package: whether their noise is C⁻¹z."""

from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from tff_mf import sensitivities
from tff_mf.errors import InputTypeError, InputValueError
from tff_mf.mechanisms import Mechanism
from tff_mf.noise import _keys
from tff_mf.noise._stream import NoiseStream
from tff_mf.streams.arguments import float32_at_least

_FEWEST_ROUNDS, _MOST_ROUNDS, _DIMENSION = 32, 2**10, 3
# In all rounds of a sample.
_MOST_VALUES = 2**20
# Of float32, relative to the sum of absolute values that a row is.
_TOLERANCE = 1e-5


def checked_stream(build: Callable[..., Any], mechanism: Mechanism, **arguments: Any) -> NoiseStream:
    """Returns what `build` returns, after others that it builds have been run for some rounds.

    Formal guarantee: it is a `NoiseStream` of the dimension, standard deviation and seed that were asked for. With
    fresh keys, the first rows (32, or twice its rows of memory and eight, or as many as the mechanism has) are C⁻¹z to
    1e-5, for C of the mechanism as cast to float32 and the z of the keys that were drawn; so are those of a second run
    of the same stream. Noise that is not C⁻¹z voids every guarantee of this package.

    Raises:
        InputTypeError: If it is no `NoiseStream`.
        InputValueError: If anything else does not hold; or if the matrices of the mechanism are not consistent.
    """
    stream = _built(build, mechanism, **arguments)
    enough = min(max(_FEWEST_ROUNDS, 2 * stream.row_count + 8), _MOST_ROUNDS)
    rounds = min(mechanism.max_rounds or enough, enough)
    sensitivities.check_outside(mechanism, rounds)
    cast = mechanism.cast_to_float32()
    sensitivities.check_outside(cast, rounds)
    inverse = cast.inverse(rounds)
    dimensions = (
        {_DIMENSION, arguments["dimension"]} if arguments["dimension"] <= _MOST_VALUES // rounds else {_DIMENSION}
    )
    for dimension in sorted(dimensions):
        # Without noise there is nothing to compare.
        stddev = arguments["stddev"] or 1.0
        sample = _built(build, mechanism, dimension=dimension, stddev=stddev, insecure_seed=None)
        # The check must run now, also where the caller builds a graph.
        with tf.init_scope():
            run = tf.function(lambda sample=sample: _run(sample, rounds), autograph=False)
            for _ in range(2):
                _compare(mechanism, sample, inverse, *(tensor.numpy() for tensor in run()))
    return stream


def _compare(
    mechanism: Mechanism, sample: NoiseStream, inverse: np.ndarray, rows: np.ndarray, keys: np.ndarray
) -> None:
    drawn = [_keys.standard_normal(tf.constant(key), sample.dimension).numpy() for key in keys]
    z = np.stack(drawn).astype(np.float64) * float(sample.stddev)
    error = np.abs(rows - inverse @ z) / (np.abs(inverse) @ np.abs(z))
    if not np.max(error) <= _TOLERANCE:
        first = int(np.argmax(~(np.max(error, axis=1) <= _TOLERANCE)))
        raise InputValueError(
            f"the stream of kind {mechanism.kind!r} is not C⁻¹z: row {first} begins {rows[first][:3].tolist()} and "
            f"must begin {(inverse @ z)[first][:3].tolist()}. There is no privacy with other noise."
        )


def _built(build: Callable[..., Any], mechanism: Mechanism, **arguments: Any) -> NoiseStream:
    stream = build(mechanism, **arguments)
    if not isinstance(stream, NoiseStream):
        raise InputTypeError(f"the stream of kind {mechanism.kind!r} is {stream!r}: return a tff_mf.noise.NoiseStream.")
    stddev = float(float32_at_least("stddev", arguments["stddev"]))
    expected = (arguments["dimension"], stddev, arguments["insecure_seed"])
    found = (stream.dimension, float(stream.stddev), stream.insecure_seed)
    if found != expected:
        raise InputValueError(
            f"the stream of kind {mechanism.kind!r} has the dimension, stddev and insecure_seed {found}, unlike "
            f"{expected}: pass on what it is given."
        )
    return stream


def _run(stream: NoiseStream, rounds: int) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns the first rows of noise, and the keys that were drawn for them."""

    def step(index: tf.Tensor, rows: tf.TensorArray, state: Any) -> tuple[tf.Tensor, tf.TensorArray, Any]:
        row, state = stream.next(state)
        return index + 1, rows.write(index, row), state

    state = stream.init()
    shapes = tf.nest.map_structure(lambda tensor: tensor.shape, state)._replace(keys=tf.TensorShape([None, 2]))
    rows = tf.TensorArray(tf.float32, rounds, element_shape=[stream.dimension])
    _, rows, state = tf.while_loop(
        lambda index, *_: index < rounds,
        step,
        [0, rows, state],
        shape_invariants=[tf.TensorShape([]), tf.TensorShape(None), shapes],
        parallel_iterations=1,
    )
    return rows.stack(), state.past_keys
