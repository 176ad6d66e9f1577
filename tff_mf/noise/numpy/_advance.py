"""Computes a step, one part of all rows after another, so that parts stay in the cache."""

from collections.abc import Callable, Sequence
from typing import NamedTuple, Self

import numpy as np

from tff_mf.base.errors import InputValueError
from tff_mf.mechanisms.recursion import DRAWN, NEW, PAST, Numbers, Step
from tff_mf.noise._dict_stream import REMEDY

# Entries of all rows that are copied at once for a matrix product.
_PRODUCT = 2**20

# Below, all integers are exact in float64.
_EXACT = 2.0**53

_THE_NEW_ROW: Numbers = ((NEW, 1.0),)

# Writes the normals of a round from a coordinate on, which is a multiple of the part.
Draw = Callable[[int, int, np.ndarray], None]


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


class Advance:
    """One round for all coordinates, part by part.

    Args:
        step: What the round computes.
        rows: The rows of memory, which are not changed.
        dimension: Number of coordinates.
        draw: Gets a round, a coordinate and an array, into which it writes s·z of that round from there on.
        scale: s / C_tt of this round, in the type of the arithmetic.
        earlier_scale: s, for rounds that are drawn again.
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
        earlier_scale: np.floating,
        stored: str | None,
    ) -> None:
        self._step, self._rows, self._draw = step, rows, draw
        self._scale, self._earlier_scale = scale, earlier_scale
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

    def run(self, done: int, part: int) -> None:
        """Fills `noise` and the new ones of `rows` for the round after `done` rounds."""
        dimension, sums = len(self.noise), 0 if self._step.product is None else len(self._step.product[0])
        size = min(part, dimension)
        drawn, past, new, scratch = (np.empty(size, self._number) for _ in range(4))
        whole = _Buffers(drawn, past, new, scratch, np.empty((sums, size), self._number))
        for begin in range(0, dimension, part):
            self._part(done, begin, whole.first(min(part, dimension - begin)))

    def _part(self, done: int, begin: int, buffers: _Buffers) -> None:
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
        for earlier, weight in self._step.again:
            self._draw(earlier, begin, drawn)
            np.multiply(drawn, self._number.type(-weight) * self._earlier_scale, out=drawn)
            np.add(past, drawn, out=past)
        self._draw(done, begin, drawn)
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
            np.multiply(drawn, self._earlier_scale, out=drawn)
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
    (number, weight), *others = terms
    total = source(number)
    if weight != 1 or not others:
        total = np.multiply(total, weight, out=out)
    for number, weight in others:
        term = source(number)
        total = np.add(total, term if weight == 1 else np.multiply(term, weight, out=scratch), out=out)
