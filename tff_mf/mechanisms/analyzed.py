"""Any recursion on a grid of integers: bounds from its data, by a theorem in docs/proofs/floating-point.md."""

import collections.abc
import dataclasses
import functools
import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from tff_mf.base import in_order
from tff_mf.base.errors import InputValueError
from tff_mf.mechanisms.grid_recursion import (
    LARGEST,
    LARGEST_ERROR,
    MOST_ROUNDS,
    MOST_WHOLE_ROUNDS,
    ROUNDING,
    SLACK,
    GridRecursion,
    allowed,
)
from tff_mf.mechanisms.recursion import NEW, PAST, Numbers, Recursion, Step, Terms

if TYPE_CHECKING:
    from tff_mf.mechanisms._mechanism import Mechanism

# Of the largest z, so that bounds are computed up to `SLACK`.
_LARGEST_SHARE = 2.0**-12


class Analyzed(GridRecursion["Mechanism"]):
    """Any recursion in float64: its bounds are computed by running it.

    All that it computes is linear in the v_i = n_i + L_i, |v_i| ≤ unit / C_ii: the sums of absolute values of the
    responses to them bound n, the rows of memory and L. An operation is off by at most 2^-53 of its result, and what
    it is off by goes through the recursion of the memory for given n, with absolute values of weights.

    Args:
        mechanism: The mechanism, cast to float32.
        deviation: s.
        largest_normal: T.
        as_stored: Whether the recursion's weights are parameters of C, so that it is the recursion of exactly C.
    """

    def __init__(
        self, mechanism: "Mechanism", *, deviation: float, largest_normal: float, as_stored: bool = False
    ) -> None:
        super().__init__(mechanism, deviation=deviation, largest_normal=largest_normal)
        known = _ByContent.of(mechanism)
        self._recursion, self._norms = _analyzed(known)
        self._change = 0.0 if as_stored else _change(known)
        scales = [self._recursion.step(done).scale for done in range(1 if self._alike else len(self._norms))]
        if not 0 < min(scales) <= max(scales) < math.inf:
            raise InputValueError(f"the recursion of kind {mechanism.kind!r} has a scale that is no number above 0.")
        # A scale may be rounded up.
        self.smallest_diagonal, self.largest_diagonal = SLACK**-1 / max(scales), SLACK / min(scales)
        if self._alike and scales[0] == 1.0:
            self.smallest_diagonal = self.largest_diagonal = 1.0
        with np.errstate(over="ignore"):
            bounds = self._norms * self.unit
        self._largest = bounds[:, 0]
        most = bounds.max(axis=1)
        errors = functools.partial(_error, self._recursion, self._norms, self.unit)
        rounds = allowed(mechanism.kind, most)
        limit = min(LARGEST_ERROR, _LARGEST_SHARE * self.unit)
        if not errors(rounds) <= limit:
            fewest = 0
            while rounds - fewest > 1:
                middle = (fewest + rounds) // 2
                fewest, rounds = (middle, rounds) if errors(middle) <= limit else (fewest, middle)
            rounds = fewest
        if rounds == 0:
            allowed(mechanism.kind, np.array([np.inf]))
        self._rounds, self._errors = rounds, functools.cache(errors)

    @property
    def _alike(self) -> bool:
        return _is_alike(self._recursion)

    @property
    def recursion(self) -> Recursion:
        return self._recursion

    @property
    def rounds(self) -> int:
        return self._rounds

    @property
    def column_change(self) -> float:
        return self._change

    def largest_within(self, rounds: int) -> float:
        return float(self._largest[rounds - 1])

    def error(self, rounds: int) -> float:
        return self._errors(min(rounds, self._rounds))


def _is_alike(recursion: Recursion) -> bool:
    """Returns whether all rounds are the same."""
    return len(recursion.cases) == 1 and recursion.line is None and recursion.cases[0].product is None


