"""Sensitivity of any strategy matrix, by its entries; of a banded one, by its diagonals.

For contributions u_t of norm at most 1 in the rounds t of a pattern π, with X = CᵀC,

    ‖Cu‖² = Σ_{s,t∈π} X_st ⟨u_s, u_t⟩ ≤ Σ_{s,t∈π} |X_st|,

and equal u_t of norm 1 reach Σ X_st: Choquette-Choo et al. (2023), proposition D.1.
"""

import dataclasses
import functools
from collections.abc import Callable, Iterable, Iterator

import numpy as np

from tff_mf.base import matrices, validation
from tff_mf.base.errors import InputValueError
from tff_mf.mechanisms import BandedMechanism, Mechanism
from tff_mf.problem.participation import FixedEpoch, Participation
from tff_mf.sensitivities import sums

# Sums of squares of larger numbers may overflow; squares of numbers that are all smaller may be zero.
_SMALL, _LARGE = 2.0**-300, 2.0**400

# Relative difference of two squared norms that may be due to rounding alone.
ROUNDING = 2.0**-42

# Rows computed at a time, to bound the memory.
_BLOCK = 512


@dataclasses.dataclass(frozen=True, kw_only=True)
class SensitivityResult:
    """A sensitivity, with the rule that gave it.

    Attributes:
        value: sens_Π(C) for clip norm 1.
        exact: Whether some client in Π attains `value`, up to the rounding of float64; otherwise it is a proven upper
            bound.
        rule: Name of the rule, with its source.
    """

    value: float
    exact: bool
    rule: str


@functools.singledispatch
def by_structure(mechanism: Mechanism, rounds: int, participation: Participation) -> SensitivityResult:
    """Returns the sensitivity, or an upper bound of it, from the entries, diagonals or coefficients of C.

    The rule follows from the base class of the mechanism: whether it has entries only, `diagonals` or `coefficients`.

    Formal guarantee: as for `tff_mf.sensitivity`, whatever C is.

    Args:
        mechanism: The mechanism.
        rounds: Number of rounds, checked by the mechanism and by `participation`.
        participation: The participation schema.
    """
    encoder, scale = scaled(mechanism, mechanism.encoder(validation.dense(rounds)))
    return enlarged(of_matrix(encoder, participation), scale)


@by_structure.register
def _of_diagonals(mechanism: BandedMechanism, rounds: int, participation: Participation) -> SensitivityResult:
    """Goes by the diagonals that are not all zero, whatever the mechanism says of its bands."""
    diagonals, scale = scaled(mechanism, mechanism.checked_diagonals(rounds))
    return enlarged(_of_bands(diagonals, participation), scale)


def of_matrix(matrix: np.ndarray, participation: Participation) -> SensitivityResult:
    """Returns the sensitivity of any matrix, float64 `[rows, rounds]`, by the tightest rule that applies."""
    squared_norms = np.sum(np.square(matrix), axis=0)
    if participation.max_participations == 1:
        rule = "one participation: largest column norm"
        return SensitivityResult(value=float(np.sqrt(np.max(squared_norms))), exact=True, rule=rule)
    if not np.any(np.tril(matrix, -participation.min_sep)) and not np.any(np.triu(matrix, 1)):
        return _of_orthogonal(squared_norms, participation)
    if isinstance(participation, FixedEpoch):
        gram = _epochs_of_matrix(matrix, participation)
        return fixed_epoch(gram, participation, lambda pattern: np.sum(matrix[:, pattern], axis=1))
    return upper_bound(matrix, participation)


def scaled(mechanism: Mechanism, numbers: np.ndarray) -> tuple[np.ndarray, float]:
    """Returns `numbers`, divided by a power of two if all are very small, and that power.

    Squares of numbers below 1e-162 are zero in float64, and so would the sensitivity be. Scaling rounds nothing.

    Raises:
        InputValueError: If a number is NaN, infinite, or so large that sums of squares may be.
    """
    largest = refuse_overflow(mechanism, numbers)
    if largest == 0 or largest >= _SMALL:
        return numbers, 1.0
    exponent = max(int(np.frexp(largest)[1]), -1000)
    return np.ldexp(numbers, -exponent), 2.0**exponent


def refuse_overflow(mechanism: Mechanism, numbers: np.ndarray) -> float:
    """Returns the largest size of a number; raises if one is NaN, infinite, or so large that sums of squares may be."""
    largest = float(np.max(np.abs(numbers)))
    if not largest < _LARGE:
        raise InputValueError(f"the coefficients of this {mechanism.kind} mechanism overflow within its rounds.")
    return largest


def enlarged(result: SensitivityResult, scale: float) -> SensitivityResult:
    """Returns the result for a matrix that was divided by `scale`."""
    return dataclasses.replace(result, value=result.value * scale)


