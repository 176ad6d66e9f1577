"""`NoiseStream` in TensorFlow: the state machine of `KeyedStream` in a graph, which refuses when it runs."""

from typing import Any

import numpy as np
import tensorflow as tf

from tff_mf.mechanisms import Mechanism
from tff_mf.noise._keyed import OTHER_NOISE, KeyedStream
from tff_mf.noise.tensorflow import _state
from tff_mf.noise.tensorflow._recursion import Operations, Runner
from tff_mf.noise.tensorflow._state import KEYS_SHAPE, NoiseState
from tff_mf.problem import grids
from tff_mf.problem.grids import Grid


class NoiseStream(KeyedStream):
    """Streams the rows of σζ·C⁻¹z in TensorFlow, one per round; `KeyedStream` has arguments and methods.

    Formal guarantee: as for `KeyedStream`. What it refuses, the graph refuses; where assertions are stripped from it,
    the row is NaN. With a grid, rows are float64 that hold integers below 2^52, so that a refused round can be NaN: add
    them to sums in float64, which is exact. A cast to an integer would turn NaN into a number.
    """

    _operations = Operations

    def __init__(
        self,
        mechanism: Mechanism,
        *,
        dimension: int,
        stddev: float,
        insecure_seed: int | None = None,
        grid: Grid | None = None,
    ) -> None:
        super().__init__(
            mechanism,
            dimension=dimension,
            stddev=stddev,
            grid=grid,
            insecure_seed=insecure_seed,
            engine=f"tff_mf.noise.tensorflow {'float32' if grid is None else grids.sampler()}",
        )
        self._runner = Runner(self._recursion, dimension=self._dimension, on_grid=grid is not None)

    def init(self) -> NoiseState:
        return NoiseState(
            fingerprint=_state.fingerprint_words(self._fingerprint),
            round=tf.zeros([], tf.int64),
            keys=_state.no_keys(self._limit),
            rows=tuple(tf.zeros([self._dimension], kind) for kind in self._types(0)),
            coefficients=tuple(map(tf.convert_to_tensor, self._runner.tables())),
        )

    # All decisions that depend on a tensor are TensorFlow's own: there is nothing to convert.
    next = tf.autograph.experimental.do_not_convert(KeyedStream.next)

    def _admitted(self, state: NoiseState, ends: list[tuple[int, str]]) -> tuple[NoiseState, tf.Tensor, tf.Tensor]:
        state.refuse_constant()
        own = tf.reduce_all(tf.equal(state.fingerprint, _state.fingerprint_words(self._fingerprint)))
        before = [state.round < end for end, _ in ends]
        # Everything that reads a table does so by this number, and therefore after the check.
        done = _after([(own, OTHER_NOISE), *zip(before, (message for _, message in ends), strict=True)], state.round)
        state = state._replace(round=done, rows=tuple(map(self._checked, state.rows)))
        # TensorFlow can strip assertions from graphs: the noise, and so the release, is then NaN.
        return state, done, tf.where(tf.reduce_all([own, *before]), self._stddev, type(self._stddev)(np.nan))

    def _replayed(self, keys: tf.Tensor, ends: list[tuple[int, str]]) -> NoiseState:
        def run(keys: tf.Tensor) -> NoiseState:
            count = tf.shape(keys, tf.int64)[0]
            # In a graph the number of keys may be unknown before it runs.
            count, start = _after([(count <= end, message) for end, message in ends], count), self.init()
            # Not a constant, as in `next`: TensorFlow would multiply constants first, which rounds differently.
            stddev = tf.where(count >= 0, self._stddev, type(self._stddev)(np.nan))
            shapes = tf.nest.map_structure(lambda tensor: tensor.shape, start)._replace(keys=tf.TensorShape(KEYS_SHAPE))
            # Sequentially: two rounds at once would only take twice the memory.
            return tf.while_loop(
                lambda state: state.round < count,
                lambda state: (self._advanced(state, state.round, keys[state.round], stddev)[1],),
                (start,),
                shape_invariants=(shapes,),
                parallel_iterations=1,
            )[0]

        if not tf.executing_eagerly():
            return run(keys)
        return tf.function(run, input_signature=[tf.TensorSpec(KEYS_SHAPE, tf.int64)], autograph=False)(keys)

    def _advanced(
        self, state: NoiseState, done: tf.Tensor, key: tf.Tensor, stddev: tf.Tensor
    ) -> tuple[tf.Tensor, NoiseState]:
        row, rows = self._runner.next(key, done, state.rows, state.coefficients, stddev)
        keys = _state.with_key(state.keys, done, key, self._limit)
        return row, state._replace(round=done + 1, keys=keys, rows=rows)

    def _checked(self, row: tf.Tensor) -> tf.Tensor:
        """Returns a row of the stream's dimension: sums would repeat one of a single number for all coordinates."""
        return row if row.shape == [self._dimension] else tf.ensure_shape(row, [self._dimension])

    def _as_keys(self, keys: Any) -> tf.Tensor:
        return tf.convert_to_tensor(keys)

    def _system_key(self, done: tf.Tensor) -> tf.Tensor:
        with tf.control_dependencies([done]):
            return _state.system_key()

    def _insecure_key(self, seed: int, done: tf.Tensor) -> tf.Tensor:
        return _state.insecure_key(seed, done)


def _after(conditions: list[tuple[tf.Tensor, str]], value: tf.Tensor) -> tf.Tensor:
    """Returns a value that is read after assertions that conditions hold."""
    checks = [tf.debugging.assert_equal(holds, True, message=message) for holds, message in conditions]
    with tf.control_dependencies([check for check in checks if check is not None]):
        return tf.identity(value)


def build_stream(mechanism: Mechanism, **settings: Any) -> NoiseStream:
    """Returns the noise stream of a mechanism in TensorFlow: see `NoiseStream` for arguments and guarantee.

    Example:
        >>> import tff_mf
        >>> stream = build_stream(tff_mf.BLT.production("b400"), dimension=3, stddev=2.0)
        >>> row, state = stream.next(stream.init())
        >>> row.shape, int(state.round), len(state.rows)
        (TensorShape([3]), 1, 4)
        >>> grid = tff_mf.Grid(bits=16, max_clients=100)
        >>> stream = build_stream(tff_mf.BLT.production("b400"), dimension=3, stddev=2.0, grid=grid)
        >>> row, state = stream.next(stream.init())
        >>> bool(tf.reduce_all(row == tf.floor(row)))
        True
    """
    return NoiseStream(mechanism, **settings)
