"""`NoiseStream`: keys, rounds, the last round, and states of other noise, which are refused."""

import copy
import hashlib
from collections.abc import Mapping
from typing import Self

import numpy as np

from tff_mf import validation
from tff_mf.errors import InputValueError
from tff_mf.grids import Grid
from tff_mf.mechanisms import Mechanism
from tff_mf.registry import content_digest
from tff_mf.streams import _keys, arguments
from tff_mf.streams._advance import Advance
from tff_mf.streams._generators import generator_of
from tff_mf.streams._states import NoiseState, check_state, new_state
from tff_mf.streams._steps import Step, Steps


class NoiseStream:
    """Streams the rows of σζ·C⁻¹z, one per round, in NumPy.

    Formal guarantee: as for `tff_mf.noise.NoiseStream`, without TensorFlow. Row t is σζ(C⁻¹z)_t for the mechanism's C
    with float32 parameters, up to the rounding of float32, where z has independent standard Gaussian rows, and row i is
    drawn from a key of 128 bits that the operating system gives when round i runs. Two steps from one state draw two
    keys: a round that runs again, after a failure or a resume, gets fresh noise, independent of the first attempt, on
    the same past. A state of another mechanism, `stddev`, generator or setting (`bound_to`) is refused, and so is a
    round after the last one. With `insecure_seed` only the refusals hold.

    With a grid, rows are whole numbers in units of the grid: n_t = ⌊s_t·z_t − L_t + ½⌋, the integer recursion of
    `tff_mf.grids` with its normals, and `tff_mf.guarantee` with the same grid holds for the numbers that are released.
    For equal keys they equal the rows of `tff_mf.noise`, bit for bit.

    Build it with `build_stream`.

    Args:
        mechanism: The mechanism; streamed with the parameters of `mechanism.cast_to_float32()`.
        steps: Its rounds.
        dimension: Number of coordinates of a row.
        stddev: Standard deviation of each coordinate of the independent noise, in units of the grid if there is one.
        limit: Number of rounds, or `None`.
        grid: The grid, or `None`.
        insecure_seed: Makes the noise repeatable. TEST ONLY: there is no privacy with it.
        generator: "philox", "aes", or `None` for the default.
        setting: What the noise depends on beside the other arguments.

    Raises:
        InputTypeError: If an argument is of the wrong type.
        InputValueError: If an argument is out of range.
    """

    def __init__(
        self,
        mechanism: Mechanism,
        steps: Steps,
        *,
        dimension: int,
        stddev: np.floating,
        limit: int | None,
        grid: Grid | None,
        insecure_seed: int | None,
        generator: str | None,
        setting: tuple[object, ...] = (),
    ) -> None:
        self._mechanism, self._steps, self._grid = mechanism.cast_to_float32(), steps, grid
        self._dimension = validation.whole("dimension", dimension)
        self._stddev, self._limit = stddev, limit
        self._insecure_seed = arguments.seed(insecure_seed)
        self._generator = generator_of(generator, on_grid=grid is not None)
        self._repeated: np.ndarray | None = None
        drawn = repr(
            ("tff_mf.streams", type(steps).__name__, float(stddev), insecure_seed, self._generator.name, *setting)
        )
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
        """Returns the same stream limited to `rounds` rounds: it refuses the next one, and `replay` more keys.

        Noise and fingerprint are the same: a stream of more rounds can continue the state.

        Raises:
            InputTypeError: If `rounds` is not a whole number.
            InputValueError: If it is below 1, or more than the stream is defined for.
        """
        limited = copy.copy(self)
        limited._limit = self._mechanism.check(validation.whole("rounds", rounds))
        if self._limit is not None and rounds > self._limit:
            raise InputValueError(f"rounds={rounds} is more than the {self._limit} that this stream is defined for.")
        return limited

    def repeating(self, keys: np.ndarray) -> Self:
        """Returns the same stream, which takes the key of round t from `keys[t]`: for verification only.

        What has run once can be computed again with it, and compared. Nothing that it gives may be released: anyone who
        has the keys can subtract the noise.

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
    def stddev(self) -> np.floating:
        """Standard deviation of each coordinate of the independent noise, in units of the grid if there is one."""
        return self._stddev

    @property
    def insecure_seed(self) -> int | None:
        """The seed of repeatable noise, or `None`."""
        return self._insecure_seed

    @property
    def fingerprint(self) -> bytes:
        """Digest of everything that the noise depends on except its keys, and of the settings that it is bound to."""
        return self._fingerprint

    @property
    def max_rounds(self) -> int | None:
        """Number of rounds; `None` for any number."""
        return self._limit

    @property
    def row_count(self) -> int:
        """Number of rows of memory; they are zero before round 0."""
        return self._steps.row_count

    def rows_in_use(self, rounds: int) -> int:
        """Returns how many rows of memory are in use after `rounds` rounds: not secret."""
        return self._steps.rows_in_use(rounds)

    def init(self) -> NoiseState:
        """Returns the state before round 0."""
        types = self._types(0)
        # One for all rows: they are never written into.
        zeros = {each: np.zeros(self._dimension, each) for each in set(types)}
        return new_state(self._fingerprint, [zeros[each] for each in types])

    def next(self, state: Mapping[str, np.ndarray]) -> tuple[np.ndarray, NoiseState]:
        """Returns this round's noise, `[dimension]`, and the state of the next round.

        The noise is float32; with a grid, int64. The given state is not changed: rows of memory that a round leaves as
        they are belong to both states. Do not write into them.

        Raises:
            InputTypeError: If the state is no dict of NumPy arrays.
            InputValueError: Past the last round, for a state of other noise, or for a damaged one.
        """
        done = self.check(state)
        if self._limit is not None and done >= self._limit:
            raise InputValueError(arguments.past_the_end(self._mechanism, self._limit))
        return self._advanced(state, done, self._key(done))

    def check(self, state: Mapping[str, np.ndarray]) -> int:
        """Returns the number of rounds that a state has drawn, if this stream continues it.

        Raises:
            InputTypeError: If the state is no dict of NumPy arrays.
            InputValueError: For a state of other noise, or a damaged one.
        """
        return check_state(state, self._fingerprint, dimension=self._dimension, types=self._types)

    def replay(self, keys: np.ndarray) -> NoiseState:
        """Returns the state after the rounds that drew `keys`, int64 `[rounds, 2]`, by running them again.

        Formal guarantee: the state is the one after those rounds, bit for bit: with a grid on every machine, in floats
        on the same one. No key is drawn, and nothing is released a second time: the noise rows are dropped. Later
        rounds draw fresh keys.

        Raises:
            InputValueError: If the shape or type of `keys` is wrong, or it has more rounds than the stream.
        """
        keys = arguments.keys(keys)
        if len(keys):
            self._mechanism.check(len(keys))
        if self._limit is not None and len(keys) > self._limit:
            raise InputValueError(f"keys of {len(keys)} rounds are more than the {self._limit} of this stream.")
        state = self.init()
        for done, key in enumerate(keys):
            _, state = self._advanced(state, done, key)
        return state

    def _types(self, done: int) -> list[str]:
        """Returns the type of each row of memory after `done` rounds."""
        sums = self._steps.sums(done)
        if self._grid is None:
            return ["float32"] * self.row_count
        return ["float64"] * sums + [self._steps.stored] * (self.row_count - sums)

    def _advanced(self, state: Mapping[str, np.ndarray], done: int, key: np.ndarray) -> tuple[np.ndarray, NoiseState]:
        keys = np.vstack([state["keys"], key])
        step = self._steps.step(done)
        advance = Advance(
            step,
            [state[f"row_{index}"] for index in range(self.row_count)],
            dimension=self._dimension,
            draw=lambda index, begin, out: self._generator.write(keys[index], begin, out),
            scale=self._scale(step),
            earlier_scale=self._stddev,
            stored=None if self._grid is None else self._steps.stored,
        )
        advance.run(done, self._generator.part)
        return advance.noise, new_state(self._fingerprint, advance.rows, keys=keys)

    def _scale(self, step: Step) -> np.floating:
        scale = float(self._stddev) * step.scale
        return np.float64(scale) if self._grid is not None else arguments.float32_at_least("stddev", scale)

    def _key(self, done: int) -> np.ndarray:
        if self._repeated is not None:
            if done >= len(self._repeated):
                raise InputValueError(f"keys of {len(self._repeated)} rounds were given, and all of them have run.")
            return self._repeated[done]
        if self._insecure_seed is None:
            return _keys.system_key()
        return _keys.insecure_key(self._insecure_seed, done)
