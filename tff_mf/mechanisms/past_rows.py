"""Recursions over past rows of noise: of a banded C, by blocks of rounds, and on a grid of a C of any form."""

import functools
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from tff_mf.base import in_order
from tff_mf.mechanisms.grid_recursion import MOST_ROUNDS, SLACK, GridRecursion, allowed, check_rows
from tff_mf.mechanisms.recursion import NEW, Case, Entry, Product, Recursion, Rule, first_line

if TYPE_CHECKING:
    from tff_mf.mechanisms._mechanism import Mechanism

# Rows of memory per round of a block. At the start of a block its sums take twice their final memory: longer blocks
# would cost more memory and save little time (benchmarks/noise.py).
_ROWS_A_ROUND = 11
# Of a coefficient: a stream ends before sums need more than 52 bits with so few.
_MOST_BITS, _FEWEST_BITS = 48, 10
_INT32_LIMIT = 2**31


def lengths(rows: int) -> tuple[int, int]:
    """Returns the number of rounds in a run, and in a block, which is a whole number of runs.

    At the start of a block, one matrix product computes what the rows so far contribute to each of its rounds. They are
    then read once per block instead of once per round. A run, a part of a block, does the same with the earlier rows of
    the block. A round itself reads only the rows of its own run.

    Args:
        rows: Number of past rows that a round depends on.

    Example:
        >>> lengths(341)
        (6, 30)
    """
    run = max(1, round((rows / _ROWS_A_ROUND) ** 0.5))
    return run, run * max(1, round(rows / _ROWS_A_ROUND / run))


