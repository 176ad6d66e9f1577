"""Sensitivity of Toeplitz matrices with scaled columns: theorem 3.1 of McMahan et al. (2024) for CᵀC in place of C."""

from collections.abc import Callable

import numpy as np

from tff_mf.base import validation
from tff_mf.mechanisms import ScaledBLT
from tff_mf.problem.participation import FixedEpoch, Participation
from tff_mf.sensitivities.general import ROUNDING, SensitivityResult, fixed_epoch, refuse_overflow
from tff_mf.sensitivities.toeplitz import running_sums

# Distances of rounds that are computed with at a time.
_ROWS = 64


def scaled_columns_sensitivity(mechanism: ScaledBLT, rounds: int, participation: Participation) -> SensitivityResult:
    """Returns the sensitivity from the entries X of CᵀC, of which those at equal distances are running sums.

    Raises `InputValueError` if entries of C overflow.
    """
    column, scales = mechanism.unscaled_column(validation.listable(rounds)), np.array(mechanism.scales[:rounds])
    with np.errstate(over="ignore"):
        refuse_overflow(mechanism, column * scales.max())
    return _of_column(column, scales, participation)


def _of_column(column: np.ndarray, scales: np.ndarray, participation: Participation) -> SensitivityResult:
    rounds = len(column)
    windows = np.lib.stride_tricks.sliding_window_view(np.pad(column, (0, rounds)), rounds)
    padded = np.pad(scales, (0, rounds))

    def gram(apart: np.ndarray) -> np.ndarray:
        """Returns X_{s,s+a} for each s and each a of `apart`, and 0 where s + a is no round, `[apart, rounds]`."""
        later = np.add.outer(apart, np.arange(rounds))
        sums = running_sums(column * windows[apart])
        places = np.maximum(rounds - 1 - later, 0)
        return np.take_along_axis(sums, places, axis=1) * scales * padded[later]

    def sum_of_columns(pattern: range) -> np.ndarray:
        total = np.zeros(rounds)
        for place in pattern:
            total[place:] += scales[place] * column[: rounds - place]
        return total

    min_sep, most = participation.min_sep, participation.max_participations
    if most == 1:
        rule = "scaled columns, one participation: largest column norm"
        return SensitivityResult(value=float(np.sqrt(np.max(gram(np.array([0]))))), exact=True, rule=rule)
    if isinstance(participation, FixedEpoch):
        diagonals = (gram(np.array([apart]))[0, : rounds - apart] for apart in range(0, rounds, min_sep))
        return fixed_epoch(diagonals, participation, sum_of_columns)
    earliest = range(0, rounds, min_sep)[:most]
    return _of_pairs(gram, rounds, earliest, float(np.sum(np.square(sum_of_columns(earliest)))))


def _of_pairs(
    gram: Callable[[np.ndarray], np.ndarray], rounds: int, earliest: range, reached: float
) -> SensitivityResult:
    """Bounds each X_st by the largest one of rounds that come no sooner and no closer than in the earliest pattern.

    Proof: round i of a pattern π, counted from 0, has t_i ≥ ib, and t_j − t_i ≥ (j − i)b for i < j. So
    ‖Cu‖² ≤ Σ_{s,t∈π} X_st ≤ Σ_{i,j<k} Y_ij, with Y_ij = max of X_st over s ≥ ib and t − s ≥ (j − i)b. The earliest
    pattern reaches it if it has all of these maxima, as it does if C is Toeplitz and never rises (theorem 3.1), also if
    scales never rise.
    """
    min_sep, most = earliest.step, len(earliest)
    total, largest = 0.0, np.zeros(validation.dense(rounds))
    for epochs in range((rounds - 1) // min_sep, -1, -1):
        # Rounds that are at least as far apart as these epochs, and 0 apart only from themselves.
        begin, end = epochs * min_sep, min((epochs + 1) * min_sep, rounds) if epochs else 1
        for first in range(begin, end, _ROWS):
            pairs = gram(np.arange(first, min(first + _ROWS, end)))
            largest = np.maximum(largest, pairs.max(axis=0)) if epochs else pairs[0]
        if epochs < most:
            within = largest[: rounds - begin]
            total += (2 if epochs else 1) * _sum_of_later_maxima(within, min_sep, most - epochs)
    exact = reached >= total * (1 - ROUNDING)
    rule = f"scaled columns{'' if exact else ', upper bound'}: each entry of CᵀC is largest in the earliest pattern"
    return SensitivityResult(value=total**0.5, exact=exact, rule=rule)


def _sum_of_later_maxima(values: np.ndarray, min_sep: int, most: int) -> float:
    """Returns the sum of the largest values from place 0, b, …, (most − 1)b on."""
    return float(np.sum(np.maximum.accumulate(values[::-1])[::-1][: most * min_sep : min_sep]))
