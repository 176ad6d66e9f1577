"""Recursions on a grid of integers, with the bounds that ε is computed from: docs/proofs.md.

`bounds_of` asks a mechanism for what its bounds have in common for every σ, and `on_grid` for the bounds at one σ.
`Linear` is for any recursion that remembers no draws, `Rows` for any C with few diagonals or few rounds.
"""

import abc
import bisect
import dataclasses
import functools
import math
from collections.abc import Callable, Sequence

import numpy as np

from tff_mf.base import in_order
from tff_mf.base.errors import InputTypeError, InputValueError
from tff_mf.mechanisms._mechanism import BandedMechanism, Mechanism, ToeplitzMechanism
from tff_mf.mechanisms.recursion import NEW, PAST, Numbers, Recursion, Step, Terms, past_rows, rows_of, unit_vectors
from tff_mf.problem.grids import LARGEST_NORMAL

# Largest relative error of one operation in float64.
ROUNDING = 2.0**-53
# Exceeds the relative rounding error of the bounds themselves.
SLACK = 1 + 2.0**-10
# Rounds of a stream whose mechanism has no last one.
MOST_ROUNDS = 2**17
# Up to this many rounds, a matrix is formed for bounds.
MOST_WHOLE_ROUNDS = 2**12
# A recursion may differ from the exact one by this much, in units of the grid; a stream ends before.
LARGEST_ERROR = 2.0**-6
# Of a row, so that its sum with records is exact.
LARGEST = 2.0**52
# Of all rows of a mechanism that is not banded: 1 GiB in int32.
_MOST_ENTRIES = 2**28
# Of the largest z: errors are smaller, so that bounds are computed up to `SLACK`.
_LARGEST_SHARE = 2.0**-12
# Bits of a coefficient: a stream ends before sums need more than 52 bits even with the fewest.
_MOST_BITS, _FEWEST_BITS = 48, 10
_INT32_LIMIT = 2**31
# Rounds of a response that are computed one by one: all later ones are sums of these.
_BLOCK = 2**10


class GridBounds(abc.ABC):
    """What the bounds of a mechanism's integers have in common for every σ and every grid: computed once, when needed.

    Attributes:
        mechanism: The mechanism, cast to float32.
    """

    def __init__(self, mechanism: Mechanism) -> None:
        self.mechanism = mechanism

    @abc.abstractmethod
    def at(self, deviation: float) -> "GridRecursion":
        """Returns the recursion with its bounds for one σ: s, the standard deviation of z in units of the grid."""


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class GridRecursion:
    """n_t = R(s_t·z_t − L_t), with L_t = Σ_{i<t} K_ti n_i for row t of C divided by C_tt, and s_t = s / C_tt.

    Attributes:
        mechanism: The mechanism, cast to float32.
        deviation: s, standard deviation of a coordinate of the independent noise in units of the grid.
        rounds: Last round of the stream.
        made: Returns what is computed in each round: in place, with less memory, of which a row may change its type.
        largest_within: Returns N: bound on |n_t| in the first rounds, at most all rounds of the stream.
        error: Returns e: bound on the error of a computed L_t − ½ in the first rounds, as a function of past n, in
            units of the grid.
        column_change: Bound on the norm of a column of C̃ − C, for the C̃ with the entries that the recursion computes
            with.
        smallest_diagonal: Bound on the entries of C's diagonal.
        largest_diagonal: Bound on the entries of C's diagonal.
        coefficient_bits: k, if entries of C̃ are multiples of 2^-k of the diagonal.
        all_rows: Number of rows of a C that is not banded, all of which are kept; 0 if it is.
    """

    mechanism: Mechanism
    deviation: float
    rounds: int
    made: Callable[..., Recursion]
    largest_within: Callable[[int], float]
    error: Callable[[int], float] = lambda rounds: 0.0
    column_change: float = 0.0
    smallest_diagonal: float = 1.0
    largest_diagonal: float = 1.0
    coefficient_bits: int | None = None
    all_rows: int = 0

    @functools.cached_property
    def recursion(self) -> Recursion:
        """What is computed in each round; a row of memory never changes its type."""
        return self.made(in_place=False)

    @functools.cached_property
    def in_place(self) -> Recursion:
        """The same integers with less memory, of which a row may change its type."""
        return self.made(in_place=True)

    @property
    def largest(self) -> float:
        """Bound on |n_t| in all rounds of the stream."""
        return self.largest_within(self.rounds)

    def check(self, dimension: int) -> None:
        """Refuses a recursion that would keep too many numbers: of a mechanism that is not banded, `check_rows`."""
        check_rows(self.mechanism.kind, bands=self.all_rows, dimension=dimension)


