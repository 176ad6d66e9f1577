"""Streams from outside of this package: whether their noise is C⁻¹z."""

from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from tff_mf import registry
from tff_mf.errors import InputTypeError, InputValueError
from tff_mf.mechanisms import Mechanism
from tff_mf.noise import _keys
from tff_mf.noise._stream import NoiseStream, float32_at_least

_ROUNDS, _DIMENSION, _STDDEV = 32, 3, 1.5
# Of float32, relative to the sum of absolute values that a row is.
_TOLERANCE = 1e-5


def checked_stream(build: Callable[..., Any], mechanism: Mechanism, **arguments: Any) -> NoiseStream:
    """Returns what `build` returns, after another that it builds has been run for some rounds.

    Formal guarantee: it is a `NoiseStream` of the dimension, standard deviation and seed that were asked for; and rows
    0 to 31 of one with fresh keys, or as many as the mechanism has, are C⁻¹z to 1e-5, for C of the mechanism as cast to
    float32 and the z of the keys that were drawn. Noise that is not C⁻¹z voids every guarantee of this package.

    Raises:
        InputTypeError: If it is no `NoiseStream`.
        InputValueError: If anything else does not hold; or if the matrices of the mechanism are not consistent.
    """
    stream = _built(build, mechanism, **arguments)
    rounds = min(mechanism.max_rounds or _ROUNDS, _ROUNDS)
    registry.check_matrices(mechanism, rounds)
    cast = mechanism.cast_to_float32()
    registry.check_matrices(cast, rounds)
    sample = _built(build, mechanism, dimension=_DIMENSION, stddev=_STDDEV, insecure_seed=None)
    # The check must run now, also where the caller builds a graph.
    with tf.init_scope():
        rows, keys = (tensor.numpy() for tensor in tf.function(lambda: _run(sample, rounds), autograph=False)())
        z = np.stack([_keys.standard_normal(tf.constant(key), _DIMENSION).numpy() for key in keys]) * _STDDEV
    inverse = cast.inverse(rounds)
    error = np.abs(rows - inverse @ z) / (np.abs(inverse) @ np.abs(z))
    if not np.max(error) <= _TOLERANCE:
        first = int(np.argmax(~(np.max(error, axis=1) <= _TOLERANCE)))
        raise InputValueError(
            f"the stream of kind {mechanism.kind!r} is not C⁻¹z: row {first} is {rows[first].tolist()} and must be "
            f"{(inverse @ z)[first].tolist()}. There is no privacy with other noise."
        )
    return stream


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
    rows = tf.TensorArray(tf.float32, rounds, element_shape=[_DIMENSION])
    _, rows, state = tf.while_loop(
        lambda index, *_: index < rounds,
        step,
        [0, rows, state],
        shape_invariants=[tf.TensorShape([]), tf.TensorShape(None), shapes],
        parallel_iterations=1,
    )
    return rows.stack(), state.past_keys
