"""Exact losses of Toeplitz mechanisms, with gradients with respect to the coefficients of C, without matrices."""

import numpy as np

from tff_mf.mechanisms import OptimizedFor, series
from tff_mf.optimize._descent import Value
from tff_mf.workloads import ToeplitzWorkload


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
            part = column[: rounds - shift]
            total[shift : shift + len(part)] += part
        gradient = np.zeros(len(column))
        for shift in shifts:
            part = total[shift : shift + len(column)]
            gradient[: len(part)] += 2 * part
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
