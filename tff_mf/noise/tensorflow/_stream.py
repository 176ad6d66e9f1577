"""`NoiseStream` in TensorFlow: the state machine of `KeyedStream` in a graph, which refuses when it runs.

Keys have 128 bits from the operating system, drawn in the graph when the round runs.
"""

from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from tff_mf.base.errors import InputValueError
from tff_mf.mechanisms import Mechanism
from tff_mf.noise._keyed import KEY_WORDS, OTHER_NOISE, KeyedStream
from tff_mf.noise.tensorflow._recursion import Operations, Runner
from tff_mf.problem import grids
from tff_mf.problem.grids import Grid

KEYS_SHAPE = (None, KEY_WORDS)
# 16 KB. A larger one would make the state of every short run larger, a smaller one would change shape more often.
_FIRST_CAPACITY = 1024
_FINGERPRINT_WORDS = 4
_ENTROPY_SOURCE = "/dev/urandom"
_KEY_BYTES = 16
# A line of random bytes ends with probability 1/256 at each byte, so eight lines have fewer than sixteen bytes once in
# 10¹³ rounds; that round fails instead of using a short key.
_LINES = 8


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
            fingerprint=fingerprint_words(self._fingerprint),
            round=tf.zeros([], tf.int64),
            keys=no_keys(self._limit),
            rows=tuple(tf.zeros([self._dimension], kind) for kind in self._types(0)),
            coefficients=tuple(map(tf.convert_to_tensor, self._runner.tables())),
        )

    # All decisions that depend on a tensor are TensorFlow's own: there is nothing to convert.
    next = tf.autograph.experimental.do_not_convert(KeyedStream.next)

    def _admitted(self, state: NoiseState, ends: list[tuple[int, str]]) -> tuple[NoiseState, tf.Tensor, tf.Tensor]:
        state.refuse_constant()
        own = tf.reduce_all(tf.equal(state.fingerprint, fingerprint_words(self._fingerprint)))
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
        keys = with_key(state.keys, done, key, self._limit)
        return row, state._replace(round=done + 1, keys=keys, rows=rows)

    def _checked(self, row: tf.Tensor) -> tf.Tensor:
        """Returns a row of the stream's dimension: sums would repeat one of a single number for all coordinates."""
        return row if row.shape == [self._dimension] else tf.ensure_shape(row, [self._dimension])

    def _as_keys(self, keys: Any) -> tf.Tensor:
        return tf.convert_to_tensor(keys)

    def _system_key(self, done: tf.Tensor) -> tf.Tensor:
        with tf.control_dependencies([done]):
            return system_key()

    def _insecure_key(self, seed: int, done: tf.Tensor) -> tf.Tensor:
        return insecure_key(seed, done)


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