@dataclasses.dataclass(frozen=True)
class _ByContent:
    """A mechanism, equal to those of its class whose fields have the same values, however the class compares them."""

    content: tuple[Any, ...]
    mechanism: "Mechanism" = dataclasses.field(compare=False)

    @classmethod
    def of(cls, mechanism: "Mechanism") -> Self:
        fields = [each.name for each in dataclasses.fields(mechanism) if each.name != "optimized_for"]
        return cls((type(mechanism), *(_content(getattr(mechanism, name)) for name in fields)), mechanism)


def _content(value: Any) -> Any:
    """Returns a value that can be hashed, and is equal for equal fields; one that equals no other for unknown types."""
    if isinstance(value, np.ndarray) and value.dtype != object:
        return value.shape, value.dtype.str, value.tobytes()
    if isinstance(value, list | tuple):
        return tuple(map(_content, value))
    return value if isinstance(value, collections.abc.Hashable) else object()


# A calibration asks for many deviations.
@functools.lru_cache(maxsize=8)
def _analyzed(of: _ByContent) -> tuple[Recursion, np.ndarray]:
    """Returns a mechanism's recursion, and the bounds of `_bounds`.

    Raises:
        InputValueError: If the recursion has what the bounds are not about.
    """
    mechanism = of.mechanism
    recursion = mechanism.recursion()
    if recursion.stored != "float64" or recursion.exact or any(case.product is not None for case in recursion.cases):
        raise InputValueError(
            f"the recursion of kind {mechanism.kind!r} has products, or rows that are not in float64, whose bounds on "
            "a grid are not computed: leave out product, stored and exact, and write sums as terms."
        )
    rounds = _rounds_of(mechanism, recursion)
    with np.errstate(over="ignore", invalid="ignore"):
        norms = _bounds_of_alike(recursion, rounds) if _is_alike(recursion) else _bounds(recursion, rounds)
    norms.setflags(write=False)
    return recursion, norms


def _rounds_of(mechanism: "Mechanism", recursion: Recursion) -> int:
    most = MOST_ROUNDS if _is_alike(recursion) and _column(mechanism) is not None else MOST_WHOLE_ROUNDS
    return min(most, recursion.rounds or most, mechanism.max_rounds or most)


def _column(mechanism: "Mechanism") -> Callable[[int], np.ndarray] | None:
    """Returns what gives the first column of a Toeplitz C."""
    return getattr(mechanism, "coefficients", None)


@functools.lru_cache(maxsize=8)
def _change(of: _ByContent) -> float:
    """Returns a bound on the norm of a column of C̃ − C, for the C̃ that the recursion is: L_t for given n."""
    mechanism = of.mechanism
    recursion = mechanism.recursion()
    rounds, terms = _rounds_of(mechanism, recursion), 1 + max(len(case.weights()) for case in recursion.cases)
    with np.errstate(over="ignore", invalid="ignore"):
        column = _column(mechanism)
        if _is_alike(recursion) and column is not None:
            claimed = column(rounds)[:, np.newaxis]
            found, sizes = (_column_of_alike(recursion, rounds, of) for of in (float, abs))
        else:
            claimed = mechanism.encoder(rounds)
            found, sizes = (_encoder(recursion, rounds, of) for of in (float, abs))
        change = np.abs(found - claimed) + rounds * terms * 4 * ROUNDING * sizes
        norm = float(np.sqrt(in_order.sums(np.square(change).T)).max()) * SLACK
    return norm if norm >= 0 else math.inf


def _column_of_alike(recursion: Recursion, rounds: int, of: Callable[[float], float]) -> np.ndarray:
    """Returns the first column of what `_encoder` returns, for rounds that are the same, in Python's numbers."""
    step = recursion.step(0)
    terms = _weighted(step.past, of)
    after = [entry if isinstance(entry, int) else _weighted(entry, of) for entry in step.after]
    memory, found = [0.0] * recursion.rows, np.empty((rounds, 1))
    for done in range(rounds):
        new, past = float(done == 0), _plain_sum(terms, memory, ())
        found[done] = new + past
        memory = [
            memory[entry] if isinstance(entry, int) else _plain_sum(entry, memory, (new, past)) for entry in after
        ]
    return found / step.scale