def unit(deviation: float, largest_diagonal: float) -> float:
    """Returns a bound on |s·z + C_tt·r|, where |r| ≤ 1 is what rounding adds to n_t."""
    return (deviation * LARGEST_NORMAL + largest_diagonal) * SLACK


def allowed(name: str, largest: np.ndarray, error: np.ndarray | float = 0.0) -> int:
    """Returns how many rounds have integers and errors within their bounds, for bounds that never decrease."""
    with np.errstate(invalid="ignore"):
        fits = (largest <= LARGEST) & (np.asarray(error) <= LARGEST_ERROR)
    rounds = len(fits) if fits.all() else int(np.argmin(fits))
    if rounds == 0:
        raise InputValueError(
            f"grid does not fit the noise of this {name} mechanism: its integers would exceed 2^52 or lose their last "
            "digits. Take fewer bits or less noise."
        )
    return rounds


def check_rows(kind: str, *, bands: int, dimension: int) -> None:
    """Refuses the noise of a mechanism that is not banded if it would keep more than 2^28 numbers.

    Args:
        kind: The kind of the mechanism.
        bands: Number of diagonals of C, including the main one: the number of its rounds.
        dimension: Number d of coordinates of a record.

    Example:
        >>> check_rows("dense", bands=64, dimension=4_050_748)
    """
    numbers = (bands - 1) * dimension
    if numbers > _MOST_ENTRIES:
        raise InputValueError(
            f"grid with dimension={dimension} is refused: integer noise of a {kind} mechanism needs all {bands} rows "
            f"in memory, {numbers:,} numbers, and the limit is {_MOST_ENTRIES:,}. Take a banded mechanism or a BLT; or "
            "grid=None, in settings 'none', which gives up a guarantee about the numbers that are released: it is then "
            "that of real numbers, and low bits of floats can give clients away."
        )


def on_grid(mechanism: Mechanism, *, deviation: float) -> GridRecursion:
    """Returns the recursion of a mechanism on a grid, with the bounds that its guarantee is computed from.

    The arguments are as of `bounds_of` and `GridRecursion`. Whoever asks for many σ asks `bounds_of` once.

    Example:
        >>> from tff_mf import BLT
        >>> bounded = on_grid(BLT.production("b400"), deviation=7.0 * 2**16)
        >>> bounded.error(2052) < 1e-6, bounded.largest < 2**31
        (True, True)

    Raises:
        InputTypeError: If the mechanism has no integer recursion.
        InputValueError: If its integers would be too large.
    """
    return bounds_of(mechanism).at(deviation)


def bounds_of(mechanism: Mechanism) -> GridBounds:
    """Returns what the bounds of a mechanism's integers have in common for every σ.

    The parameters are cast to float32. A mechanism of this package may have a method `grid_bounds` with a proof of
    tighter bounds.

    Formal guarantee: the bounds of a mechanism from outside of this package are computed from its recursion, or from C;
    `grid_bounds` of its class, which it may have inherited, is not asked.

    Raises:
        InputTypeError: If the mechanism has no integer recursion.
    """
    run = mechanism.cast_to_float32()
    own = None if mechanism.is_outside else getattr(run, "grid_bounds", None)
    if own is not None:
        return own()
    recursion = run.recursion()
    inherited = type(run).recursion in (Mechanism.recursion, BandedMechanism.recursion)
    if recursion.draws_once and not inherited:
        return Linear(run)
    rounds = run.max_rounds or recursion.rounds
    if rounds is None or rounds > MOST_WHOLE_ROUNDS:
        raise InputTypeError(
            f"mechanism of kind {run.kind!r} has no integer recursion for so many rounds: give it max_rounds of at "
            f"most {MOST_WHOLE_ROUNDS}, or a recursion. Or pass grid=None, in settings 'none', which gives up a "
            "guarantee about the numbers that are released: it is then that of real numbers, and low bits of floats "
            "can give clients away."
        )
    return Rows(run, rows_of(run.encoder(rounds)), banded=False)