def past_rows(
    scales: np.ndarray, weights: np.ndarray, *, stored: str | None = None, in_place: bool = True
) -> Recursion:
    """Returns the recursion L_t = Σ_{0<i<b̂} K_{t,t−i} n_{t−i}.

    The memory is the sums for the remaining rounds of the block, and then past rows, the oldest first. A round takes
    the first sum and appends its own row. In place, the sums take the place of rows that no later block needs, so that
    there are b̂ − 1 rows of memory; otherwise they have rows of their own, so that a row never changes its type.

    Args:
        scales: 1 / C_tt, `[rounds]`, or `[1]` if all rounds are alike.
        weights: K_{t,t−i} for i = 1, 2, …, `[rounds, bands − 1]`, or `[1, bands − 1]`.
        stored: On a grid, the type of past rows.
        in_place: Whether sums take the place of rows.
    """
    alike, reach = len(weights) == 1, weights.shape[1]
    run, block = lengths(reach)
    # A column of zeros for what is beyond the bands, and lines of zeros for what is beyond the last round.
    table = np.hstack([weights, np.zeros((len(weights), 1)), scales[:, np.newaxis]])
    scale = float(scales[0]) if alike else Entry(reach + 1)
    tables = () if alike else (np.pad(table, [(0, block), (0, 0)]),)
    line = None if alike else first_line
    if reach == 0:
        return Recursion(rows=0, cases=(Case(scale=scale),), tables=tables, line=line)

    def entry(age: int) -> float | Entry:
        return float(weights[0, age - 1]) if alike else Entry(age - 1)

    def entries(count: int, ages: Sequence[int]) -> np.ndarray | Rule:
        """Returns K_{t+i, t−age} for i below `count` and each age, `[count, ages]`."""
        columns = np.minimum(np.add.outer(np.arange(count), np.asarray(ages)) - 1, reach)
        if alike:
            return table[0][columns]
        return lambda done, tables, operations: operations.take(operations.lines(tables[0], done, count), columns)

    rows = reach if in_place else block + reach
    shifted = [*range(1, rows), ((NEW, 1.0),)]
    if not in_place:
        # The place of the sum that was used is free until the next block begins.
        shifted[block - 1] = 0
    product = Product(sums=block, rows=range(rows - reach, rows), weights=entries(block, range(reach, 0, -1)))
    after = [((rows + index, 1.0),) for index in range(1, block)]
    cases = [Case(scale=scale, past=((rows, 1.0),), after=(*after, *shifted[block - 1 :]), product=product)]
    for place in range(run, block, run):
        product = Product(sums=run, rows=range(rows - place, rows), weights=entries(run, range(place, 0, -1)))
        after = [((index, 1.0), (rows + index, 1.0)) for index in range(1, run)]
        past = ((0, 1.0), (rows, 1.0))
        cases.append(Case(scale=scale, past=past, after=(*after, *shifted[run - 1 :]), product=product))
    for done in range(1, run):
        past = ((0, 1.0), *((rows - age, entry(age)) for age in range(done, 0, -1)))
        cases.append(Case(scale=scale, past=past, after=tuple(shifted)))
    order = [place // run if place % run == 0 else block // run - 1 + place % run for place in range(block)]
    return Recursion(
        rows=rows,
        cases=tuple(cases),
        case=lambda done, tables, operations: operations.pick(order, done % block),
        in_use=lambda done, tables, operations: operations.minimum(done, reach),
        stored=stored or "float64",
        sums=(lambda done: -done % block) if in_place else lambda done: block,
        exact=stored is not None,
        tables=tables,
        line=line,
    )


def of_diagonals(diagonals: np.ndarray) -> np.ndarray:
    """Returns C by rows, from the main diagonal to the left, from its diagonals, `[rounds, bands]`."""
    bands, rounds = diagonals.shape
    table = np.zeros((rounds, bands))
    for offset, diagonal in enumerate(diagonals):
        table[offset:, offset] = diagonal[: rounds - offset]
    return table


class OfRows(GridRecursion["Mechanism"]):
    """L_t = Σ K̃_ti n_i, where K̃ is K rounded to multiples of 2^-k so that no sum of products reaches 2^52.

    All products and partial sums are then exact in float64, in any order: e = 0. What the rounding of K changes is a
    change of C, and so of the sensitivity: `column_change`. It is for any C with few diagonals, or few rounds.

    Args:
        entries: C by rows, from the main diagonal to the left, float64 `[rounds, bands]`; one line if C is Toeplitz.
        banded: Whether C has few diagonals: otherwise it is for small models.
    """

    def __init__(
        self, mechanism: "Mechanism", entries: np.ndarray, *, deviation: float, largest_normal: float, banded: bool
    ) -> None:
        super().__init__(mechanism, deviation=deviation, largest_normal=largest_normal)
        self._entries, self._banded = entries, banded
        diagonal = entries[:, 0]
        self.smallest_diagonal, self.largest_diagonal = float(diagonal.min()), float(diagonal.max())
        self.relative_scales = (1 / diagonal) * (1 + 2.0**-50)
        # So that no sum of products exceeds 2^52. C̃ is streamed, and is bounded: where C is nearly singular, C̃⁻¹ can be
        # larger than C⁻¹ by any factor.
        bits, most = math.inf, _MOST_BITS
        while most < bits:
            bits = self.coefficient_bits = most
            self.coefficients = _rounded(self._entries, bits)
            with np.errstate(over="ignore"):
                self._norms = _streamed_norms(self._entries.tobytes(), self._entries.shape, bits) * self.unit
                needed = self._norms * _sums(self.coefficients)
                self.rounds = allowed(self.mechanism.kind, needed * 2.0**_FEWEST_BITS)
            most = _bits_within(float(needed[self.rounds - 1]))
        self.column_change = self._change()

    @property
    def bands(self) -> int:
        """Number of diagonals of C, including the main one."""
        return self._entries.shape[1]

    @property
    def stored(self) -> str:
        """Type in which rows are stored."""
        return "int32" if self.largest < _INT32_LIMIT else "int64"

    @functools.cached_property
    def recursion(self) -> Recursion:
        return past_rows(self.relative_scales, self.coefficients, stored=self.stored, in_place=False)

    @functools.cached_property
    def in_place(self) -> Recursion:
        return past_rows(self.relative_scales, self.coefficients, stored=self.stored)

    def largest_within(self, rounds: int) -> float:
        return float(self._norms[rounds - 1])

    def error(self, rounds: int) -> float:
        return 0.0

    def check(self, dimension: int) -> None:
        if not self._banded:
            check_rows(self.mechanism.kind, bands=self.bands, dimension=dimension)

    def _change(self) -> float:
        # Of the quotient and of this difference too.
        below = self._entries[:, 1:]
        change = np.abs(self._entries[:, :1] * self.coefficients - below) + 2.0**-50 * np.abs(below)
        if len(change) == 1:
            return float(np.linalg.norm(change)) * SLACK
        squares = np.zeros(len(change))
        for offset in range(1, self.bands):
            squares[: len(change) - offset] += change[offset:, offset - 1] ** 2
        return float(np.sqrt(squares.max(initial=0.0))) * SLACK


def _sums(coefficients: np.ndarray) -> float:
    """Returns a bound on the sum of absolute values of a row of K, with what its terms are added to."""
    if coefficients.shape[1] == 0:
        return SLACK
    return (float(in_order.sums(np.abs(coefficients)).max()) + 1) * SLACK


def _bits_within(needed: float) -> int:
    """Returns the largest k with needed·2^k ≤ 2^52."""
    fraction, exponent = math.frexp(needed)
    return 52 - exponent + (fraction == 0.5)


def _rounded(entries: np.ndarray, bits: int) -> np.ndarray:
    """Returns K̃: C below its diagonal, each row divided by its diagonal entry, in multiples of 2^-bits."""
    return np.ldexp(np.rint(np.ldexp(entries[:, 1:] / entries[:, :1], bits)), -bits)


# A calibration asks for many deviations, but few numbers of bits.
@functools.lru_cache(maxsize=8)
def _streamed_norms(content: bytes, shape: tuple[int, int], bits: int) -> np.ndarray:
    """Returns the largest sum of absolute values of a row of C̃⁻¹ so far, for each number of rounds."""
    entries = np.frombuffer(content).reshape(shape)
    diagonal, coefficients = entries[:, 0], _rounded(entries, bits)
    if len(entries) == 1:
        with np.errstate(over="ignore", invalid="ignore"):
            column = in_order.reciprocal((1.0, *coefficients[0].tolist()), MOST_ROUNDS)
            return np.add.accumulate(np.abs(column)) / diagonal[0]
    rounds = len(diagonal)
    matrix = np.eye(rounds)
    for offset in range(1, entries.shape[1]):
        later = np.arange(offset, rounds)
        matrix[later, later - offset] = coefficients[later, offset - 1]
    inverse = in_order.solve(matrix, np.diag(1 / diagonal))
    with np.errstate(over="ignore"):
        return np.maximum.accumulate(in_order.sums(np.abs(inverse)))
