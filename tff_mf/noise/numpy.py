"""Streams the correlated noise C⁻¹z in NumPy, for any framework: keys and limits as in `noise.tensorflow`.

Imports no TensorFlow. A round is computed part by part of all rows, so that parts stay in the cache.
"""

import functools
import os
import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Self

import numpy as np

from tff_mf.base import checkpoint_files
from tff_mf.base.errors import InputValueError
from tff_mf.mechanisms import Mechanism
from tff_mf.mechanisms.recursion import DRAWN, NEW, PAST, Numbers, Step
from tff_mf.noise._dict_stream import REMEDY, DictStream, check_arrays
from tff_mf.noise._generators import generator_of
from tff_mf.noise._keyed import KeyedStream as KeyedStream
from tff_mf.problem.grids import Grid

NoiseState = dict[str, np.ndarray]
"""State of a stream, as `DictStream` has it. Secret: with it, the noise of past rounds can be subtracted."""

# Entries of all rows that are copied at once for a matrix product.
_PRODUCT = 2**20

# Below, all integers are exact in float64.
_EXACT = 2.0**53

_THE_NEW_ROW: Numbers = ((NEW, 1.0),)

# Writes the normals of the round from a coordinate on, which is a multiple of the part.
Draw = Callable[[int, np.ndarray], None]


class NoiseStream(DictStream):
    """Streams the rows of σζ·C⁻¹z in NumPy, one per round; `DictStream` has states, `KeyedStream` the rest.

    Formal guarantee: as for `KeyedStream`. Rows are float32; with a grid, int64. They equal the rows of
    `tff_mf.noise.tensorflow` for equal keys, bit for bit with a grid and the generator "tensorflow".

    Args:
        generator: "tensorflow", the default with a grid; "philox", the default without; or "aes": AES in counter mode,
            a cryptographic generator, which needs the package `cryptography`. See docs/frameworks.md.
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
        self, step: Step, rows: list[np.ndarray], key: np.ndarray, stddev: Any
    ) -> tuple[np.ndarray, list[np.ndarray]]:
        advance = _Advance(
            step,
            rows,
            dimension=self._dimension,
            draw=functools.partial(self._generator.write, key),
            scale=self._scale(step),
            stddev=stddev,
            stored=None if self._grid is None else self._recursion.stored,
        )
        advance.run(self._generator.part)
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


class _Buffers(NamedTuple):
    """What is computed for a part: s·z, L_t, n_t, an array for products, and the sums of the step's product."""

    drawn: np.ndarray
    past: np.ndarray
    new: np.ndarray
    scratch: np.ndarray
    products: np.ndarray

    def first(self, size: int) -> Self:
        """Returns the first columns."""
        return type(self)(*(array[..., :size] for array in self))


