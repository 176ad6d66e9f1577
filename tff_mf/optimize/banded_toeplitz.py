"""Optimizer of banded Toeplitz matrices, and the exact losses of Toeplitz mechanisms without matrices."""

import time
from typing import NamedTuple

import numpy as np

from tff_mf.base import validation
from tff_mf.base.errors import InputValueError
from tff_mf.mechanisms import BandedToeplitz, OptimizedFor, series
from tff_mf.optimize._descent import Descent, Value, descend, with_descent
from tff_mf.problem.participation import Participation
from tff_mf.problem.workloads import PrefixSum, ToeplitzWorkload


class ToeplitzLoss:
    """Log of MaxLoss or RmsLoss of C = LtToep(c) for a Toeplitz workload, and its gradient.

    Row i of B = A·C⁻¹ holds the first i + 1 coefficients of a(x) / c(x), so that the i-th is in n − i rows, and the
    last row is the longest.
    """

    def __init__(self, optimized_for: OptimizedFor, objective: str) -> None:
        """Takes the setting, whose workload must be Toeplitz, and "rms" or "max"."""
        assert isinstance(optimized_for.workload, ToeplitzWorkload)
        self.optimized_for = optimized_for
        rounds = optimized_for.rounds
        self._workload = optimized_for.workload.coefficients(rounds)
        self._weights = weights(rounds, objective)

    def of_encoder(self, column: np.ndarray, *, orthogonal: bool) -> Value:
        """Returns log(loss) for c, float64 `[bands]`; `orthogonal` selects the rule for sensitivity."""
        squared = self.orthogonal_sensitivity(column) if orthogonal else self.monotone_sensitivity(column)
        return log_product(self.squared_error(column), squared)

    def squared_error(self, column: np.ndarray) -> Value:
        """Returns MaxError² or RmsError² for c, float64 `[bands]`."""
        decoder = series.quotient(self._workload, column)
        weighted = self._weights * decoder
        error = float(weighted @ decoder)
        # δ(a / c) = −(a / c)·δc / c.
        return Value(error, -2 * correlate(weighted, series.quotient(decoder, column), len(column)))

    def orthogonal_sensitivity(self, column: np.ndarray) -> Value:
        """Returns sens² if the columns that one client contributes to share no row: the sum of their squared norms."""
        rounds, schema = self.optimized_for.rounds, self.optimized_for.participation
        counts = np.minimum(schema.max_participations, (rounds - 1 - np.arange(len(column))) // schema.min_sep + 1)
        return Value(float(counts @ np.square(column)), 2 * counts * column)

    def monotone_sensitivity(self, column: np.ndarray) -> Value:
        """Returns sens² for c ≥ 0 that never rises: McMahan et al. (2024), theorem 3.1."""
        rounds, schema = self.optimized_for.rounds, self.optimized_for.participation
        shifts = range(0, schema.max_participations * schema.min_sep, schema.min_sep)
        total = np.zeros(rounds)
        for shift in shifts:
            shifted = column[: rounds - shift]
            total[shift : shift + len(shifted)] += shifted
        gradient = np.zeros(len(column))
        for shift in shifts:
            window = total[shift : shift + len(column)]
            gradient[: len(window)] += 2 * window
        return Value(float(total @ total), gradient)


def weights(rounds: int, objective: str) -> np.ndarray:
    """Returns the weight of the i-th coefficient of B: 1 for the last row, or (n − i) / n for the mean over rows."""
    return np.ones(rounds) if objective == "max" else np.arange(rounds, 0, -1) / rounds


def correlate(left: np.ndarray, right: np.ndarray, lags: int) -> np.ndarray:
    """Returns Σ_i left_i · right_{i−l} for the lags l = 0, …, lags − 1 of two vectors of equal length."""
    return np.correlate(np.concatenate([left, np.zeros(lags - 1)]), right, mode="valid")


def log_product(error: Value, sensitivity: Value) -> Value:
    """Returns the log of the square root of the product of two values, with its gradient."""
    return Value(
        0.5 * (np.log(error.value) + np.log(sensitivity.value)),
        0.5 * (error.gradient / error.value + sensitivity.gradient / sensitivity.value),
    )


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
        InputValueError: If the participations do not fit in `rounds`.
    """
    began = time.perf_counter()
    checked = checked_arguments(rounds, bands, participation, workload, objective)
    column, descent = best_column(checked.optimized_for, checked.bands, objective)
    mechanism = BandedToeplitz(column=column.tolist(), optimized_for=checked.optimized_for)
    return with_descent(mechanism, descent, objective, began)


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
