"""Recursions of noise as data, which any engine runs, in floats or on a grid of integers.

Round t computes n_t = scale·s·z_t − L_t from the round's draw and from rows of memory, of which L_t is a weighted sum.
After it, each row of memory stays, moves, or is replaced by a weighted sum. Rounds belong to a few cases of fixed
structure. What differs within a case is a line of weights for each round.
"""

import dataclasses
import functools
import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Self

import numpy as np

from tff_mf.base import matrices

# Sources of a sum beside the rows of memory, which are 0, 1, …, and the sums of the product after them: the new row
# n_t, L_t, and s·z_t. On a grid there is no s·z_t to remember: n_t is rounded.
NEW, PAST, DRAWN = -1, -2, -3
_CASES_OF_A_DIGEST = 64
_MOST_LINES = 2**14
# Rows of memory per round of a block. At the start of a block its sums take twice their final memory: longer blocks
# would cost more memory and save little time (benchmarks/noise.py).
_ROWS_A_ROUND = 11


@dataclasses.dataclass(frozen=True)
class Entry:
    """A weight that differs from round to round: a place in the round's line of weights."""

    place: int


Weight = float | Entry
# Pairs of a source and its weight, added up in this order.
Terms = tuple[tuple[int, Weight], ...]
# A whole number of rounds: a Python number, or a tensor of the engine.
Round = Any


class Operations:
    """What rules of a recursion may ask for beside arithmetic: here of Python numbers and NumPy arrays.

    Each engine has one such class for its tensors. All operations are those of IEEE 754 or of whole numbers, so that
    engines agree bit for bit.
    """

    where = staticmethod(np.where)
    sqrt = staticmethod(np.sqrt)
    minimum = staticmethod(np.minimum)

    @staticmethod
    def carry(done: int) -> int:
        """Returns the height of the largest block of 2^height rounds that the round after `done` rounds completes."""
        return (done ^ (done + 1)).bit_length() - 1

    @staticmethod
    def pick(values: Sequence[int], index: int) -> int:
        """Returns values[index]."""
        return values[index]

    @staticmethod
    def lines(table: np.ndarray, first: int, count: int) -> np.ndarray:
        """Returns `count` lines of a table, `[count, columns]`."""
        return table[first : first + count]

    @staticmethod
    def take(lines: np.ndarray, columns: np.ndarray) -> np.ndarray:
        """Returns lines[i, columns[i, j]] for each i and j."""
        return np.take_along_axis(lines, columns, axis=1)


Tables = Sequence[Any]
Rule = Callable[[Round, Tables, Any], Any]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Product:
    """Several weighted sums of the same rows of memory, as one matrix product.

    Attributes:
        sums: Number of sums. As sources they follow the rows of memory.
        rows: The rows of memory.
        weights: `[sums, rows]`, or a rule that returns it for a round.
    """

    sums: int
    rows: Sequence[int]
    weights: np.ndarray | Rule


@dataclasses.dataclass(frozen=True, kw_only=True)
class Case:
    """The structure of some rounds.

    Attributes:
        scale: 1 / C_tt; on a grid, rounded up.
        past: Terms of L_t: of rows of memory and of sums of the product.
        after: For each row of memory after the round: the number of the row that it is before it, or its terms.
        product: Sums that `past` and `after` may use.
    """

    scale: Weight = 1.0
    past: Terms = ()
    after: tuple[int | Terms, ...] = ()
    product: Product | None = None

    def weights(self) -> list[Weight]:
        """Returns the scale and all weights of sums."""
        sums = (terms for terms in (self.past, *self.after) if not isinstance(terms, int))
        return [self.scale, *(weight for terms in sums for _, weight in terms)]