class Linear(GridBounds):
    """Any recursion in float64: its bounds are computed by running it.

    All that it computes is linear in the v_i = n_i + L_i, |v_i| ≤ unit / C_ii: the sums of absolute values of the
    responses to them bound n, the rows of memory and L. The rounding error of an operation is at most 2^-53 of its
    result. Errors go through the recursion of the memory for given n, with absolute values of weights.

    Args:
        mechanism: The mechanism, cast to float32.
        as_stored: Whether the recursion's weights are parameters of C, so that it is the recursion of exactly C.

    Attributes:
        recursion: The recursion.
        rounds: Rounds that are bounded, if their integers are not too large.
    """

    def __init__(self, mechanism: Mechanism, *, as_stored: bool = False) -> None:
        super().__init__(mechanism)
        self.recursion, self._as_stored = mechanism.recursion(), as_stored
        assert self.recursion.draws_once
        products = any(case.product is not None for case in self.recursion.cases)
        if self.recursion.stored != "float64" or self.recursion.exact or products:
            raise InputValueError(
                f"the recursion of kind {mechanism.kind!r} has products, or rows that are not in float64, whose bounds "
                "on a grid are not computed: leave out product, stored and exact, and write sums as terms."
            )
        # What gives the first column of a Toeplitz C.
        is_toeplitz = self.recursion.alike and isinstance(mechanism, ToeplitzMechanism)
        self._column = mechanism.coefficients if is_toeplitz else None
        limit = MOST_WHOLE_ROUNDS if self._column is None else MOST_ROUNDS
        self.rounds = min(limit, self.recursion.rounds or limit, mechanism.max_rounds or limit)
        if not 0 < min(self.scales) <= max(self.scales) < math.inf:
            raise InputValueError(f"the recursion of kind {mechanism.kind!r} has a scale that is no number above 0.")
        self.relative_errors = functools.cache(self._relative_errors)

    def at(self, deviation: float) -> GridRecursion:
        # A scale may be rounded up.
        smallest, largest = SLACK**-1 / max(self.scales), SLACK / min(self.scales)
        if self.recursion.alike and self.scales[0] == 1.0:
            smallest = largest = 1.0
        most = unit(deviation, largest)
        with np.errstate(over="ignore"):
            rounds = allowed(self.mechanism.kind, self.norms.max(axis=1) * most)
        limit = min(LARGEST_ERROR, _LARGEST_SHARE * most)
        if not self.error(rounds, most) <= limit:
            tried = range(1, rounds)
            rounds = bisect.bisect_left(tried, True, key=lambda count: not self.error(count, most) <= limit)
        if rounds == 0:
            allowed(self.mechanism.kind, np.array([np.inf]))
        return GridRecursion(
            mechanism=self.mechanism,
            deviation=deviation,
            rounds=rounds,
            made=lambda in_place: self.recursion,
            largest_within=lambda count: float(self.norms[count - 1, 0]) * most,
            error=lambda count: self.error(min(count, rounds), most),
            column_change=self.change,
            smallest_diagonal=smallest,
            largest_diagonal=largest,
        )

    @functools.cached_property
    def steps(self) -> list[Step]:
        """Each of the rounds, or one if all are alike."""
        return [self.recursion.step(done) for done in range(1 if self.recursion.alike else self.rounds)]

    @property
    def scales(self) -> list[float]:
        """1 / C_tt of each of the rounds, or one number if all are alike."""
        return [step.scale for step in self.steps]

    @functools.cached_property
    def norms(self) -> np.ndarray:
        """Bounds on |n_t|, |L_t| and rows after round t for |v_i| ≤ scale_i, so far, `[rounds, 2 + rows]`."""
        with np.errstate(over="ignore", invalid="ignore"):
            if self.recursion.alike:
                return np.add.accumulate(np.abs(_responses(self.recursion, self.rounds, self.steps)))
            responses = self.recursion.run(self.rounds, unit_vectors(self.rounds), steps=self.steps)
            sums = [in_order.sums(np.abs([new, past, *memory])) for _, new, past, memory in responses]
            return np.maximum.accumulate(sums)

    @functools.cached_property
    def change(self) -> float:
        """Bound on the norm of a column of C̃ − C, for the C̃ that the recursion is: L_t for given n."""
        if self._as_stored:
            return 0.0
        rounds, terms = self.rounds, 1 + max(len(case.weights()) for case in self.recursion.cases)
        with np.errstate(over="ignore", invalid="ignore"):
            claimed = self.mechanism.encoder(rounds) if self._column is None else self._column(rounds)
            run, sizes = self._encoder(self.steps), self._encoder(list(map(_absolute, self.steps)))
            change = np.abs(run - claimed) + rounds * terms * 4 * ROUNDING * sizes
            norm = float(np.sqrt(in_order.sums(np.square(change).T).max())) * SLACK
        return norm if norm >= 0 else math.inf

    def _encoder(self, steps: Sequence[Step]) -> np.ndarray:
        """Returns the C̃ of these rounds, or its first column."""
        if self._column is not None:
            new, past = _responses(self.recursion, self.rounds, steps, draws_n=True).T[:2]
            return (new + past) / self.scales[0]
        run = self.recursion.run(self.rounds, unit_vectors(self.rounds), steps=steps, draws_n=True)
        return np.array([(new + past) / scale for scale, new, past, _ in run])

    def error(self, rounds: int, unit: float) -> float:
        """Returns a bound on the error of L_t − ½ in the first rounds, for |v_i| ≤ `unit` / C_ii."""
        relative, largest = self.relative_errors(rounds, exact=True)
        if not largest * unit <= 2 * LARGEST:
            relative, _ = self.relative_errors(rounds, exact=False)
        if self.recursion.alike and not _is_fraction(self.steps[0].past, self._whole):
            return relative * unit
        # A half is subtracted exactly from a whole number.
        return (relative * unit + ROUNDING * (float(self.norms[rounds - 1, 1]) * unit + 1)) * SLACK

    @functools.cached_property
    def _whole(self) -> set[int]:
        return _whole_rows(self.recursion)

    def _relative_errors(self, rounds: int, *, exact: bool) -> tuple[float, float]:
        """Returns a bound on the error of L_t in the first rounds, and on sums of whole numbers, for a unit of 1.

        Args:
            rounds: Number of rounds.
            exact: Whether all sums of whole numbers are exact, as they are below 2^53.
        """
        new, past, *rows = self.norms[rounds - 1].tolist()
        sizes, largest = {NEW: new, PAST: past}, 0.0

        def local(terms: Numbers, bound: float) -> float:
            """Returns a bound on the rounding error of a sum of exact sources, whose size is at most `bound`."""
            nonlocal largest
            products = [abs(weight) * (sizes[source] if source < 0 else rows[source]) for source, weight in terms]
            if not _is_fraction(terms, self._whole):
                largest = max(largest, math.fsum(products))
                if exact:
                    return 0.0
            rounded = math.fsum(size for size, (_, weight) in zip(products, terms, strict=True) if abs(weight) != 1)
            partial = [min(math.fsum(products[: count + 1]), math.inf) for count in range(1, len(products))]
            if partial:
                partial[-1] = min(partial[-1], bound)
            return ROUNDING * (rounded + math.fsum(partial))

        if self.recursion.alike:
            (step,) = self.steps
            transition, added = _transition(step, local, past, rows)
            memory = _sum_of_powers(transition, added, rounds)
            if not _are_small(memory, rows):
                return math.inf, largest
            return _carried(step.past, memory, 0.0) + local(step.past, past), largest
        memory, largest_error = [0.0] * len(rows), 0.0
        for step in self.steps[:rounds]:
            error = _carried(step.past, memory, 0.0) + local(step.past, past)
            largest_error = max(largest_error, error)
            memory = [
                memory[entry] if isinstance(entry, int) else _carried(entry, memory, error) + local(entry, bound)
                for entry, bound in zip(step.after, rows, strict=True)
            ]
            if not _are_small(memory, rows):
                return math.inf, largest
        return largest_error, largest


