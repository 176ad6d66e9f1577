"""Sensitivity of strategy matrices that are constant along each diagonal, and of BLTs in closed form."""

from typing import TypeGuard

import numpy as np

from tff_mf.base import matrices, validation
from tff_mf.mechanisms import BLT, ToeplitzMechanism
from tff_mf.mechanisms.blt import earliest_pattern_norm, fits, never_rises
from tff_mf.problem.participation import FixedEpoch, Participation
from tff_mf.sensitivities import sums
from tff_mf.sensitivities.general import SensitivityResult, by_structure, enlarged, fixed_epoch, scaled

# Most products of coefficients for the rule for fixed epochs: seconds.
_MOST_PRODUCTS = 2**28


@by_structure.register
def of_coefficients(mechanism: ToeplitzMechanism, rounds: int, participation: Participation) -> SensitivityResult:
    """Returns the sensitivity by the rule whose conditions `c` meets; they are checked without any tolerance."""
    claimed = mechanism.coefficients(validation.listable(rounds))
    column, scale = scaled(mechanism, matrices.shaped("coefficients", claimed, (rounds,)))
    return enlarged(_of_column(column, participation), scale)


def _of_column(column: np.ndarray, participation: Participation) -> SensitivityResult:
    if participation.max_participations == 1 or not np.any(column[participation.min_sep :]):
        # The squared norms of orthogonal columns add up for any directions of the contributions. Column t is column 0,
        # cut off after n − t entries, so that norms decrease to the right, and the earliest pattern is the worst.
        squared = _earliest_squared_norms(column, participation)
        return _result(squared, "orthogonal columns: root of the sum of their squared norms")
    if np.all(column >= 0) and np.all(column[1:] <= column[:-1]):
        return _result(_earliest_square(column, participation), "non-increasing: McMahan et al. (2024), theorem 3.1")
    if sums_epochs(participation, len(column)):
        # The diagonals 0, b, 2b, … of CᵀC: running sums of products of coefficients that far apart.
        gram = (
            running_sums(column[: len(column) - apart] * column[apart:])[::-1]
            for apart in range(0, len(column), participation.min_sep)
        )
        return fixed_epoch(
            gram, participation, lambda pattern: earliest_pattern(column[: len(column) - pattern[0]], participation)
        )
    # For contributions u_t of norm at most 1 in the rounds t of a pattern π and M = LtToep(m), m_i = max over j ≥ i of
    # |c_j|, ‖Cu‖² = Σ_{s,t∈π} (CᵀC)_st ⟨u_s, u_t⟩ ≤ Σ |CᵀC|_st ≤ Σ (|C|ᵀ|C|)_st ≤ Σ (MᵀM)_st = ‖M·1_π‖², entry by
    # entry, since |⟨u_s, u_t⟩| ≤ 1 and |C| ≤ M. M meets the conditions of theorem 3.1.
    majorant = _earliest_square(np.maximum.accumulate(np.abs(column)[::-1])[::-1], participation)
    # ‖Cu‖² ≤ (Σ ‖column t of C‖)² ≤ k Σ ‖column t of C‖² over the t of a pattern.
    cauchy_schwarz = participation.max_participations * _earliest_squared_norms(column, participation)
    if majorant <= cauchy_schwarz:
        rule = "theorem 3.1 of McMahan et al. (2024) for the non-increasing majorant"
        return _result(majorant, f"upper bound: {rule}", exact=False)
    return _result(cauchy_schwarz, "upper bound: Cauchy-Schwarz inequality over the columns", exact=False)


def _result(squared: float, rule: str, *, exact: bool = True) -> SensitivityResult:
    return SensitivityResult(value=float(np.sqrt(squared)), exact=exact, rule=f"Toeplitz, {rule}")


def blt_sensitivity(mechanism: BLT, rounds: int, participation: Participation) -> SensitivityResult:
    """Returns the norm of the earliest pattern in closed form, where it is the sensitivity or an upper bound.

    C ≥ 0, so equal contributions are the worst. For fixed epochs and for one participation, a later pattern has the
    same columns cut off sooner. Otherwise c must not increase: theorem 3.1 of McMahan et al. (2024). If c₁ > 1, C is
    bounded entry by entry by the matrix with c₁ in place of c₀, for which the theorem holds. Over fewer rounds, the
    coefficients are listed.
    """
    min_sep, max_participations = participation.min_sep, participation.max_participations
    if not fits(mechanism, rounds, max_participations):
        return of_coefficients(mechanism, rounds, participation)
    if max_participations == 1 or isinstance(participation, FixedEpoch):
        exact, rule = True, "BLT, closed form: C ≥ 0, and the earliest pattern is cut off last"
    elif never_rises(mechanism):
        exact, rule = True, "BLT, closed form, non-increasing: McMahan et al. (2024), theorem 3.1"
    else:
        exact = False
        rule = "BLT, closed form, upper bound: theorem 3.1 of McMahan et al. (2024) for the non-increasing majorant"
    value = earliest_pattern_norm(mechanism, rounds, min_sep, max_participations, raised=not exact)
    return SensitivityResult(value=value, exact=exact, rule=rule)


def sums_epochs(participation: Participation, rounds: int) -> TypeGuard[FixedEpoch]:
    """Returns whether CᵀC is summed over the patterns of fixed epochs, for any C."""
    return isinstance(participation, FixedEpoch) and rounds * participation.max_participations <= _MOST_PRODUCTS


def _earliest_squared_norms(column: np.ndarray, participation: Participation) -> float:
    """Returns the sum of the squared norms of the columns 0, b, …, (k − 1)b of LtToep(column).

    Each coefficient is weighted by the number of columns that contain it, so that one pairwise sum is enough.
    """
    rounds = len(column)
    columns = np.minimum(participation.max_participations, np.arange(rounds - 1, -1, -1) // participation.min_sep + 1)
    return float(np.sum(columns * np.square(column)))


def _earliest_square(column: np.ndarray, participation: Participation) -> float:
    return float(np.sum(np.square(earliest_pattern(column, participation))))


def earliest_pattern(column: np.ndarray, participation: Participation) -> np.ndarray:
    """Returns the sum of the columns 0, b, …, (k − 1)b of LtToep(column)."""
    return sums.window_sums(column[::-1], width=participation.max_participations, stride=participation.min_sep)[::-1]


def running_sums(values: np.ndarray) -> np.ndarray:
    """Returns the running sums along the last axis, in blocks: their error grows only with the root of their number."""
    *leading, count = values.shape
    size = int(np.ceil(np.sqrt(count)))
    blocks = np.zeros((*leading, size * size))
    blocks[..., :count] = values
    within = np.cumsum(blocks.reshape(*leading, size, size), axis=-1)
    # Without the block itself, which may be larger by far: its sum would not be subtracted exactly.
    before = np.zeros((*leading, size, 1))
    before[..., 1:, 0] = np.cumsum(within[..., :-1, -1], axis=-1)
    return (within + before).reshape(*leading, size * size)[..., :count]