class _Advance:
    """One round for all coordinates, part by part.

    Args:
        step: What the round computes.
        rows: The rows of memory, which are not changed.
        dimension: Number of coordinates.
        draw: Gets a coordinate and an array, into which it writes z of the round from there on.
        scale: s / C_tt of this round, in the type of the arithmetic.
        stddev: s, for rows that remember s·z.
        stored: On a grid, the type of copies of n_t. L_t and n_t are then computed in float64, one operation after
            another, and n_t is rounded to whole numbers: R(v) = ⌊v + ½⌋. `None` for floats.
    """

    def __init__(
        self,
        step: Step,
        rows: Sequence[np.ndarray],
        *,
        dimension: int,
        draw: Draw,
        scale: np.floating,
        stddev: np.floating,
        stored: str | None,
    ) -> None:
        self._step, self._rows, self._draw = step, rows, draw
        self._scale, self._stddev = scale, stddev
        self._on_grid = stored is not None
        self._number = scale.dtype
        self.noise = np.empty(dimension, np.int64 if self._on_grid else self._number)
        self.rows = [
            rows[entry]
            if isinstance(entry, int)
            else np.empty(dimension, stored if self._on_grid and entry == _THE_NEW_ROW else self._number)
            for entry in step.after
        ]
        self._new = [
            (row, entry) for row, entry in zip(self.rows, step.after, strict=True) if not isinstance(entry, int)
        ]

    def run(self, part: int) -> None:
        """Fills `noise` and the new ones of `rows`, part by part."""
        dimension, sums = len(self.noise), 0 if self._step.product is None else len(self._step.product[0])
        size = min(part, dimension)
        drawn, past, new, scratch = (np.empty(size, self._number) for _ in range(4))
        whole = _Buffers(drawn, past, new, scratch, np.empty((sums, size), self._number))
        for begin in range(0, dimension, part):
            self._part(begin, whole.first(min(part, dimension - begin)))

    def _part(self, begin: int, buffers: _Buffers) -> None:
        drawn, past, new, scratch, products = buffers
        end = begin + len(drawn)
        if not self._on_grid:
            new = self.noise[begin:end]
        if self._step.product is not None:
            self._multiply(*self._step.product, begin, end, products)
        special = {NEW: new, PAST: past, DRAWN: drawn}

        def source(number: int) -> np.ndarray:
            if number < 0:
                return special[number]
            return self._rows[number][begin:end] if number < len(self._rows) else products[number - len(self._rows)]

        if self._step.past:
            _sum(self._step.past, source, past, scratch)
        else:
            past[:] = 0.0
        self._draw(begin, drawn)
        np.multiply(drawn, self._scale, out=new)
        if self._on_grid:
            # ½ is subtracted from what depends on past n alone: one operation less in which z_t is rounded.
            np.subtract(past, 0.5, out=scratch)
            np.subtract(new, scratch, out=new)
            np.floor(new, out=new)
            # A row that is not finite would become the same integer everywhere: a release without noise.
            if not (new.min() > -_EXACT and new.max() < _EXACT):
                raise InputValueError(f"state is damaged: its rows give noise that is no integer; {REMEDY}.")
            np.copyto(self.noise[begin:end], new, casting="unsafe")
        else:
            np.subtract(new, past, out=new)
            np.multiply(drawn, self._stddev, out=drawn)
        for row, entry in self._new:
            if row.dtype == self._number:
                _sum(entry, source, row[begin:end], scratch)
            else:
                np.copyto(row[begin:end], new, casting="unsafe")

    def _multiply(self, weights: np.ndarray, rows: Sequence[int], begin: int, end: int, out: np.ndarray) -> None:
        weights = weights.astype(self._number)
        size = max(64, _PRODUCT // len(rows))
        stacked = np.empty((len(rows), min(size, end - begin)), self._number)
        for first in range(begin, end, size):
            last = min(first + size, end)
            columns = stacked[:, : last - first]
            for line, row in zip(columns, rows, strict=True):
                line[:] = self._rows[row][first:last]
            np.matmul(weights, columns, out=out[:, first - begin : last - begin])


def _sum(terms: Numbers, source: Callable[[int], np.ndarray], out: np.ndarray, scratch: np.ndarray) -> None:
    """Writes w_0·a_0 + w_1·a_1 + …, each product and each sum rounded once, in this order."""
    (number, weight), *later = terms
    total = source(number)
    if weight != 1 or not later:
        total = np.multiply(total, weight, out=out)
    for number, weight in later:
        term = source(number)
        total = np.add(total, term if weight == 1 else np.multiply(term, weight, out=scratch), out=out)


def save_state(state: Mapping[str, np.ndarray], path: str | os.PathLike[str]) -> None:
    """Writes a state as a safetensors file that only its owner can read, atomically and durably.

    Formal guarantee: after a crash the old file or the new one is there, never a part of one. The file is as secret as
    the state: with it, the noise of past rounds can be subtracted.

    Args:
        state: What `NoiseStream.next` returned.
        path: The file, which is replaced if it exists.

    Example:
        >>> import pathlib, tempfile
        >>> from tff_mf import BLT
        >>> from tff_mf.noise import numpy as streams
        >>> stream = streams.build_stream(BLT.production("b400"), dimension=3, stddev=2.0)
        >>> noise, state = stream.next(stream.init())
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     save_state(state, pathlib.Path(folder, "noise.safetensors"))
        ...     loaded = load_state(pathlib.Path(folder, "noise.safetensors"))
        >>> noise, state = stream.next(loaded)
        >>> int(state["round"])
        2
    """
    checkpoint_files.write(pathlib.Path(path), check_arrays(state, np.ndarray, "NumPy arrays"), {}, replaces=True)


def load_state(path: str | os.PathLike[str]) -> NoiseState:
    """Returns the state of a file of `save_state`; `NoiseStream.next` then refuses it if it is of other noise.

    Formal guarantee: what it returns is what was saved, bit for bit: a damaged file is refused. The digest is no
    signature: someone who can write the file can write another state.

    Args:
        path: The file.

    Raises:
        InputValueError: If it is not there, or is damaged.
    """
    return checkpoint_files.read(pathlib.Path(path))[0]