def _absolute(step: Step) -> Step:
    """Returns the round with the absolute values of its weights."""

    def absolute(entry: int | Numbers) -> int | Numbers:
        return entry if isinstance(entry, int) else tuple((source, abs(weight)) for source, weight in entry)

    past = tuple((source, abs(weight)) for source, weight in step.past)
    return dataclasses.replace(step, past=past, after=tuple(map(absolute, step.after)))


def _responses(recursion: Recursion, rounds: int, steps: Sequence[Step], *, draws_n: bool = False) -> np.ndarray:
    """Returns n, L and the rows of memory of rounds that are all alike, for a first draw of 1 and no other.

    Rounds after a block depend on its memory alone: they are a sum of the responses to units of its rows.

    Returns:
        float64 `[rounds, 2 + rows]`.
    """
    first = recursion.run(min(rounds, _BLOCK), lambda done: float(done == 0), steps=steps, draws_n=draws_n)
    blocks = [np.array([(new, past, *memory) for _, new, past, memory in first])]
    if rounds <= _BLOCK:
        return blocks[0]
    zero = np.zeros(recursion.rows)
    later = recursion.run(_BLOCK, lambda done: zero, steps=steps, draws_n=draws_n, memory=[*np.eye(recursion.rows)])
    of_rows = np.array([(new, past, *memory) for _, new, past, memory in later]).transpose(2, 0, 1)
    for _ in range(_BLOCK, rounds, _BLOCK):
        block = np.zeros_like(blocks[0])
        for value, responses in zip(blocks[-1][-1, 2:], of_rows, strict=True):
            block += value * responses
        blocks.append(block)
    return np.concatenate(blocks)[:rounds]


