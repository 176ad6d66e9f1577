"""`NoiseStream` in NumPy: the state machine of `DictStream` around rounds that are computed part by part."""

from typing import Any

import numpy as np

from tff_mf.mechanisms import Mechanism
from tff_mf.mechanisms.recursion import Step
from tff_mf.noise._dict_stream import DictStream
from tff_mf.noise._generators import generator_of
from tff_mf.noise.numpy._advance import Advance
from tff_mf.problem.grids import Grid


class NoiseStream(DictStream):
    """Streams the rows of σζ·C⁻¹z in NumPy, one per round; `DictStream` has states, `KeyedStream` the rest.

    Formal guarantee: as for `KeyedStream`. Rows are float32; with a grid, int64. They equal the rows of
    `tff_mf.noise.tensorflow` for equal keys, bit for bit with a grid and the generator "tensorflow".

    Args:
        generator: "tensorflow", the default with a grid; "philox", the default without; or "aes": AES in counter mode,
            a cryptographic generator, which needs the package `cryptography`. See docs/jax-and-pytorch.md.
    """

    _arrays = np.ndarray, "NumPy arrays"

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

    def _computed(
        self, step: Step, rows: list[np.ndarray], keys: np.ndarray, done: int, stddev: Any
    ) -> tuple[np.ndarray, list[np.ndarray]]:
        advance = Advance(
            step,
            rows,
            dimension=self._dimension,
            draw=lambda index, begin, out: self._generator.write(keys[index], begin, out),
            scale=self._scale(step),
            earlier_scale=stddev,
            stored=None if self._grid is None else self._recursion.stored,
        )
        advance.run(done, self._generator.part)
        return advance.noise, advance.rows

    def _zeros(self, kind: str) -> np.ndarray:
        return np.zeros(self._dimension, kind)


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
