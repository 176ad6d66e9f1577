"""Min-sep participation: a client takes part in any rounds that are at least b apart."""

import numpy as np

from tff_mf._sensitivity import patterns
from tff_mf._sensitivity._result import SensitivityResult
from tff_mf.participation import Participation

# Rows computed at a time, to bound the memory.
_BLOCK = 512


def orthogonal_columns(squared_norms: np.ndarray, participation: Participation) -> float:
    """Returns the sensitivity if the columns of one client's rounds are orthogonal.

    The squared norms of the columns then add up for any directions of the contributions: Choquette-Choo et al. (2023),
    theorem 2, for any column norms.
    """
    return float(np.sqrt(_largest_sum(squared_norms, participation)))


def upper_bound(matrix: np.ndarray, participation: Participation) -> SensitivityResult:
    """Returns the smaller of two upper bounds that hold for any C, float64 `[rows, rounds]`."""
    separation, limit = participation.separation, participation.limit
    gram = matrix.T @ matrix
    triangle = _largest_sum(np.sqrt(np.diagonal(gram)), participation)
    theorem = float(np.sqrt(_largest_sum(_row_sums(np.abs(gram, out=gram), separation, limit), participation)))
    if theorem <= triangle:
        rule = "any matrix, upper bound: Choquette-Choo et al. (2023), theorem 3"
        return SensitivityResult(value=theorem, exact=False, rule=rule)
    rule = "any matrix, upper bound: triangle inequality over the columns, Choquette-Choo et al. (2023), algorithm 2"
    return SensitivityResult(value=triangle, exact=False, rule=rule)


def _row_sums(gram: np.ndarray, separation: int, limit: int) -> np.ndarray:
    """Returns v with Σ_{s,t∈π} |X_st| ≤ Σ_{s∈π} v_s for each pattern π: algorithm 3, a little tighter.

    In the paper v_s is the largest sum of row s over any pattern. Patterns that contain s are enough: s itself, no
    other round within b of it, and at most k − 1 more.
    """
    rounds = len(gram)
    sums = np.empty(rounds)
    for start in range(0, rounds, _BLOCK):
        rows = np.arange(start, min(start + _BLOCK, rounds))
        away = np.abs(np.arange(rounds) - rows[:, None]) >= separation
        others = patterns.largest_sums(gram[rows] * away, separation=separation, limit=limit - 1)
        sums[rows] = gram[rows, rows] + others
    return sums


def _largest_sum(values: np.ndarray, participation: Participation) -> float:
    return patterns.largest_sum(values, separation=participation.separation, limit=participation.limit)