def _are_small(errors: Sequence[float], rows: Sequence[float]) -> bool:
    """Returns whether `SLACK` covers the errors of computed rows of memory, as the bounds are of exact ones."""
    return all(error <= _LARGEST_SHARE * bound for error, bound in zip(errors, rows, strict=True))


def _carried(terms: Numbers, memory: Sequence[float], past: float) -> float:
    """Returns the error of a sum that follows from the errors of its sources; n has none."""
    errors = {NEW: 0.0, PAST: past}
    return math.fsum(abs(weight) * (errors[source] if source < 0 else memory[source]) for source, weight in terms)


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


def _transition(
    step: Step, local: Callable[[Numbers, float], float], past: float, rows: Sequence[float]
) -> tuple[np.ndarray, np.ndarray]:
    """Returns how errors of rows go on in a round, and what the round adds to them."""
    units = np.eye(len(rows)).tolist()

    def line(entry: int | Numbers, unit: Sequence[float]) -> float:
        return unit[entry] if isinstance(entry, int) else _carried(entry, unit, _carried(step.past, unit, 0.0))

    matrix = np.array([[line(entry, unit) for unit in units] for entry in step.after]).reshape(len(rows), len(rows))
    own, none = local(step.past, past), [0.0] * len(rows)
    added = [
        0.0 if isinstance(entry, int) else local(entry, bound) + _carried(entry, none, own)
        for entry, bound in zip(step.after, rows, strict=True)
    ]
    return matrix, np.array(added)


def _sum_of_powers(matrix: np.ndarray, vector: np.ndarray, count: int) -> list[float]:
    """Returns Σ_{i < count} matrix^i·vector, for numbers of at least 0."""
    total, power, sums = np.zeros_like(vector), matrix, vector
    with np.errstate(over="ignore", invalid="ignore"):
        while count:
            if count & 1:
                total = sums + _times(power, total)
            sums, power = sums + _times(power, sums), in_order.product(power, power)
            count >>= 1
    return total.tolist()


def _times(matrix: np.ndarray, vector: np.ndarray) -> np.ndarray:
    return in_order.product(matrix, vector[:, np.newaxis])[:, 0]


