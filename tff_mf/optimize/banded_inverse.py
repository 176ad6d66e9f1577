"""How Toeplitz matrices with a banded inverse are found."""

import time

import numpy as np

from tff_mf import _validate
from tff_mf.mechanisms import BandedInverse, _series
from tff_mf.optimize._descent import Value, descend, finish
from tff_mf.optimize._result import OptimizationResult
from tff_mf.optimize._toeplitz_loss import ToeplitzLoss
from tff_mf.optimize.banded_toeplitz import check_bands, toeplitz_setting
from tff_mf.participation import Participation
from tff_mf.workloads import ToeplitzWorkload

_ITERATIONS = 500


def optimize_banded_inverse(
    *,
    rounds: int,
    bands: int,
    participation: Participation,
    workload: ToeplitzWorkload | None = None,
    objective: str = "rms",
) -> BandedInverse:
    """Returns the banded inverse with the least loss: the mechanism of `optimize_banded_inverse_result`.

    Args:
        rounds: Number of rounds n.
        bands: Number of diagonals of C⁻¹, at most `rounds`.
        participation: The participation schema.
        workload: The workload A, which must be Toeplitz too; `None` is the prefix sum.
        objective: "rms" for RmsLoss, "max" for MaxLoss.

    Example:
        >>> from tff_mf import MinSep
        >>> participation = MinSep(min_sep=342, max_participations=6)
        >>> optimize_banded_inverse(rounds=2052, bands=8, participation=participation).bands
        8

    Raises:
        InputTypeError: If an argument is of the wrong type.
        InputValueError: If an argument is out of range, or the participations do not fit in `rounds`.
    """
    return optimize_banded_inverse_result(
        rounds=rounds, bands=bands, participation=participation, workload=workload, objective=objective
    ).mechanism


def optimize_banded_inverse_result(
    *,
    rounds: int,
    bands: int,
    participation: Participation,
    workload: ToeplitzWorkload | None = None,
    objective: str = "rms",
) -> OptimizationResult[BandedInverse]:
    """Returns the banded inverse with the least loss, and how the search ended.

    It is searched among those whose prefix sums s_i = d_0 + … + d_i are log-convex and never rise, with
    d_0 = 1. By Kaluza's theorem 1 / Σ s_i x^i then has no positive coefficient but the first, so that
    C ≥ 0 never rises, and the sensitivity is exact by theorem 3.1 of McMahan et al. (2024). The
    banded inverse square root, where the search starts, is one of them.

    The result's `history` has the loss after each iteration.

    Args:
        rounds: Number of rounds n.
        bands: Number of diagonals of C⁻¹, at most `rounds`.
        participation: The participation schema.
        workload: The workload A, which must be Toeplitz too; `None` is the prefix sum.
        objective: "rms" for RmsLoss, "max" for MaxLoss.

    Source: Kalinin, McKenna, Upadhyay and Lampert (2025), "Back to square roots", for the kind of matrix.

    Example:
        >>> from tff_mf import BandedInverse, MinSep, rms_loss
        >>> participation = MinSep(min_sep=342, max_participations=6)
        >>> result = optimize_banded_inverse_result(rounds=2052, bands=8, participation=participation)
        >>> result.converged, result.loss < rms_loss(BandedInverse.square_root(8), 2052, participation)
        (True, True)

    Raises:
        InputTypeError: If an argument is of the wrong type.
        InputValueError: If an argument is out of range, or the participations do not fit in `rounds`.
    """
    began = time.perf_counter()
    made_for = toeplitz_setting(rounds, participation, workload)
    bands = check_bands(bands, made_for.rounds)
    objective = _validate.one_of("objective", objective, ("rms", "max"))
    loss = ToeplitzLoss(made_for, objective)

    def of_variables(variables: np.ndarray) -> Value:
        value, by_inverse = loss.of_inverse(_inverse_column(variables))
        return Value(value, _by_variables(variables, by_inverse))

    found = descend(of_variables, _square_root_variables(bands), iterations=_ITERATIONS)
    mechanism = BandedInverse(inverse_column=_inverse_column(found.variables).tolist(), made_for=made_for)
    return finish(mechanism, found, objective, began)


def _prefix_sums(variables: np.ndarray) -> np.ndarray:
    """Returns s with log(s_{m−1} / s_m) = Σ_{l ≥ m} e^(variable l), positive and falling in m."""
    rates = np.cumsum(np.exp(variables)[::-1])[::-1]
    return np.exp(-np.concatenate([[0.0], np.cumsum(rates)]))


def _inverse_column(variables: np.ndarray) -> np.ndarray:
    """Returns d, float64 `[variables + 1]`."""
    return np.diff(_prefix_sums(variables), prepend=0.0)


def _by_variables(variables: np.ndarray, by_inverse: np.ndarray) -> np.ndarray:
    by_sums = by_inverse - np.append(by_inverse[1:], 0.0)
    by_logs = _prefix_sums(variables) * by_sums
    by_rates = np.cumsum(by_logs[::-1])[::-1][1:]
    return -np.exp(variables) * np.cumsum(by_rates)


def _square_root_variables(bands: int) -> np.ndarray:
    """Returns the variables of the banded inverse square root."""
    rates = -np.diff(np.log(_series.inverse_square_root(bands)))
    return np.log(-np.diff(rates, append=0.0))
