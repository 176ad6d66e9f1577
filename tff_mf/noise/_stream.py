"""Base class of noise streams in floating point."""

import abc
from typing import Any, TypeVar

import numpy as np
import tensorflow as tf

from tff_mf import validation
from tff_mf.errors import InputTypeError
from tff_mf.mechanisms import Mechanism
from tff_mf.noise import _keys
from tff_mf.noise._keyed import KeyedStream, NoiseState
from tff_mf.streams.arguments import float32_at_least

_M = TypeVar("_M", bound=Mechanism)

_FINAL = {"init", "next", "replay", "bound_to", "limited_to", "repeating", "fingerprint", "stddev"}
_FINAL |= {"_advance", "_drawn", "_key", "_limit_checks", "_replayed", "_row", "_first_rows"}


class NoiseStream(KeyedStream[_M]):
    """Streams the rows of σζ·C⁻¹z, one per round.

    Formal guarantee: row t is σζ(C⁻¹z)_t for the mechanism's C with float32 parameters, where z has independent
    standard Gaussian rows, and row i is drawn from a key of 128 bits that the operating system gives when round i runs.
    Two steps from one state draw two keys: a round that runs again, after a failure or a resume, gets fresh noise,
    independent of the first attempt, on the same past. A state of another mechanism, `stddev` or setting
    (`bound_to`) is refused in the graph, however it was loaded. With `insecure_seed` only the refusal holds.

    A subclass for another mechanism defines `row_count` and `step`, and `coefficients` where rounds differ. How keys
    are drawn, recorded and checked is the same for all: those methods cannot be overridden.

    Args:
        mechanism: The mechanism; streamed with the parameters of `mechanism.cast_to_float32()`, which a subclass finds
            in `self.mechanism`.
        dimension: Number of coordinates of a row.
        stddev: Standard deviation σζ of each coordinate of the independent noise.
        insecure_seed: Makes the noise repeatable. TEST ONLY: there is no privacy with it.

    Raises:
        InputTypeError: If an argument is of the wrong type.
        InputValueError: If an argument is out of range.
    """

    def __init_subclass__(cls, **arguments: Any) -> None:
        super().__init_subclass__(**arguments)
        overridden = sorted(name for name in _FINAL if getattr(cls, name) is not getattr(NoiseStream, name))
        if overridden:
            raise InputTypeError(f"{cls.__name__} must not override {', '.join(overridden)}: define step instead.")

    def __init__(self, mechanism: _M, *, dimension: int, stddev: float, insecure_seed: int | None = None) -> None:
        super().__init__(
            mechanism,
            dimension=dimension,
            stddev=float32_at_least("stddev", validation.nonnegative("stddev", stddev)),
            insecure_seed=insecure_seed,
            limit=mechanism.max_rounds,
        )

    @property
    def stddev(self) -> np.float32:
        """Standard deviation σζ of each coordinate of the independent noise, in float32."""
        return self._stddev

    @abc.abstractmethod
    def step(self, noise: tf.Tensor, state: NoiseState) -> tuple[tf.Tensor, tuple[tf.Tensor, ...]]:
        """Returns this round's row of C⁻¹z and the rows of memory after it.

        Args:
            noise: This round's row of z, float32 `[dimension]`.
            state: The state before this round; `state.round` is the number of rounds before it.
        """

    def _first_rows(self) -> tuple[tf.Tensor, ...]:
        return tuple(tf.zeros([self._dimension], tf.float32) for _ in range(self.row_count))

    def _row(self, key: tf.Tensor, state: NoiseState, stddev: tf.Tensor) -> tuple[tf.Tensor, tuple[tf.Tensor, ...]]:
        return self.step(_keys.standard_normal(key, self._dimension) * stddev, state)

    def _drawn(self, key: tf.Tensor) -> tf.Tensor:
        """Returns the row of σζ·z of the key of a past round, drawn again."""
        return _keys.standard_normal(key, self._dimension) * tf.constant(self._stddev)

    def weighted_past(self, weights: tf.Tensor, keys: tf.Tensor, start: tf.Tensor) -> tf.Tensor:
        """Returns `start` + Σ_i weights[i]·(row of σζ·z of keys[i]), with one row in memory at a time."""

        def add(index: tf.Tensor, total: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            return index + 1, total + weights[index] * self._drawn(keys[index])

        count = tf.shape(weights)[0]
        # One draw uses all cores; two at once would only take twice the memory.
        return tf.while_loop(lambda index, _: index < count, add, [tf.constant(0), start], parallel_iterations=1)[1]
