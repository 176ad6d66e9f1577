"""Banded inverses of workloads, for the search for a banded C."""

import numpy as np

from tff_mf.errors import InputValueError
from tff_mf.workloads import LearningRates, Momentum, MomentumWithRates, PrefixSum, Workload

# A workload with a rate of 0 has no inverse. In the search, rates are at least this share of the largest.
_SMALLEST_RATE = 1e-3


def inverse_diagonals(workload: Workload, rounds: int) -> np.ndarray:
    """Returns the diagonals of A⁻¹, float64 `[few, rounds]`: entry `[i, t]` belongs to row t + i and column t.

    Raises:
        InputValueError: If A has no inverse.
    """
    if isinstance(workload, PrefixSum):
        return _of_sgd(np.ones(rounds), 0.0)
    if isinstance(workload, Momentum):
        return _of_sgd(np.ones(rounds), workload.momentum)
    if isinstance(workload, LearningRates):
        rates = workload.listed(rounds)
        if not np.any(rates):
            raise InputValueError(f"workload={workload!r} has no rate above 0: every mechanism has the same error.")
        momentum = workload.momentum if isinstance(workload, MomentumWithRates) else 0.0
        return _of_sgd(np.maximum(rates, _SMALLEST_RATE * rates.max()), momentum)
    return _of_matrix(workload.matrix(rounds))


def _of_sgd(rates: np.ndarray, momentum: float) -> np.ndarray:
    """Returns the diagonals of (1 − βS)·diag(1 / η)·(1 − S), where S shifts rows down by one."""
    inverse = 1 / rates
    following = np.append(inverse[1:], 0.0)
    diagonals = np.stack([inverse, -following - momentum * inverse, momentum * following])
    return diagonals if momentum else diagonals[:2]


def _of_matrix(matrix: np.ndarray) -> np.ndarray:
    from scipy.linalg import solve_triangular

    if not np.all(np.diagonal(matrix)):
        raise InputValueError("workload has a 0 on its main diagonal, and therefore no inverse.")
    inverse = solve_triangular(matrix, np.eye(len(matrix)), lower=True)
    diagonals = np.zeros_like(inverse)
    for offset in range(len(inverse)):
        diagonals[offset, : len(inverse) - offset] = np.diagonal(inverse, -offset)
    return diagonals