# Terms of a round: pairs of a source and a number.
Numbers = tuple[tuple[int, float], ...]


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Step:
    """One round: a `Case` with numbers for its weights."""

    scale: float
    past: Numbers
    after: tuple[int | Numbers, ...]
    product: tuple[np.ndarray, Sequence[int]] | None


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Recursion:
    """The rounds of a mechanism's noise.

    Rules get the number of rounds so far, the tables and the operations, of numbers or of an engine's tensors, and must
    not branch on them.

    Attributes:
        rows: Number of rows of memory, which are zero before round 0.
        cases: The structures of rounds.
        case: Rule for the place of a round's case in `cases`.
        tables: float64 tables for the other rules. An engine keeps them in the state, not in its graph.
        line: Rule for a round's line of weights, which entries of the case refer to.
        in_use: Rule for the number of rows of memory in use.
        rounds: Last round; `None` for any number.
        stored: On a grid, the type of rows that are copies of n_t.
        sums: On a grid, how many leading rows hold sums, for a number of rounds; the others copy n_t. `None` if all
            rows are in float64.
        exact: Whether sums on a grid are exact in any order.
    """

    rows: int
    cases: tuple[Case, ...]
    case: Rule | None = None
    tables: tuple[np.ndarray, ...] = ()
    line: Rule | None = None
    in_use: Rule | None = None
    rounds: int | None = None
    stored: str = "float64"
    sums: Callable[[int], int] | None = None
    exact: bool = False

    @classmethod
    def linear(cls, *, past: Sequence[float], after: Sequence[Sequence[tuple[int, float]]], scale: float = 1.0) -> Self:
        """Returns the recursion whose rounds are all alike.

        Args:
            past: Weight of each row of memory in L_t.
            after: Terms of each row of memory after a round.
            scale: 1 / C_tt.

        Example:
            >>> halves = Recursion.linear(past=[0.5], after=[[(0, 0.5), (NEW, 1.0)]])
            >>> halves.rows, halves.step(0).past
            (1, ((0, 0.5),))
        """
        sums = tuple(tuple((source, float(weight)) for source, weight in terms) for terms in after)
        case = Case(scale=float(scale), past=tuple(enumerate(map(float, past))), after=sums)
        return cls(rows=len(after), cases=(case,))

    @property
    def draws_once(self) -> bool:
        """Whether it remembers nothing but n of earlier rounds, and no draw, so that a grid can run it."""
        sums = [terms for case in self.cases for terms in (case.past, *case.after) if not isinstance(terms, int)]
        return not any(source == DRAWN for terms in sums for source, _ in terms)

    def case_of(self, done: Round, operations: Any = Operations) -> Any:
        """Returns the place in `cases` of the round after `done` rounds."""
        return 0 if self.case is None else self.case(done, self.tables, operations)

    def smallest_scale(self, rounds: int | None) -> float:
        """Returns the smallest 1 / C_tt of the rounds; if a rule gives it, of the first 16,384 of them."""
        scales = [case.scale for case in self.cases if isinstance(case.scale, float)]
        places = [case.scale.place for case in self.cases if isinstance(case.scale, Entry)]
        if places and self.line is first_line and rounds is not None:
            scales.append(float(self.tables[0][:rounds, places].min()))
        elif places:
            assert self.line is not None
            for done in range(min(rounds or _MOST_LINES, _MOST_LINES)):
                scale = self.cases[int(self.case_of(done))].scale
                if isinstance(scale, Entry):
                    scales.append(float(self.line(done, self.tables, Operations)[scale.place]))
        return min(scales)

    def rows_in_use(self, done: Round, operations: Any = Operations) -> Any:
        """Returns how many rows of memory are in use after `done` rounds: not secret."""
        if self.in_use is None:
            return operations.minimum(done * self.rows, self.rows)
        return self.in_use(done, self.tables, operations)

    def types(self, done: int) -> list[str]:
        """Returns the type of each row of memory on a grid after `done` rounds."""
        sums = self.rows if self.sums is None else self.sums(done)
        return ["float64"] * sums + [self.stored] * (self.rows - sums)

    def step(self, done: int) -> Step:
        """Returns the round after `done` rounds, without terms of weight 0."""
        case = self.cases[int(self.case_of(done))]
        line = () if self.line is None else self.line(done, self.tables, Operations)

        def number(weight: Weight) -> float:
            return float(line[weight.place]) if isinstance(weight, Entry) else weight

        def terms(weighted_terms: Terms) -> Numbers:
            weighted = ((source, number(weight)) for source, weight in weighted_terms)
            return tuple((source, weight) for source, weight in weighted if weight)

        def row(entry: int | Terms) -> int | Numbers:
            if isinstance(entry, int):
                return entry
            sums = terms(entry)
            is_a_row = len(sums) == 1 and 0 <= sums[0][0] < self.rows and sums[0][1] == 1
            return sums[0][0] if is_a_row else sums

        product = None
        if case.product is not None:
            weights = case.product.weights
            matrix = weights if isinstance(weights, np.ndarray) else weights(done, self.tables, Operations)
            product = matrix, case.product.rows
        return Step(
            scale=number(case.scale),
            past=terms(case.past),
            after=tuple(map(row, case.after)),
            product=product,
        )

    @functools.cached_property
    def digest(self) -> str:
        """SHA-256 of structure and numbers of the noise, for fingerprints: another recursion cannot continue a state.

        It covers the rule for cases by the cases of the first 64 rounds.
        """
        weights = [weight for case in self.cases for weight in case.weights() if not isinstance(weight, Entry)]
        products = [case.product for case in self.cases if case.product is not None]
        arrays = (product.weights for product in products if isinstance(product.weights, np.ndarray))
        structure = repr(
            (
                *(self.rows, self.rounds, self.stored, self.exact),
                [(case.scale, case.past, case.after) for case in self.cases],
                [(product.sums, tuple(product.rows)) for product in products],
                [int(self.case_of(done)) for done in range(min(_CASES_OF_A_DIGEST, self.rounds or _CASES_OF_A_DIGEST))],
            )
        )
        return matrices.digest([np.frombuffer(structure.encode(), np.uint8), np.array(weights), *arrays, *self.tables])

    @property
    def alike(self) -> bool:
        """Whether all rounds are the same."""
        return len(self.cases) == 1 and self.line is None and self.cases[0].product is None

    def run(
        self,
        rounds: int,
        draw: Callable[[int], Any],
        *,
        steps: Sequence[Step] | None = None,
        draws_n: bool = False,
        memory: Sequence[Any] | None = None,
    ) -> Iterator[tuple[float, Any, Any, list[Any]]]:
        """Yields 1 / C_tt, n_t, L_t and the rows of memory after each round, one operation after another in float64.

        Args:
            rounds: Number of rounds.
            draw: Gives z_t of a round: a number, or a vector of them.
            steps: The rounds, if they are computed already, `rounds` of them; one if all are alike.
            draws_n: Whether `draw` gives n_t, so that L_t is computed for these n.
            memory: The rows of memory before the first round; zero if `None`.
        """
        zero = 0.0 * draw(0)
        memory = [zero] * self.rows if memory is None else [*memory]
        all_steps = map(self.step, range(rounds)) if steps is None else steps
        for done, step in enumerate(itertools.repeat(next(iter(all_steps)), rounds) if self.alike else all_steps):
            products = () if step.product is None else step.product[0] @ np.array(memory)[list(step.product[1])]
            drawn = draw(done)
            past = _total(step.past, [*memory, *products], zero)
            new = drawn if draws_n else step.scale * drawn - past
            # From the end: the new row, L_t and the draw.
            sources = [*memory, *products, drawn, past, new]
            memory = [memory[entry] if isinstance(entry, int) else _total(entry, sources, zero) for entry in step.after]
            yield step.scale, new, past, memory

    def responses(self, rounds: int) -> np.ndarray:
        """Returns the matrix that the recursion is, float64 `[rounds, rounds]`: row t has the weights of z in n_t / s.

        Formal guarantee: it is C⁻¹ up to rounding if the recursion is the one of C.
        """
        return np.array([new for _, new, _, _ in self.run(rounds, unit_vectors(rounds))])