def _encoder(recursion: Recursion, rounds: int, of: Callable[[float], float]) -> np.ndarray:
    """Returns the C̃ of a recursion, or of the one whose weights are `of` its weights."""
    memory, found = np.zeros((recursion.rows, rounds)), np.zeros((rounds, rounds))
    for done in range(rounds):
        step = recursion.step(done)
        new = np.zeros(rounds)
        new[done] = 1.0
        past = _vector_sum(_weighted(step.past, of), memory, ())
        found[done] = (new + past) / step.scale
        after = [
            memory[entry] if isinstance(entry, int) else _vector_sum(_weighted(entry, of), memory, (new, past))
            for entry in step.after
        ]
        memory = np.array(after).reshape(memory.shape)
    return found


def _weighted(terms: Numbers, of: Callable[[float], float]) -> Numbers:
    return tuple((source, of(weight)) for source, weight in terms)


def _bounds_of_alike(recursion: Recursion, rounds: int) -> np.ndarray:
    """As `_bounds`, for rounds that are the same: the response to the first v, in Python's numbers."""
    step = recursion.step(0)
    memory, total = [0.0] * recursion.rows, [0.0] * (2 + recursion.rows)
    found = np.empty((rounds, len(total)))
    for done in range(rounds):
        past = _plain_sum(step.past, memory, ())
        new = (step.scale if done == 0 else 0.0) - past
        memory = [
            memory[entry] if isinstance(entry, int) else _plain_sum(entry, memory, (new, past)) for entry in step.after
        ]
        total = [before + abs(each) for before, each in zip(total, (new, past, *memory), strict=True)]
        found[done] = total
    return found


def _plain_sum(terms: Numbers, memory: Sequence[float], special: Sequence[float]) -> float:
    total = 0.0
    for source, weight in terms:
        total += weight * (memory[source] if source >= 0 else special[-1 - source])
    return total


def _bounds(recursion: Recursion, rounds: int) -> np.ndarray:
    """Returns bounds on |n_t|, |L_t| and rows after round t for |v_i| ≤ scale_i, so far, `[rounds, 2 + rows]`."""
    memory = np.zeros((recursion.rows, rounds))
    found = np.empty((rounds, 2 + recursion.rows))
    for done in range(rounds):
        step = recursion.step(done)
        # What has been drawn so far: everything else is 0.
        known = memory[:, : done + 1]
        past = _vector_sum(step.past, known, ())
        new = -past
        new[done] += step.scale
        memory = memory.copy()
        for row, entry in enumerate(step.after):
            memory[row, : done + 1] = known[entry] if isinstance(entry, int) else _vector_sum(entry, known, (new, past))
        found[done] = (
            [_sum(new), _sum(past), *in_order.sums(np.abs(memory[:, : done + 1]))]
            if recursion.rows
            else [_sum(new), 0.0]
        )
    return np.maximum.accumulate(found)


def _sum(values: np.ndarray) -> float:
    return float(in_order.sums(np.abs(values)))


def _vector_sum(terms: Numbers, memory: np.ndarray, special: Sequence[np.ndarray]) -> np.ndarray:
    total = np.zeros(memory.shape[1])
    for source, weight in terms:
        total += weight * (memory[source] if source >= 0 else special[-1 - source])
    return total


def _error(recursion: Recursion, norms: np.ndarray, unit: float, rounds: int) -> float:
    """Returns a bound on the error of L_t − ½ in the first rounds."""
    new, past, *rows = (norms[rounds - 1] * unit).tolist()
    whole = _whole_rows(recursion)
    memory, largest = np.zeros(recursion.rows), 0.0
    local = functools.partial(_local_error, whole=whole, new=new, past=past, rows=rows)
    if _is_alike(recursion):
        step = recursion.step(0)
        transition, added = _transition(recursion, step, local)
        memory = _sum_of_powers(transition, added, rounds)
        if not _are_small(memory, rows):
            return math.inf
        error = _carried(step.past, memory, 0.0) + local(step.past, past)
        # A half is subtracted exactly from a whole number.
        return (error + ROUNDING * (past + 1)) * SLACK if _is_fraction(step.past, whole) else error
    for done in range(rounds):
        step = recursion.step(done)
        error = _carried(step.past, memory, 0.0) + local(step.past, past)
        largest = max(largest, error)
        memory = np.array(
            [
                memory[entry] if isinstance(entry, int) else _carried(entry, memory, error) + local(entry, bound)
                for entry, bound in zip(step.after, rows, strict=True)
            ]
        )
        if not _are_small(memory, rows):
            return math.inf
    return (largest + ROUNDING * (past + 1)) * SLACK


