"""`NoiseStream` in TensorFlow: keys, rounds, the last round, and states of other noise, which are refused."""

from typing import Any

import numpy as np
import tensorflow as tf

from tff_mf import grids
from tff_mf.base.errors import InputValueError
from tff_mf.grids import Grid
from tff_mf.mechanisms import Mechanism
from tff_mf.noise._keyed import KEY_WORDS, KeyedStream
from tff_mf.noise.tensorflow import _keys, _state
from tff_mf.noise.tensorflow._recursion import Operations, Runner
from tff_mf.noise.tensorflow._state import KEYS_SHAPE, NoiseState


class NoiseStream(KeyedStream):
    """Streams the rows of σζ·C⁻¹z in TensorFlow, one per round.

    Formal guarantee: row t is σζ(C⁻¹z)_t for the mechanism's C with float32 parameters, where z has independent
    standard Gaussian rows, and row i is drawn from a key of 128 bits that the operating system gives when round i runs.
    Two steps from one state draw two keys: a round that runs again, after a failure or a resume, gets fresh noise,
    independent of the first attempt, on the same past. A state of another mechanism, `stddev` or setting
    (`bound_to`), and a round after the last one, are refused in the graph; where assertions are stripped from it, the
    row is NaN. With `insecure_seed` only the refusals hold.

    With a grid, rows are integers n_t = R(s_t·z_t − L_t) in units of the grid, with R(v) = ⌊v + ½⌋. L_t is a function
    of past n alone, equal to Σ_{i<t} C_ti n_i / C_tt up to the error of `GridRecursion`, and s_t is s / C_tt, rounded
    up. Released sums y = x + n of integers x are then a function of the adaptive Gaussian release Cx + z, up to that
    error: R commutes with the shift by x_t. `tf.round` does not, because it rounds halves to even. What errors and the
    normals cost is in `tff_mf.guarantee` with the same grid; see docs/floating-point.md. Rows are float64 that hold
    integers below 2^52, so that a refused round can be NaN: add them to sums in float64, which is exact. A cast to an
    integer would turn NaN into a number.

    Args:
        mechanism: The mechanism; streamed with the parameters of `mechanism.cast_to_float32()`.
        dimension: Number of coordinates of a row.
        stddev: Standard deviation of each coordinate of the independent noise: σ times the clip norm; with a grid, σ.
        insecure_seed: Makes the noise repeatable. TEST ONLY: there is no privacy with it.
        grid: The grid, in units of which rows are, or `None` for floats.

    Raises:
        InputTypeError: If an argument is of the wrong type; if the exact class of the mechanism is not registered, or
            its kind has neither a recursion nor an end.
        InputValueError: If an argument is out of range, the recursion of a kind from outside does not give C⁻¹z, or the
            grid does not fit the noise.
    """

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
            grid=grids.check(grid),
            insecure_seed=insecure_seed,
            engine=f"tff_mf.noise.tensorflow {'float32' if grid is None else grids.sampler()}",
        )
        self._runner = Runner(self._recursion, dimension=self._dimension, on_grid=grid is not None)

    def rows_in_use(self, step: tf.Tensor) -> tf.Tensor:
        """Returns how many rows of memory are in use after `step` rounds, int64 `[]`: not secret."""
        return tf.cast(self._recursion.rows_in_use(step, Operations), tf.int64)

    def init(self) -> NoiseState:
        """Returns the state before round 0."""
        return NoiseState(
            fingerprint=_state.fingerprint_words(self._fingerprint),
            round=tf.zeros([], tf.int64),
            keys=_state.no_keys(self._limit),
            rows=self._runner.first_rows(),
            coefficients=tuple(map(tf.convert_to_tensor, self._runner.tables())),
        )

    # All decisions that depend on a tensor are TensorFlow's own: there is nothing to convert.
    @tf.autograph.experimental.do_not_convert
    def next(self, state: NoiseState) -> tuple[tf.Tensor, NoiseState]:
        """Returns this round's noise, `[dimension]`, and the state of the next round.

        Raises:
            InputValueError: If a `tf.function` takes the state from outside of it.
            tf.errors.InvalidArgumentError: From the graph, past the last round of the mechanism, or for a state of
                other noise.
        """
        state.refuse_constant()
        checks = [*_state.fingerprint_checks(state.fingerprint, self._fingerprint), *self._limit_checks(state.round)]
        with tf.control_dependencies(checks):
            # Everything that reads a table does so by this number, and therefore after the check.
            state = state._replace(round=tf.identity(state.round))
        state = state._replace(rows=tuple(map(self._checked, state.rows)))
        # TensorFlow can strip assertions from graphs: the noise, and so the release, is then NaN.
        valid = tf.reduce_all(tf.equal(state.fingerprint, _state.fingerprint_words(self._fingerprint)))
        if self._limit is not None:
            valid &= state.round < self._limit
        return self._advance(self._key(state.round), state, tf.where(valid, self._stddev, type(self._stddev)(np.nan)))

    def replay(self, keys: tf.Tensor) -> NoiseState:
        """Returns the state after the rounds that drew `keys`, int64 `[rounds, 2]`, by running them again.

        Formal guarantee: the state is the one after those rounds, bit for bit: with a grid on every machine, in floats
        on the same one. No key is drawn, and nothing is released a second time: the noise rows are dropped. Later
        rounds draw fresh keys.

        Raises:
            InputValueError: If the shape or type of `keys` is wrong, or it has more rounds than the mechanism.
            tf.errors.InvalidArgumentError: From the graph, past the last round of the stream.
        """
        keys = tf.convert_to_tensor(keys)
        if keys.dtype != tf.int64 or keys.shape.rank != 2 or keys.shape[1] != KEY_WORDS:
            raise InputValueError(f"keys of type {keys.dtype.name} and shape {keys.shape} must be int64 [rounds, 2].")
        self._check_replayed(keys.shape[0] or 0)
        if tf.executing_eagerly():
            return tf.function(self._replayed, input_signature=[tf.TensorSpec(KEYS_SHAPE, tf.int64)], autograph=False)(
                keys
            )
        return self._replayed(keys)

    def _replayed(self, keys: tf.Tensor) -> NoiseState:
        count, start = tf.shape(keys, tf.int64)[0], self.init()
        # Not a constant, as in `next`: TensorFlow would multiply constants first, which rounds differently.
        stddev = tf.where(count >= 0, self._stddev, type(self._stddev)(np.nan))
        shapes = tf.nest.map_structure(lambda tensor: tensor.shape, start)._replace(keys=tf.TensorShape(KEYS_SHAPE))

        def again(state: NoiseState) -> tuple[NoiseState]:
            # In a graph the number of keys may be unknown before it runs.
            with tf.control_dependencies(self._limit_checks(state.round)):
                key = tf.identity(keys[state.round])
            return (self._advance(key, state, stddev)[1],)

        # Sequentially: two rounds at once would only take twice the memory.
        return tf.while_loop(
            lambda state: state.round < count, again, (start,), shape_invariants=(shapes,), parallel_iterations=1
        )[0]

    def _advance(self, key: tf.Tensor, state: NoiseState, stddev: tf.Tensor) -> tuple[tf.Tensor, NoiseState]:
        row, rows = self._runner.next(key, state.round, state.rows, state.coefficients, state.keys, stddev)
        keys = _state.with_key(state.keys, state.round, key, self._limit)
        return row, state._replace(round=state.round + 1, keys=keys, rows=rows)

    def _checked(self, row: tf.Tensor) -> tf.Tensor:
        """Returns a row of the stream's dimension: sums would repeat one of a single number for all coordinates."""
        return row if row.shape == [self._dimension] else tf.ensure_shape(row, [self._dimension])

    def _key(self, step: tf.Tensor) -> tf.Tensor:
        if self._repeated is not None:
            return tf.gather(tf.constant(self._repeated), step)
        if self._insecure_seed is None:
            with tf.control_dependencies([step]):
                return _keys.system_key()
        return _keys.insecure_key(self._insecure_seed, step)

    def _limit_checks(self, step: tf.Tensor) -> list[tf.Operation]:
        if self._limit is None:
            return []
        message = self._past_the_end()
        check = tf.debugging.assert_less(step, tf.constant(self._limit, tf.int64), message=message)
        return [] if check is None else [check]


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