def fixed_epoch(
    gram: Iterable[np.ndarray], participation: FixedEpoch, sum_of_columns: Callable[[range], np.ndarray]
) -> SensitivityResult:
    """Returns the largest sum of |X_st| over the patterns j, j + b, …, and whether equal contributions reach it.

    They do if the entries of X between the rounds of that pattern are ≥ 0. Rounding may change the signs of entries, so
    the bound is compared with the norm that equal contributions attain. At most n such patterns are not part of
    another.

    Args:
        gram: The diagonals 0, b, 2b, … of X that may differ from zero: X_{t,t+lb} in `[t]`.
        participation: The schema.
        sum_of_columns: Returns the sum of the columns of C for the rounds of a pattern.
    """
    min_sep, max_participations = participation.min_sep, participation.max_participations
    totals = np.zeros(0)
    for epochs, diagonal in zip(range(max_participations), gram, strict=False):
        pairs = sums.window_sums(np.abs(diagonal), width=max_participations - epochs, stride=min_sep)
        if epochs:
            totals[: len(pairs)] += 2 * pairs
        else:
            totals = pairs
    first_round = int(np.argmax(totals))
    squared = float(totals[first_round])
    rounds = range(first_round, min(first_round + max_participations * min_sep, len(totals)), min_sep)
    reached = float(np.sum(np.square(sum_of_columns(rounds))))
    exact = reached >= squared * (1 - ROUNDING)
    source = "over a pattern, Choquette-Choo et al. (2023), proposition D.1"
    rule = f"CᵀC ≥ 0: largest sum of CᵀC {source}" if exact else f"upper bound: largest sum of |CᵀC| {source}"
    return SensitivityResult(value=squared**0.5, exact=exact, rule=f"fixed epochs, {rule}")


def upper_bound(matrix: np.ndarray, participation: Participation) -> SensitivityResult:
    """Returns the smaller of two upper bounds for min-sep that hold for any C, float64 `[rows, rounds]`."""
    gram = matrix.T @ matrix
    triangle = _largest_sum(np.sqrt(np.diagonal(gram)), participation)
    theorem = float(np.sqrt(_largest_sum(_row_sums(np.abs(gram, out=gram), participation), participation)))
    if theorem <= triangle:
        rule = "any matrix, upper bound: Choquette-Choo et al. (2023), theorem 3"
        return SensitivityResult(value=theorem, exact=False, rule=rule)
    rule = "any matrix, upper bound: triangle inequality over the columns, Choquette-Choo et al. (2023), algorithm 2"
    return SensitivityResult(value=triangle, exact=False, rule=rule)


def _row_sums(gram: np.ndarray, participation: Participation) -> np.ndarray:
    """Returns v with Σ_{s,t∈π} |X_st| ≤ Σ_{s∈π} v_s for each pattern π: algorithm 3, a little tighter.

    In the paper v_s is the largest sum of row s over any pattern. Patterns that contain s are enough: s itself, no
    other round within b of it, and at most k − 1 more.
    """
    rounds, min_sep, most = len(gram), participation.min_sep, participation.max_participations
    totals = np.empty(rounds)
    for start in range(0, rounds, _BLOCK):
        rows = np.arange(start, min(start + _BLOCK, rounds))
        away = np.abs(np.arange(rounds) - rows[:, None]) >= min_sep
        partner_sums = sums.largest_sums(gram[rows] * away, min_sep=min_sep, max_participations=most - 1)
        totals[rows] = gram[rows, rows] + partner_sums
    return totals


def _largest_sum(values: np.ndarray, participation: Participation) -> float:
    return sums.largest_sum(values, min_sep=participation.min_sep, max_participations=participation.max_participations)


def _of_orthogonal(squared_norms: np.ndarray, participation: Participation) -> SensitivityResult:
    """Returns the sensitivity if the columns of one client's rounds are orthogonal.

    The squared norms of the columns then add up for any directions of the contributions: Choquette-Choo et al. (2023),
    theorem 2, for any column norms.
    """
    if isinstance(participation, FixedEpoch):
        width, stride = participation.max_participations, participation.min_sep
        largest = float(np.max(sums.window_sums(squared_norms, width=width, stride=stride)))
    else:
        largest = _largest_sum(squared_norms, participation)
    rule = "banded, no more bands than b: Choquette-Choo et al. (2023), theorem 2"
    return SensitivityResult(value=float(np.sqrt(largest)), exact=True, rule=rule)


def _epochs_of_matrix(matrix: np.ndarray, participation: FixedEpoch) -> Iterator[np.ndarray]:
    """Yields the diagonals 0, b, 2b, … of CᵀC; the other diagonals are not computed."""
    min_sep, rounds = participation.min_sep, matrix.shape[1]
    epochs = min(participation.max_participations, -(-rounds // min_sep))
    diagonals = [np.empty(rounds - apart * min_sep) for apart in range(epochs)]
    for place in range(min_sep):
        columns = np.ascontiguousarray(matrix[:, place::min_sep])
        gram = columns.T @ columns
        for apart in range(min(epochs, len(gram))):
            diagonals[apart][place::min_sep] = np.diagonal(gram, apart)
    yield from diagonals


def _of_bands(diagonals: np.ndarray, participation: Participation) -> SensitivityResult:
    bands, rounds = diagonals.shape
    if participation.max_participations == 1 or bands <= participation.min_sep:
        return _of_orthogonal(np.sum(np.square(diagonals), axis=0), participation)
    if isinstance(participation, FixedEpoch):
        # The diagonals 0, b, 2b, … of CᵀC, as far as bands overlap.
        gram = (
            np.einsum("it,it->t", diagonals[apart:, : rounds - apart], diagonals[: bands - apart, apart:])
            for apart in range(0, bands, participation.min_sep)
        )
        return fixed_epoch(gram, participation, lambda pattern: _sum_of_bands(diagonals, pattern))
    validation.dense(rounds)
    return of_matrix(matrices.of_diagonals(diagonals), participation)


def _sum_of_bands(diagonals: np.ndarray, pattern: range) -> np.ndarray:
    bands, rounds = diagonals.shape
    total = np.zeros(rounds + bands)
    for column in pattern:
        total[column : column + bands] += diagonals[:, column]
    return total
