"""How Toeplitz matrices with a banded inverse are found."""

import time

import numpy as np

from tff_mf import _validate
from tff_mf.mechanisms import BandedInverse
from tff_mf.optimize._descent import finish
from tff_mf.optimize._inverse_loss import InverseLoss
from tff_mf.optimize._inverse_search import MOST_BANDS, best_inverse
from tff_mf.optimize._result import OptimizationResult
from tff_mf.optimize.banded_toeplitz import check_bands, toeplitz_setting
from tff_mf.participation import Participation
from tff_mf.workloads import ToeplitzWorkload


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

    d_0 = 1, and d_1, …, d_{b̂−1} may be any numbers: C may have negative entries, and entries that rise. What is
    minimized has the exact sensitivity where there is a rule for it, as for one participation or where C ≥ 0 never
    rises, and otherwise a proven upper bound: that of theorem 3.1 of McMahan et al. (2024) for the least matrix
    that is ≥ |C| and never rises. The loss grows with d without bound, so that its least value lies at no boundary, and
    a search that did not come to a stationary point says so. The best often lies where entries of C become equal;
    there the loss has a kink, and stationary is a point where 0 is among the generalized gradients. There may be more
    than one such point: several starts are tried, and the best of their ends is not proven to be the best of all.

    Of more than 1024 bands, the result has 1024.

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
    optimized_for = toeplitz_setting(rounds, participation, workload)
    bands = check_bands(bands, optimized_for.rounds)
    objective = _validate.one_of("objective", objective, ("rms", "max"))
    found = best_inverse(InverseLoss(optimized_for, objective), min(bands, MOST_BANDS))
    column = np.append(1.0, found.variables)
    return finish(BandedInverse(inverse_column=column.tolist(), optimized_for=optimized_for), found, objective, began)