def first_line(done: Round, tables: Tables, operations: Any) -> Any:
    """Returns a round's line of the first table."""
    return operations.lines(tables[0], done, 1)[0]


def unit_vectors(rounds: int) -> Callable[[int], np.ndarray]:
    """Returns what gives the unit vector of a round, float64 `[rounds]`."""

    def of_round(done: int) -> np.ndarray:
        vector = np.zeros(rounds)
        vector[done] = 1.0
        return vector

    return of_round


def _total(terms: Numbers, sources: Sequence[Any], zero: Any) -> Any:
    total = zero
    for source, weight in terms:
        total = total + weight * sources[source]
    return total


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

    def weights_of(count: int, ages: Sequence[int]) -> np.ndarray | Rule:
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
    product = Product(sums=block, rows=range(rows - reach, rows), weights=weights_of(block, range(reach, 0, -1)))
    after = [((rows + index, 1.0),) for index in range(1, block)]
    cases = [Case(scale=scale, past=((rows, 1.0),), after=(*after, *shifted[block - 1 :]), product=product)]
    for place in range(run, block, run):
        product = Product(sums=run, rows=range(rows - place, rows), weights=weights_of(run, range(place, 0, -1)))
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


def of_rows(rows: np.ndarray) -> Recursion:
    """Returns the recursion of x_t = (z_t − Σ_{i≥1} rows[t, i]·x_{t−i}) / rows[t, 0]."""
    return past_rows(1 / rows[:, 0], rows[:, 1:] / rows[:, :1])


def rows_of(matrix: np.ndarray) -> np.ndarray:
    """Returns a lower-triangular C by rows, from the main diagonal to the left, `[rounds, rounds]`.

    Example:
        >>> rows_of(np.array([[1.0, 0.0], [0.5, 2.0]]))
        array([[1. , 0. ],
               [2. , 0.5]])
    """
    rows = np.zeros_like(matrix)
    for done, row in enumerate(matrix):
        rows[done, : done + 1] = row[done::-1]
    return rows


def of_diagonals(diagonals: np.ndarray) -> np.ndarray:
    """Returns C by rows, from the main diagonal to the left, from its diagonals, `[rounds, bands]`."""
    bands, rounds = diagonals.shape
    table = np.zeros((rounds, bands))
    for offset, diagonal in enumerate(diagonals):
        table[offset:, offset] = diagonal[: rounds - offset]
    return table
