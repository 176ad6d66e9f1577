"""Fixed epochs: a client takes part once per epoch, in the same place: patterns j, j + b, …, j + (k − 1)b.

For contributions u_t of norm at most 1 in the rounds t of a pattern π, with X = CᵀC,

    ‖Cu‖² = Σ_{s,t∈π} X_st ⟨u_s, u_t⟩ ≤ Σ_{s,t∈π} |X_st|,

and equal u_t of norm 1 reach Σ X_st: Choquette-Choo et al. (2023), proposition D.1. There are at most n such
patterns that are not part of another.
"""

from collections.abc import Callable, Iterable

import numpy as np

from tff_mf._sensitivity import patterns
from tff_mf._sensitivity._result import SensitivityResult
from tff_mf.participation import FixedEpoch

# Relative difference of two squared norms that may be due to rounding alone.
_ROUNDING = 2.0**-42


def fixed_epoch(
    gram: Iterable[np.ndarray], participation: FixedEpoch, sum_of_columns: Callable[[range], np.ndarray]
) -> SensitivityResult:
    """Returns the largest sum of |X_st| over a pattern, and whether equal contributions reach it.

    They do if the entries of X between the rounds of that pattern are ≥ 0. Rounding may change the signs of entries, so
    the bound is compared with the norm that equal contributions attain.

    Args:
        gram: The diagonals 0, b, 2b, … of X that may differ from zero: X_{t,t+lb} in `[t]`.
        participation: The schema.
        sum_of_columns: Returns the sum of the columns of C for the rounds of a pattern.
    """
    separation, limit = participation.separation, participation.limit
    totals = np.zeros(0)
    for epochs, diagonal in zip(range(limit), gram, strict=False):
        pairs = patterns.window_sums(np.abs(diagonal), width=limit - epochs, stride=separation)
        if epochs:
            totals[: len(pairs)] += 2 * pairs
        else:
            totals = pairs
    worst = int(np.argmax(totals))
    squared = float(totals[worst])
    rounds = range(worst, min(worst + limit * separation, len(totals)), separation)
    reached = float(np.sum(np.square(sum_of_columns(rounds))))
    if reached >= squared * (1 - _ROUNDING):
        rule = "fixed epochs, CᵀC ≥ 0: largest sum of CᵀC over a pattern, Choquette-Choo et al. (2023), proposition D.1"
        return SensitivityResult(value=squared**0.5, exact=True, rule=rule)
    rule = (
        "fixed epochs, upper bound: largest sum of |CᵀC| over a pattern, Choquette-Choo et al. (2023), proposition D.1"
    )
    return SensitivityResult(value=squared**0.5, exact=False, rule=rule)


def orthogonal_columns(squared_norms: np.ndarray, participation: FixedEpoch) -> float:
    """Returns the sensitivity if the columns of one client's rounds are orthogonal."""
    totals = patterns.window_sums(squared_norms, width=participation.limit, stride=participation.separation)
    return float(np.sqrt(np.max(totals)))
