"""Base class of all streams: keys, rounds, the last round, and states of other noise, which are refused."""

import abc
import copy
import hashlib
from typing import Generic, NamedTuple, Self, TypeVar

import numpy as np
import tensorflow as tf

from tff_mf import validation
from tff_mf.errors import InputValueError
from tff_mf.mechanisms import Mechanism
from tff_mf.noise import _fingerprint, _keys, _past
from tff_mf.registry import content_digest
from tff_mf.streams import arguments

_M = TypeVar("_M", bound=Mechanism)


class NoiseState(NamedTuple):
    """Everything that the noise of the next round depends on. Secret: with it, the noise can be subtracted.

    Attributes:
        fingerprint: Digest of everything that the noise depends on except its keys, int64 `[4]`. A stream continues a
            state only if it has the same fingerprint.
        round: Number of rounds drawn so far, int64 `[]`.
        keys: Key of each round drawn so far, followed by zeros, int64 `[capacity, 2]`: see `past_keys`. The capacity
            is the number of rounds of the mechanism, or the number needed so far, rounded up so that it rarely
            changes: a `tf.function` is traced again for every shape.
        rows: Rows of memory, each float32 `[dimension]`. A row that a round does not change is passed on without a
            copy.
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
        """Raises if a `tf.function` takes the state from outside of it, which would be the same one in every call.

        Raises:
            InputValueError: If it does.
        """
        if not (tf.executing_eagerly() or isinstance(self.round, tf.Variable) or tf.is_symbolic_tensor(self.round)):
            raise InputValueError(
                "state must be an argument of the tf.function that steps it, or be created in it: a state from outside "
                "is a constant, and every call would draw the noise of the same round. For an optimizer of TensorFlow "
                "Privacy, wrap the query in tff_mf.queries.VariableQuery."
            )


class KeyedStream(abc.ABC, Generic[_M]):
    """Draws a fresh key in each round, and computes a row of noise and the next state from it.

    Formal guarantee: row i is drawn from a key of 128 bits that the operating system gives when round i runs. Two steps
    from one state draw two keys. A state of other noise, and a round after the last one, are refused in the graph;
    where assertions are stripped from it, the row is NaN.

    Args:
        mechanism: The mechanism, of which `self.mechanism` has the parameters cast to float32.
        dimension: Number of coordinates of a row.
        stddev: Standard deviation of the independent noise, in the type in which it is computed.
        insecure_seed: Makes the noise repeatable. TEST ONLY: there is no privacy with it.
        limit: Number of rounds, or `None`.
        setting: What the noise depends on beside mechanism, class, `stddev` and seed.
    """

    def __init__(
        self,
        mechanism: _M,
        *,
        dimension: int,
        stddev: np.floating,
        insecure_seed: int | None,
        limit: int | None,
        setting: tuple[object, ...] = (),
    ) -> None:
        self.mechanism = mechanism.cast_to_float32()
        self._dimension = validation.whole("dimension", dimension)
        self._stddev = stddev
        self._insecure_seed = arguments.seed(insecure_seed)
        self._repeated: np.ndarray | None = None
        self._limit = limit
        drawn = repr((type(self).__name__, float(stddev), insecure_seed, *setting))
        self._fingerprint = hashlib.sha256(content_digest(mechanism) + drawn.encode()).digest()

    def bound_to(self, setting: str) -> Self:
        """Returns the same stream with a fingerprint of its own for `setting`.

        For settings that the noise does not depend on but that must not change during a run: the clip norm, of which a
        stream knows only the product with σ, and the rounds of restarts.
        """
        bound = copy.copy(self)
        bound._fingerprint = hashlib.sha256(self._fingerprint + setting.encode()).digest()
        return bound

    def limited_to(self, rounds: int) -> Self:
        """Returns the same stream limited to `rounds` rounds: the graph refuses the next one, and `replay` more keys.

        Noise and fingerprint are the same: a stream of more rounds can continue the state.

        Raises:
            InputTypeError: If `rounds` is not a whole number.
            InputValueError: If it is below 1, or more than the stream is defined for.
        """
        limited = copy.copy(self)
        limited._limit = self.mechanism.check(validation.whole("rounds", rounds))
        if self._limit is not None and rounds > self._limit:
            raise InputValueError(f"rounds={rounds} is more than the {self._limit} that this stream is defined for.")
        return limited

    def repeating(self, keys: np.ndarray) -> Self:
        """Returns the same stream, whose graphs take the key of round t from `keys[t]`: for verification only.

        What has run once can be computed again with it, and compared. Nothing that such a graph gives may be released:
        anyone who has the keys can subtract the noise.

        Args:
            keys: Keys that were drawn, int64 `[rounds, 2]`.

        Raises:
            InputValueError: If they are of another shape or type.
        """
        repeating = copy.copy(self)
        repeating._repeated = arguments.keys(keys)
        return repeating

    @property
    def dimension(self) -> int:
        """Number of coordinates of a row."""
        return self._dimension

    @property
    def insecure_seed(self) -> int | None:
        """The seed of repeatable noise, or `None`."""
        return self._insecure_seed

    @property
    def fingerprint(self) -> bytes:
        """Digest of everything that the noise depends on except its keys, and of the settings that it is bound to."""
        return self._fingerprint

    @property
    @abc.abstractmethod
    def row_count(self) -> int:
        """Number of rows of memory; they are zero before round 0."""

    @abc.abstractmethod
    def _first_rows(self) -> tuple[tf.Tensor, ...]:
        """Returns the rows of memory before round 0."""

    @abc.abstractmethod
    def _row(self, key: tf.Tensor, state: NoiseState, stddev: tf.Tensor) -> tuple[tf.Tensor, tuple[tf.Tensor, ...]]:
        """Returns the row of noise of a key, and the rows of memory after it."""

    def coefficients(self) -> tuple[np.ndarray | tf.Tensor, ...]:
        """Returns what `step` finds in `state.coefficients`: tables by round, which must not be part of the graph."""
        return ()

    def rows_in_use(self, step: tf.Tensor) -> tf.Tensor:
        """Returns how many rows of memory are in use after `step` rounds, int64 `[]`: not secret."""
        return tf.where(step > 0, tf.constant(self.row_count, tf.int64), tf.zeros([], tf.int64))

    def init(self) -> NoiseState:
        """Returns the state before round 0."""
        return NoiseState(
            fingerprint=_fingerprint.words(self._fingerprint),
            round=tf.zeros([], tf.int64),
            keys=_past.no_keys(self._limit),
            rows=self._first_rows(),
            coefficients=tuple(map(tf.convert_to_tensor, self.coefficients())),
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
        checks = [*_fingerprint.checks(state.fingerprint, self._fingerprint), *self._limit_checks(state.round)]
        with tf.control_dependencies(checks):
            # Everything that reads a table does so by this number, and therefore after the check.
            state = state._replace(round=tf.identity(state.round))
        # TensorFlow can strip assertions from graphs: the noise, and so the release, is then NaN.
        valid = tf.reduce_all(tf.equal(state.fingerprint, _fingerprint.words(self._fingerprint)))
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
        if keys.dtype != tf.int64 or keys.shape.rank != 2 or keys.shape[1] != _keys.KEY_WORDS:
            raise InputValueError(f"keys of type {keys.dtype.name} and shape {keys.shape} must be int64 [rounds, 2].")
        if keys.shape[0]:
            self.mechanism.check(keys.shape[0])
        if tf.executing_eagerly():
            return tf.function(self._replayed, input_signature=[tf.TensorSpec(_past.SHAPE, tf.int64)], autograph=False)(
                keys
            )
        return self._replayed(keys)

    def _replayed(self, keys: tf.Tensor) -> NoiseState:
        count, start = tf.shape(keys, tf.int64)[0], self.init()
        # Not a constant, as in `next`: TensorFlow would multiply constants first, which rounds differently.
        stddev = tf.where(count >= 0, self._stddev, type(self._stddev)(np.nan))
        shapes = tf.nest.map_structure(lambda tensor: tensor.shape, start)._replace(keys=tf.TensorShape(_past.SHAPE))

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
        row, rows = self._row(key, state, stddev)
        keys = _past.with_key(state.keys, state.round, key, self._limit)
        return row, state._replace(round=state.round + 1, keys=keys, rows=rows)

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
        message = arguments.past_the_end(self.mechanism, self._limit)
        check = tf.debugging.assert_less(step, tf.constant(self._limit, tf.int64), message=message)
        return [] if check is None else [check]
