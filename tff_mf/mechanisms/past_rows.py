"""The recursion over past rows of noise, by blocks of rounds: of a banded C, and on a grid of a C of any form."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from tff_mf.mechanisms.recursion import NEW, Case, Entry, Product, Recursion, Rule

# Rows of memory per round of a block. At the start of a block its sums take twice their final memory: longer blocks
# would cost more memory and save little time (benchmarks/noise.py).
_ROWS_A_ROUND = 11


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
    line = None if alike else _line
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


def _line(done: Any, tables: Sequence[Any], operations: Any) -> Any:
    return operations.lines(tables[0], done, 1)[0]
