"""`NoiseStream` in NumPy: the state machine of `KeyedStream` around rounds that are computed part by part."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from tff_mf.base.errors import InputValueError
from tff_mf.grids import Grid
from tff_mf.mechanisms import Mechanism
from tff_mf.mechanisms.recursion import Step
from tff_mf.noise._keyed import KEY_WORDS, OTHER_NOISE, KeyedStream, float32_at_least
from tff_mf.noise.numpy._advance import Advance
from tff_mf.noise.numpy._generators import generator_of, insecure_key, system_key
from tff_mf.noise.numpy._states import REMEDY, NoiseState, check_arrays, expect, new_state


class NoiseStream(KeyedStream):
    """Streams the rows of σζ·C⁻¹z in NumPy, one per round; `KeyedStream` has the other arguments and methods.

    Formal guarantee: as for `KeyedStream`. Rows are float32; with a grid, int64. They equal the rows of
    `tff_mf.noise.tensorflow` for equal keys, bit for bit with a grid and the generator "tensorflow".

    A state is a dictionary of arrays. Rows of memory that a round leaves as they are belong to the state before it and
    to the state after it: do not write into them.

    Args:
        generator: "tensorflow", the default with a grid; "philox", the default without; or "aes": AES in counter mode,
            a cryptographic generator, which needs the package `cryptography`. See docs/streams.md.
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
        self._generator = generator_of(generator, on_grid=grid is not None)
        super().__init__(
            mechanism,
            dimension=dimension,
            stddev=stddev,
            grid=grid,
            insecure_seed=insecure_seed,
            engine=f"tff_mf.noise.numpy {self._generator.name}",
            fast=True,
        )

    def init(self) -> NoiseState:
        types = self._types(0)
        # One for all rows: they are never written into.
        zeros = {each: np.zeros(self._dimension, each) for each in set(types)}
        return new_state(self._fingerprint, [zeros[each] for each in types])

    def check(self, state: Mapping[str, np.ndarray]) -> int:
        """Returns the number of rounds that a state has drawn, if this stream continues it.

        Raises:
            InputTypeError: If the state is no dict of NumPy arrays.
            InputValueError: For a state of other noise, or a damaged one.
        """
        check_arrays(state)
        expect(state, "fingerprint", np.int64, (4,))
        if state["fingerprint"].astype("<i8").tobytes() != self._fingerprint:
            raise InputValueError(OTHER_NOISE)
        expect(state, "round", np.int64, ())
        done = int(state["round"])
        if done < 0:
            raise InputValueError(f"state is damaged: round={done} must be at least 0; {REMEDY}.")
        rows = {f"row_{index}": kind for index, kind in enumerate(self._types(done))}
        expect(state, "keys", np.int64, (done, KEY_WORDS))
        for name, kind in rows.items():
            expect(state, name, np.dtype(kind), (self._dimension,))
        more = sorted(set(state) - {"fingerprint", "round", "keys", *rows})
        if more:
            raise InputValueError(f"state is damaged: {', '.join(more)} must not be there; {REMEDY}.")
        return done

    def _admitted(self, state: Any, ends: list[tuple[int, str]]) -> tuple[NoiseState, int, np.floating]:
        done = self.check(state)
        for end, message in ends:
            if done >= end:
                raise InputValueError(message)
        return state, done, self._stddev

    def _advanced(self, state: NoiseState, done: int, key: np.ndarray, stddev: Any) -> tuple[np.ndarray, NoiseState]:
        keys = np.vstack([state["keys"], key])
        step = self._recursion.step(done)
        advance = Advance(
            step,
            [state[f"row_{index}"] for index in range(self._recursion.rows)],
            dimension=self._dimension,
            draw=lambda index, begin, out: self._generator.write(keys[index], begin, out),
            scale=self._scale(step),
            earlier_scale=stddev,
            stored=None if self._grid is None else self._recursion.stored,
        )
        advance.run(done, self._generator.part)
        return advance.noise, new_state(self._fingerprint, advance.rows, keys=keys)

    def _replayed(self, keys: np.ndarray, ends: list[tuple[int, str]]) -> NoiseState:
        del ends
        state = self.init()
        for done, key in enumerate(keys):
            _, state = self._advanced(state, done, key, self._stddev)
        return state

    def _scale(self, step: Step) -> np.floating:
        scale = float(self._stddev) * step.scale
        return np.float64(scale) if self._grid is not None else float32_at_least("stddev", scale)

    def _as_keys(self, keys: Any) -> np.ndarray:
        return np.asarray(keys)

    def _system_key(self, done: int) -> np.ndarray:
        del done
        return system_key()

    def _insecure_key(self, seed: int, done: int) -> np.ndarray:
        return insecure_key(seed, done)


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