class Rows(GridBounds):
    """L_t = Σ K̃_ti n_i, where K̃ is K rounded to multiples of 2^-k so that no sum of products reaches 2^52.

    All products and partial sums are then exact in float64, in any order: e = 0. What the rounding of K changes is a
    change of C, and so of the sensitivity: `column_change`. It is for any C with few diagonals, or few rounds.

    Args:
        mechanism: The mechanism, cast to float32.
        entries: C by rows, from the main diagonal to the left, float64 `[rounds, bands]`; one line if C is Toeplitz.
        banded: Whether C has few diagonals: otherwise it is for small models.
    """

    def __init__(self, mechanism: Mechanism, encoder_rows: np.ndarray, *, banded: bool) -> None:
        super().__init__(mechanism)
        self.encoder_rows, self.banded = encoder_rows, banded
        # Few numbers of bits are enough for many σ.
        self.norms = functools.cache(self._norms)

    def at(self, deviation: float) -> GridRecursion:
        diagonal = self.encoder_rows[:, 0]
        most = unit(deviation, float(diagonal.max()))
        # So that no sum of products exceeds 2^52. C̃ is streamed, and is bounded: where C is nearly singular, C̃⁻¹ can be
        # larger than C⁻¹ by any factor.
        bits = _MOST_BITS
        while True:
            coefficients = self.rounded(bits)
            with np.errstate(over="ignore"):
                norms = self.norms(bits) * most
                largest_sums = norms * _sums(coefficients)
                rounds = allowed(self.mechanism.kind, largest_sums * 2.0**_FEWEST_BITS)
            fitting = _bits_within(float(largest_sums[rounds - 1]))
            if fitting >= bits:
                break
            bits = fitting
        scales, stored = (1 / diagonal) * (1 + 2.0**-50), "int32" if norms[rounds - 1] < _INT32_LIMIT else "int64"
        return GridRecursion(
            mechanism=self.mechanism,
            deviation=deviation,
            rounds=rounds,
            made=functools.partial(past_rows, scales, coefficients, stored=stored),
            largest_within=lambda count: float(norms[count - 1]),
            column_change=self._change(coefficients),
            smallest_diagonal=float(diagonal.min()),
            largest_diagonal=float(diagonal.max()),
            coefficient_bits=bits,
            all_rows=0 if self.banded else self.encoder_rows.shape[1],
        )

    def rounded(self, bits: int) -> np.ndarray:
        """Returns K̃: C below its diagonal, each row divided by its diagonal entry, in multiples of 2^-bits."""
        return np.ldexp(np.rint(np.ldexp(self.encoder_rows[:, 1:] / self.encoder_rows[:, :1], bits)), -bits)

    def _norms(self, bits: int) -> np.ndarray:
        """Returns the largest sum of absolute values of a row of C̃⁻¹ so far, for each number of rounds."""
        diagonal, coefficients = self.encoder_rows[:, 0], self.rounded(bits)
        with np.errstate(over="ignore", invalid="ignore"):
            if len(diagonal) == 1:
                column = in_order.reciprocal((1.0, *coefficients[0].tolist()), MOST_ROUNDS)
                return np.add.accumulate(np.abs(column)) / diagonal[0]
            rounds = len(diagonal)
            matrix = np.eye(rounds)
            for offset in range(1, self.encoder_rows.shape[1]):
                later = np.arange(offset, rounds)
                matrix[later, later - offset] = coefficients[later, offset - 1]
            inverse = in_order.solve(matrix, np.diag(1 / diagonal))
            return np.maximum.accumulate(in_order.sums(np.abs(inverse)))

    def _change(self, coefficients: np.ndarray) -> float:
        # The rounding of the quotient and of this difference counts too.
        below = self.encoder_rows[:, 1:]
        change = np.abs(self.encoder_rows[:, :1] * coefficients - below) + 2.0**-50 * np.abs(below)
        if len(change) == 1:
            return float(np.linalg.norm(change)) * SLACK
        squares = np.zeros(len(change))
        for offset in range(1, self.encoder_rows.shape[1]):
            squares[: len(change) - offset] += change[offset:, offset - 1] ** 2
        return float(np.sqrt(squares.max(initial=0.0))) * SLACK


def _sums(coefficients: np.ndarray) -> float:
    """Returns a bound on 1 plus the sum of absolute values of a row of K."""
    if coefficients.shape[1] == 0:
        return SLACK
    return (float(in_order.sums(np.abs(coefficients)).max()) + 1) * SLACK


def _bits_within(largest_sum: float) -> int:
    """Returns the largest k with largest_sum·2^k ≤ 2^52."""
    fraction, exponent = math.frexp(largest_sum)
    return 52 - exponent + (fraction == 0.5)
