"""Runs any recursion in TensorFlow: in float32, or in integers of a grid as float64 with the bits of NumPy."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tff_mf.mechanisms.recursion import DRAWN, NEW, PAST, Case, Entry, Product, Recursion, Terms, Weight
from tff_mf.noise.tensorflow._normals import by_parts, in_parts, standard_normal

Tensors = tuple[tf.Tensor, ...]
# Weights and rows of a sum.
WeightedRows = Sequence[tuple[tf.Tensor | float, tf.Tensor]]
# More terms than these are one matrix product, where the order of additions does not matter. In a branch of a decision,
# the graph optimizer adds up several terms in an order that depends on the rest of the graph: a replay would differ.
_FEW_TERMS, _FEW_TERMS_OF_A_BRANCH = 5, 2
# Entries of one row in a part. With fewer, the calls dominate the cost.
_LARGEST_PART = 2**17
# A slice that starts at a multiple of this many entries is a view; any other slice is a copy.
_ALIGNED = 64
# Entries of all rows in a part, which are copied for the product.
_PART = 2**23


class Operations:
    """The operations of rules, on tensors."""

    sqrt = staticmethod(tf.sqrt)
    minimum = staticmethod(tf.minimum)

    @staticmethod
    def where(condition: tf.Tensor, one: Any, other: Any) -> tf.Tensor:
        return tf.where(condition, tf.convert_to_tensor(one, tf.float64), tf.convert_to_tensor(other, tf.float64))

    @staticmethod
    def carry(done: tf.Tensor) -> tf.Tensor:
        return tf.cast(tf.raw_ops.PopulationCount(x=tf.bitwise.bitwise_xor(done, done + 1)), tf.int64) - 1

    @staticmethod
    def pick(values: Sequence[int], index: tf.Tensor) -> tf.Tensor:
        return tf.gather(tf.constant(values, tf.int64), index)

    @staticmethod
    def lines(table: tf.Tensor, first: tf.Tensor, count: int) -> tf.Tensor:
        return tf.slice(table, [first, 0], [count, table.shape[1]])

    @staticmethod
    def take(lines: tf.Tensor, columns: np.ndarray) -> tf.Tensor:
        return tf.gather(lines, columns, batch_dims=1)


class Runner:
    """One round of a recursion at a time.

    Which case a round belongs to is decided in the graph. What all cases have in common is computed outside of the
    decision, so that a row that stays or moves is passed on without a copy.

    Args:
        recursion: The recursion.
        dimension: Number of coordinates of a row.
        on_grid: Whether n_t = R(s_t·z_t − L_t), with R(v) = ⌊v + ½⌋. Then L_t gets nothing of z_t, and is computed in
            float64, one operation after another, unless sums are exact.
    """

    def __init__(self, recursion: Recursion, *, dimension: int, on_grid: bool) -> None:
        self._recursion, self._dimension, self._on_grid = recursion, dimension, on_grid
        self._type = tf.float64 if on_grid else tf.float32
        first, *other_cases = recursion.cases
        places = range(recursion.rows)
        self._differing = [
            place
            for place in places
            if _uses(first.after[place], lambda source: source >= recursion.rows)
            or any(case.after[place] != first.after[place] for case in other_cases)
        ]
        self._late = [
            place
            for place in self._differing
            if any(_uses(case.after[place], lambda source: source < 0) for case in recursion.cases)
        ]
        self._early = [place for place in self._differing if place not in self._late]
        self.remembers_past = any(
            _uses(terms, lambda source: source == PAST) for case in recursion.cases for terms in case.after
        )
        # All of L_t is needed only where a row remembers it, or where it is not one sum for all rounds.
        self._by_parts = (
            on_grid
            and all(case.past == first.past and case.product is None for case in recursion.cases)
            and not self.remembers_past
        )

    def tables(self) -> list[np.ndarray]:
        """Returns the tables of the recursion in the type of the arithmetic."""
        return [table.astype(self._type.as_numpy_dtype) for table in self._recursion.tables]

    def next(
        self, key: tf.Tensor, done: tf.Tensor, rows: Tensors, tables: Tensors, stddev: tf.Tensor
    ) -> tuple[tf.Tensor, Tensors]:
        """Returns the row of noise of a key, and the rows of memory after it.

        `done` rounds have run, and `stddev` is NaN in a round that must not run.
        """
        line = None if self._recursion.line is None else self._recursion.line(done, tables, Operations)
        return _Round(self, line, done, rows, tables, stddev).run(key)


class _Round:
    """What a round computes with."""

    def __init__(
        self,
        runner: Runner,
        line: Any,
        done: tf.Tensor,
        rows: Tensors,
        tables: Tensors,
        stddev: tf.Tensor,
    ) -> None:
        self._runner, self._recursion, self._on_grid = runner, runner._recursion, runner._on_grid
        self._line, self._done, self._rows, self._tables = line, done, rows, tables
        self._stddev, self._special = stddev, dict[int, tf.Tensor]()

    def run(self, key: tf.Tensor) -> tuple[tf.Tensor, Tensors]:
        runner, first = self._runner, self._recursion.cases[0]
        if not self._on_grid:
            self._normal = standard_normal(key, runner._dimension)
            self._special[DRAWN] = self._normal * self._stddev
        before, *early = self._switch(self._before)
        if self._on_grid:
            if not runner._by_parts:
                self._special[PAST] = before
            self._special[NEW] = self._rounded(key)
        elif runner.remembers_past:
            self._special[PAST] = before
            self._special[NEW] = self._times_scale(self._scale()) - before
        else:
            self._special[NEW] = before
        late = self._switch(self._after) if runner._late else ()
        rows = {**dict(zip(runner._early, early, strict=True)), **dict(zip(runner._late, late, strict=True))}
        after = tuple(
            rows[place] if place in rows else self._row(first.after[place], ()) for place in range(len(self._rows))
        )
        return self._special[NEW], after

    def _before(self, case: Case) -> Tensors:
        """Returns n_t, or L_t on a grid and where a row remembers it, and the rows that do not depend on n_t."""
        products = self._products(case.product)
        early = [self._row(case.after[place], products) for place in self._runner._early]
        if self._on_grid:
            # What is computed by parts later is not computed here.
            past = tf.zeros([], tf.float64) if self._runner._by_parts else self._sum(case.past, products)
            return past, *early
        if self._runner.remembers_past:
            return tf.broadcast_to(self._sum(case.past, products), [self._runner._dimension]), *early
        past = [(-weight, row) for weight, row in self._weighted_rows(case.past, products)]
        return self._added([(1.0, self._times_scale(self._exact(case.scale))), *past]), *early

    def _after(self, case: Case) -> Tensors:
        return tuple(self._row(case.after[place], ()) for place in self._runner._late)

    def _switch(self, of_case: Callable[[Case], Tensors]) -> Sequence[tf.Tensor]:
        if len(self._recursion.cases) == 1:
            return of_case(self._recursion.cases[0])
        case = tf.cast(self._recursion.case_of(self._done, Operations), tf.int32)
        return tf.switch_case(case, [lambda case=case: of_case(case) for case in self._recursion.cases])

    def _rounded(self, key: tf.Tensor) -> tf.Tensor:
        """Returns n_t, part by part."""
        case = self._recursion.cases[0]
        scale = self._stddev * tf.cast(self._scale(), tf.float64)

        def rounded(part: tf.Tensor, begin: tf.Tensor, end: tf.Tensor) -> Tensors:
            if not self._runner._by_parts:
                past = _part_of(self._special[PAST], begin, end)
            elif case.past:
                past = _in_order([(self._weight(weight), self._rows[row][begin:end]) for row, weight in case.past])
            else:
                past = tf.zeros([], tf.float64)
            # ½ is subtracted from what depends on past n alone: one operation less in which z_t is rounded.
            return (tf.floor(part * scale - (past - 0.5)),)

        return in_parts(key, self._runner._dimension, rounded, [tf.float64])[0]

    def _scale(self) -> tf.Tensor | float:
        """Returns 1 / C_tt, in float64."""
        scales = [case.scale for case in self._recursion.cases]
        if all(scale == scales[0] for scale in scales):
            return self._exact(scales[0])
        return tf.gather(tf.constant(scales, tf.float64), self._recursion.case_of(self._done, Operations))

    def _exact(self, scale: Weight) -> tf.Tensor | float:
        """Returns the scale of a case in float64, not below 1 / C_tt."""
        if not isinstance(scale, Entry):
            return scale
        exact = tf.cast(self._line[scale.place], tf.float64)
        # The state has tables in the type of the arithmetic, to which they are rounded.
        return exact if self._on_grid else exact * (1 + 2.0**-23)

    def _times_scale(self, scale: tf.Tensor | float) -> tf.Tensor:
        """Returns z_t times s / C_tt, which is rounded up to float32: noise is never rounded down."""
        if isinstance(scale, float) and scale == 1:
            return self._special[DRAWN]
        exact = tf.cast(self._stddev, tf.float64) * scale
        nearest = tf.cast(exact, tf.float32)
        above = tf.math.nextafter(nearest, tf.constant(np.inf, tf.float32))
        return tf.where(tf.cast(nearest, tf.float64) < exact, above, nearest) * self._normal

    def _row(self, entry: int | Terms, products: Sequence[tf.Tensor]) -> tf.Tensor:
        if isinstance(entry, int):
            return self._rows[entry]
        if entry == ((NEW, 1.0),):
            return tf.cast(self._special[NEW], self._recursion.stored if self._on_grid else tf.float32)
        return self._sum(entry, products)

    def _sum(self, terms: Terms, products: Sequence[tf.Tensor]) -> tf.Tensor:
        return self._added(self._weighted_rows(terms, products))

    def _weighted_rows(self, terms: Terms, products: Sequence[tf.Tensor]) -> WeightedRows:
        return [(self._weight(weight), self._source(source, products)) for source, weight in terms]

    def _added(self, weighted_rows: WeightedRows) -> tf.Tensor:
        if not weighted_rows:
            return tf.zeros([], self._runner._type)
        if self._on_grid and not self._recursion.exact:
            return _in_order(weighted_rows)
        if len(weighted_rows) > (_FEW_TERMS if len(self._recursion.cases) == 1 else _FEW_TERMS_OF_A_BRANCH):
            weights = tf.stack([tf.convert_to_tensor(weight, self._runner._type) for weight, _ in weighted_rows])
            return weighted_sums(weights[tf.newaxis], [row for _, row in weighted_rows])[0]
        scaled = [_times(weight, tf.cast(row, self._runner._type)) for weight, row in weighted_rows]
        return scaled[0] if len(scaled) == 1 else tf.add_n(scaled)

    def _products(self, product: Product | None) -> Sequence[tf.Tensor]:
        if product is None:
            return ()
        weights = product.weights
        if not isinstance(weights, np.ndarray):
            weights = weights(self._done, self._tables, Operations)
        return weighted_sums(tf.cast(weights, self._runner._type), [self._rows[row] for row in product.rows])

    def _source(self, source: int, products: Sequence[tf.Tensor]) -> tf.Tensor:
        if source < 0:
            return self._special[source]
        return self._rows[source] if source < len(self._rows) else products[source - len(self._rows)]

    def _weight(self, weight: Any) -> tf.Tensor | float:
        return tf.cast(self._line[weight.place], self._runner._type) if isinstance(weight, Entry) else weight


def _times(weight: tf.Tensor | float, row: tf.Tensor) -> tf.Tensor:
    return row if isinstance(weight, float) and weight == 1 else weight * row


def _part_of(row: tf.Tensor, begin: tf.Tensor, end: tf.Tensor) -> tf.Tensor:
    """Returns a part of a row, of which some cases of a decision may have one number in place of all."""
    if row.shape.rank is None:
        flat = tf.reshape(row, [-1])
        return tf.cond(tf.equal(tf.size(flat), 1), lambda: flat, lambda: flat[begin:end])
    return row[begin:end] if row.shape.rank else row


def _in_order(terms: WeightedRows) -> tf.Tensor:
    """Returns the sum of weights times rows, each product and each sum rounded once, in this order.

    Products with −weights are subtracted, which gives the same bits. The graph optimizer would turn additions into one
    AddN, in an order of its own, and that into temporary variables, which fail where branches of a switch have several.
    """
    (weight, row), *later = terms
    total = weight * row
    for weight, row in later:
        total -= -weight * row
    return total


def _uses(entry: int | Terms, which: Callable[[int], bool]) -> bool:
    return not isinstance(entry, int) and any(which(source) for source, _ in entry)


def weighted_sums(weights: tf.Tensor, rows: Sequence[tf.Tensor]) -> list[tf.Tensor]:
    """Returns Σ_j weights[i, j]·rows[j] for each i.

    Adding one row after another would take five times as many memory accesses as this matrix product, which processes
    one part of all rows after another. It is in float64: TensorFlow lets a GPU round rows of float32 to 10 bits, and
    oneDNN to 7. What is subtracted is then no weighted sum of past noise, and noise hides less than the mechanism's.

    Args:
        weights: `[sums, len(rows)]`, of known shape.
        rows: At least one, each `[dimension]`, of known shape.

    Returns:
        As many rows as `weights` has, in its type.
    """
    (dimension,), sums = rows[0].shape, weights.shape[0]
    size = max(_ALIGNED, min(_LARGEST_PART, _PART // len(rows) // _ALIGNED * _ALIGNED))

    def of_part(begin: tf.Tensor, end: tf.Tensor) -> list[tf.Tensor]:
        parts = rows if dimension <= size else [row[begin:end] for row in rows]
        products = tf.matmul(tf.cast(weights, tf.float64), tf.stack([tf.cast(part, tf.float64) for part in parts]))
        return tf.unstack(tf.cast(products, weights.dtype), num=sums)

    return by_parts(dimension, size, of_part, [weights.dtype] * sums)
