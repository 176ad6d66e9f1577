"""Optimizer of banded Toeplitz matrices."""

import time
from typing import NamedTuple

import numpy as np

from tff_mf import validation
from tff_mf.errors import InputValueError
from tff_mf.mechanisms import BandedToeplitz, OptimizedFor, series
from tff_mf.optimize._descent import Descent, Value, descend, with_descent
from tff_mf.optimize._toeplitz_loss import ToeplitzLoss
from tff_mf.participation import Participation
from tff_mf.workloads import PrefixSum, ToeplitzWorkload

_ITERATIONS = 500


def optimize_banded_toeplitz(
    *,
    rounds: int,
    bands: int,
    participation: Participation,
    workload: ToeplitzWorkload | None = None,
    objective: str = "rms",
) -> BandedToeplitz:
    """Returns the banded Toeplitz matrix with the least loss.

    Loss and gradient are exact and cost O(rounds · bands). Where a client's participations are at least `bands` apart,
    its columns of C share no row, and c is unconstrained. With more bands, the search also covers c ≥ 0 that never
    rises, whose sensitivity is exact by theorem 3.1 of McMahan et al. (2024); if that is not better, the result has
    fewer bands than asked for. c_0 = 1.

    The `history` in `optimized_for.search` has the loss after each iteration.

    Args:
        rounds: Number of rounds n.
        bands: Number of diagonals of C, at most `rounds`.
        participation: The participation schema.
        workload: The workload A, which must be Toeplitz; `None` is the prefix sum.
        objective: "rms" for RmsLoss, "max" for MaxLoss.

    Source: McKenna (2024), "Scaling up the banded matrix factorization mechanism", for the parameters.

    Example:
        >>> from tff_mf import MinSep
        >>> participation = MinSep(min_sep=342, max_participations=6)
        >>> mechanism = optimize_banded_toeplitz(rounds=2052, bands=342, participation=participation)
        >>> mechanism.bands, round(mechanism.optimized_for.search.loss, 3)
        (342, 8.804)

    Raises:
        InputTypeError: If an argument is of the wrong type.
        InputValueError: If an argument is out of range, or the participations do not fit in `rounds`.
    """
    began = time.perf_counter()
    checked = checked_arguments(rounds, bands, participation, workload, objective)
    column, found = best_column(checked.optimized_for, checked.bands, objective)
    mechanism = BandedToeplitz(column=column.tolist(), optimized_for=checked.optimized_for)
    return with_descent(mechanism, found, objective, began)


class Checked(NamedTuple):
    """A setting with a Toeplitz workload, and a number of bands that fits in its rounds."""

    optimized_for: OptimizedFor
    bands: int


def checked_arguments(
    rounds: int, bands: int, participation: Participation, workload: ToeplitzWorkload | None, objective: str
) -> Checked:
    """Returns the checked arguments of an optimizer of Toeplitz matrices."""
    workload = PrefixSum() if workload is None else workload
    validation.instance("workload", workload, ToeplitzWorkload, "take PrefixSum or Momentum, or optimize_banded")
    optimized_for = OptimizedFor(rounds=validation.listable(rounds), participation=participation, workload=workload)
    bands = check_bands(bands, optimized_for.rounds)
    validation.one_of("objective", objective, ("rms", "max"))
    return Checked(optimized_for, bands)


def check_bands(bands: object, rounds: int) -> int:
    """Returns `bands` if a matrix over `rounds` rounds can have as many."""
    bands = validation.whole("bands", bands)
    if bands > rounds:
        raise InputValueError(f"bands={bands} exceeds rounds={rounds}: take at most one band per round.")
    return bands


def best_column(optimized_for: OptimizedFor, bands: int, objective: str) -> tuple[np.ndarray, Descent]:
    """Returns the best c with c_0 = 1, float64 `[at most bands]`, and how the search for it ended."""
    loss = ToeplitzLoss(optimized_for, objective)
    schema = optimized_for.participation
    free_bands = bands if schema.max_participations == 1 else min(bands, schema.min_sep)
    start = series.inverse_square_root(bands)
    best = descend(lambda free: loss.of_encoder(free, orthogonal=True), start[:free_bands], iterations=_ITERATIONS)
    column = best.variables
    if free_bands < bands:

        def of_steps(steps: np.ndarray) -> Value:
            value, by_column = loss.of_encoder(_non_increasing(steps), orthogonal=False)
            return Value(value, np.exp(steps) * np.cumsum(by_column))

        wider = descend(of_steps, np.log(-np.diff(start, append=0.0)), iterations=_ITERATIONS)
        if wider.log_loss < best.log_loss:
            best, column = wider, _non_increasing(wider.variables)
    return column / column[0], best


def _non_increasing(steps: np.ndarray) -> np.ndarray:
    """Returns c with c_l − c_{l+1} = e^(step l), which is positive and never rises for any steps."""
    return np.cumsum(np.exp(steps)[::-1])[::-1]
