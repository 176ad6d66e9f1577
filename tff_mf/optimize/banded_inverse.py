"""Optimizer of Toeplitz matrices with a banded inverse."""

import time

import numpy as np

from tff_mf.mechanisms import BandedInverse
from tff_mf.optimize._descent import with_descent
from tff_mf.optimize._inverse_loss import InverseLoss
from tff_mf.optimize._inverse_search import MOST_BANDS, best_inverse
from tff_mf.optimize.banded_toeplitz import checked_arguments
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
    """Returns the Toeplitz matrix with a banded inverse that has the least loss.

    d_0 = 1, and d_1, …, d_{b̂−1} are unconstrained: C may have negative entries, and entries that rise. The search
    minimizes a loss with the exact sensitivity where there is a rule for it, as for one participation or where C ≥ 0
    never rises, and otherwise with a proven upper bound, by theorem 3.1 of McMahan et al. (2024) for the least
    matrix that is ≥ |C| and never rises. The loss grows with d without bound, so that its minimum lies at no boundary,
    and a search that did not reach a stationary point says so. At the minimum, entries of C are often equal; the loss
    has a kink there, and a point is stationary if 0 is among its generalized gradients. There may be several such
    points: the search has several starts, and the best of their ends is not proven to be the global minimum.

    If more than 1024 bands are asked for, the result has 1024.

    The `history` in `optimized_for.search` has the loss after each iteration.

    Args:
        rounds: Number of rounds n.
        bands: Number of diagonals of C⁻¹, at most `rounds`.
        participation: The participation schema.
        workload: A Toeplitz workload A; `None` is the prefix sum.
        objective: "rms" or "max", the loss to minimize.

    Source: Kalinin, McKenna, Upadhyay and Lampert (2025), "Back to square roots", for the kind of matrix.

    Example:
        >>> from tff_mf import BandedInverse, MinSep, rms_loss
        >>> participation = MinSep(min_sep=342, max_participations=6)
        >>> mechanism = optimize_banded_inverse(rounds=2052, bands=8, participation=participation)
        >>> mechanism.optimized_for.search.loss < rms_loss(BandedInverse.square_root(8), 2052, participation)
        True

    Raises:
        InputTypeError: If an argument is of the wrong type.
        InputValueError: If an argument is out of range, or the participations do not fit in `rounds`.
    """
    began = time.perf_counter()
    checked = checked_arguments(rounds, bands, participation, workload, objective)
    loss = InverseLoss(checked.optimized_for, objective)
    found = best_inverse(loss, min(checked.bands, MOST_BANDS))
    column = np.append(1.0, found.variables)
    mechanism = BandedInverse(inverse_column=column.tolist(), optimized_for=checked.optimized_for)
    return with_descent(mechanism, found, objective, began)
