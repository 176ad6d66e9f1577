"""`NoiseStream`: keys, rounds, the last round, and states of other noise, which are refused."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from tff_mf import grids
from tff_mf.base.errors import InputValueError
from tff_mf.grids import Grid
from tff_mf.mechanisms import Mechanism
from tff_mf.mechanisms.recursion import Step
from tff_mf.noise._keyed import KeyedStream, checked_keys, float32_at_least
from tff_mf.noise.numpy._advance import Advance
from tff_mf.noise.numpy._generators import generator_of, insecure_key, system_key
from tff_mf.noise.numpy._states import NoiseState, check_state, new_state


class NoiseStream(KeyedStream):
    """Streams the rows of σζ·C⁻¹z, one per round, in NumPy.

    Formal guarantee: as for `noise.tensorflow.NoiseStream`. Row t is σζ(C⁻¹z)_t for the mechanism's C
    with float32 parameters, up to the rounding of float32, where z has independent standard Gaussian rows, and row i is
    drawn from a key of 128 bits that the operating system gives when round i runs. Two steps from one state draw two
    keys: a round that runs again, after a failure or a resume, gets fresh noise, independent of the first attempt, on
    the same past. A state of another mechanism, `stddev`, generator or setting (`bound_to`) is refused, and so is a
    round after the last one. With `insecure_seed` only the refusals hold.

    With a grid, rows are whole numbers in units of the grid: n_t = ⌊s_t·z_t − L_t + ½⌋, the integer recursion of
    `tff_mf.grids` with its normals, and `tff_mf.guarantee` with the same grid holds for the numbers that are released.
    For equal keys they equal the rows of `tff_mf.noise.tensorflow`, bit for bit.

    Args:
        mechanism: The mechanism; streamed with the parameters of `mechanism.cast_to_float32()`.
        dimension: Number of coordinates of a row.
        stddev: Standard deviation of each coordinate of the independent noise: σ times the clip norm; with a grid, σ.
        grid: The grid, in units of which rows are, or `None` for floats.
        insecure_seed: Makes the noise repeatable. TEST ONLY: there is no privacy with it.
        generator: "philox", the default, or "aes": AES in counter mode, a cryptographic generator, which needs the
            package `cryptography`. See docs/streams.md.

    Raises:
        InputTypeError: If an argument is of the wrong type; if the exact class of the mechanism is not registered, or
            its kind has neither a recursion nor an end.
        InputValueError: If an argument is out of range, the matrices of a kind from outside are not consistent, or the
            grid does not fit the noise.
        ImportError: If the generator needs a package that is not installed.
    """

    def __init__(
        self,
        mechanism: Mechanism,
        *,
        dimension: int,
        stddev: float,
        grid: Grid | None = None,
        insecure_seed: int | None = None,
        generator: str | None = None,
    ) -> None:
        self._generator = generator_of(generator, on_grid=grids.check(grid) is not None)
        super().__init__(
            mechanism,
            dimension=dimension,
            stddev=stddev,
            grid=grid,
            insecure_seed=insecure_seed,
            engine=f"tff_mf.noise.numpy {self._generator.name}",
            fast=True,
        )

    def rows_in_use(self, rounds: int) -> int:
        """Returns how many rows of memory are in use after `rounds` rounds: not secret."""
        return int(self._recursion.rows_in_use(rounds))

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
            raise InputValueError(self._past_the_end())
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
        keys = checked_keys(keys)
        self._check_replayed(len(keys))
        state = self.init()
        for done, key in enumerate(keys):
            _, state = self._advanced(state, done, key)
        return state

    def _types(self, done: int) -> list[str]:
        """Returns the type of each row of memory after `done` rounds."""
        return ["float32"] * self.row_count if self._grid is None else self._recursion.types(done)

    def _advanced(self, state: Mapping[str, np.ndarray], done: int, key: np.ndarray) -> tuple[np.ndarray, NoiseState]:
        keys = np.vstack([state["keys"], key])
        step = self._recursion.step(done)
        advance = Advance(
            step,
            [state[f"row_{index}"] for index in range(self.row_count)],
            dimension=self._dimension,
            draw=lambda index, begin, out: self._generator.write(keys[index], begin, out),
            scale=self._scale(step),
            earlier_scale=self._stddev,
            stored=None if self._grid is None else self._recursion.stored,
        )
        advance.run(done, self._generator.part)
        return advance.noise, new_state(self._fingerprint, advance.rows, keys=keys)

    def _scale(self, step: Step) -> np.floating:
        scale = float(self._stddev) * step.scale
        return np.float64(scale) if self._grid is not None else float32_at_least("stddev", scale)

    def _key(self, done: int) -> np.ndarray:
        if self._repeated is not None:
            if done >= len(self._repeated):
                raise InputValueError(f"keys of {len(self._repeated)} rounds were given, and all of them have run.")
            return self._repeated[done]
        if self._insecure_seed is None:
            return system_key()
        return insecure_key(self._insecure_seed, done)


def build_stream(mechanism: Mechanism, **settings: Any) -> NoiseStream:
    """Returns the noise stream of a mechanism in NumPy: see `NoiseStream` for arguments and guarantee.

    Example:
        >>> from tff_mf import BLT, Grid
        >>> stream = build_stream(BLT.production("b400"), dimension=3, stddev=2.0)
        >>> noise, state = stream.next(stream.init())
        >>> noise.dtype, noise.shape, int(state["round"]), sorted(state)[:3]
        (dtype('float32'), (3,), 1, ['fingerprint', 'keys', 'round'])
        >>> stream = build_stream(BLT.production("b400"), dimension=3, stddev=2.0, grid=Grid(bits=16, max_clients=100))
        >>> stream.next(stream.init())[0].dtype
        dtype('int64')
    """
    return NoiseStream(mechanism, **settings)