def _are_small(errors: np.ndarray, rows: Sequence[float]) -> bool:
    """Returns whether `SLACK` covers how far computed rows of memory are from exact ones, which the bounds are of."""
    return bool(np.all(errors <= _LARGEST_SHARE * np.array(rows)))


def _carried(terms: Numbers, memory: np.ndarray, past: float) -> float:
    """Returns what the errors of the sources of a sum make of it: n is known."""
    errors = {NEW: 0.0, PAST: past}
    return math.fsum(abs(weight) * float(errors[source] if source < 0 else memory[source]) for source, weight in terms)


def _local_error(
    terms: Numbers, bound: float, *, whole: set[int], new: float, past: float, rows: Sequence[float]
) -> float:
    """Returns a bound on what a computed sum of at most `bound` is off by, given its sources."""
    sizes = {NEW: new, PAST: past}
    products = [abs(weight) * (sizes[source] if source < 0 else rows[source]) for source, weight in terms]
    if not _is_fraction(terms, whole) and math.fsum(products) <= 2 * LARGEST:
        return 0.0
    rounded = math.fsum(each for each, (_, weight) in zip(products, terms, strict=True) if abs(weight) != 1)
    partial = [min(math.fsum(products[: count + 1]), math.inf) for count in range(1, len(products))]
    if partial:
        partial[-1] = min(partial[-1], bound)
    return ROUNDING * (rounded + math.fsum(partial))


def _is_fraction(terms: Terms, whole: set[int]) -> bool:
    """Returns whether a sum may be no whole number, or may depend on a weight that differs from round to round."""
    return not all(
        isinstance(weight, float) and weight.is_integer() and (source == NEW or source in whole)
        for source, weight in terms
    )


def _as_terms(entry: int | Terms) -> Terms:
    return ((entry, 1.0),) if isinstance(entry, int) else entry


def _whole_rows(recursion: Recursion) -> set[int]:
    """Returns the rows of memory that are whole numbers, sums of which are exact."""
    whole = set(range(recursion.rows))
    while True:
        fractions = {
            row for row in whole for case in recursion.cases if _is_fraction(_as_terms(case.after[row]), whole)
        }
        if not fractions:
            return whole
        whole -= fractions


def _transition(recursion: Recursion, step: Step, local: Any) -> tuple[np.ndarray, np.ndarray]:
    """Returns how errors of rows go on in a round, and what the round adds to them."""
    units = np.eye(recursion.rows)
    rows = local.keywords["rows"]

    def line(entry: int | Numbers, unit: np.ndarray) -> float:
        return float(unit[entry]) if isinstance(entry, int) else _carried(entry, unit, _carried(step.past, unit, 0.0))

    matrix = np.array([[line(entry, unit) for unit in units] for entry in step.after]).reshape(len(units), len(units))
    own = local(step.past, local.keywords["past"])
    added = [
        0.0 if isinstance(entry, int) else local(entry, bound) + _carried(entry, np.zeros(len(units)), own)
        for entry, bound in zip(step.after, rows, strict=True)
    ]
    return matrix, np.array(added)


def _sum_of_powers(matrix: np.ndarray, vector: np.ndarray, count: int) -> np.ndarray:
    """Returns Σ_{i < count} matrix^i·vector, for numbers of at least 0."""
    total, power, sums = np.zeros_like(vector), matrix, vector
    with np.errstate(over="ignore", invalid="ignore"):
        while count:
            if count & 1:
                total = sums + _times(power, total)
            sums, power = sums + _times(power, sums), in_order.product(power, power)
            count >>= 1
    return total


def _times(matrix: np.ndarray, vector: np.ndarray) -> np.ndarray:
    return in_order.product(matrix, vector[:, np.newaxis])[:, 0]
