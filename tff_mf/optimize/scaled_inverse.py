"""Optimizer of banded inverses with scaled columns."""

import time

import numpy as np

from tff_mf.base import validation
from tff_mf.mechanisms import OptimizedFor, ScaledInverse
from tff_mf.optimize import _descent
from tff_mf.optimize._descent import with_descent
from tff_mf.optimize._scaled_columns import FIRST_FALL, MOST_PARTICIPATIONS, POWERS, LogMean, ScaledColumnsLoss
from tff_mf.optimize.banded_inverse import InverseLoss, optimize_banded_inverse
from tff_mf.optimize.banded_toeplitz import correlate
from tff_mf.problem.participation import Participation


class ScaledInverseLoss(ScaledColumnsLoss):
    """The loss of a banded inverse with scaled columns.

    Variables of c are those of e_1, e_2, … beside a given e, along directions in which the squared error of the
    unscaled matrix has curvature 2.
    """

    def __init__(self, optimized_for: OptimizedFor, start: np.ndarray) -> None:
        super().__init__(optimized_for, kinked=True)
        unscaled = InverseLoss(optimized_for, "rms")
        self._start, bands = start, len(start)
        self.basis = unscaled.whitening(bands) * unscaled.error(start) if bands > 1 else np.zeros((0, 0))

    def matrix(self, own: np.ndarray) -> "_Matrix":
        return _Matrix(self._start + np.append(0.0, self.basis @ own), self.basis, self.rounds)

    def mechanism(self, variables: np.ndarray) -> ScaledInverse:
        """Returns the mechanism, its first scale 1."""
        matrix = self.matrix(self.own(variables))
        return ScaledInverse(
            inverse_column=matrix.inverse.tolist(),
            scales=self.scales(variables, matrix.column).tolist(),
            optimized_for=self.optimized_for,
        )


class _Matrix:
    """LtToep(e)⁻¹."""

    def __init__(self, inverse: np.ndarray, basis: np.ndarray, rounds: int) -> None:
        self.inverse, self._basis = inverse, basis
        self.column = self._divided(np.eye(1, rounds)[0])

    def error(self, factors: np.ndarray, power: int) -> "_Error":
        return _Error(self.inverse, factors, power)

    def gradient(self, by_column: np.ndarray, error: "_Error") -> np.ndarray:
        # δ(1 / e) = −δe / e².
        by_inverse = error.by_inverse - correlate(by_column, self._divided(self.column), len(self.inverse))
        return np.asarray(by_inverse[1:] @ self._basis)

    def _divided(self, numerator: np.ndarray) -> np.ndarray:
        # Imported here: it would double the time of `import tff_mf`.
        from scipy.signal import lfilter

        return np.asarray(lfilter([1.0], self.inverse, numerator))


class _Error:
    """The error of Σ_s≤t f_s·(row s of LtToep(e)z), as `LogMean`, with its gradients by f and by e.

    Rows s and s + a share the draws 0, …, s, with the products e_i·e_{i+a} for i ≤ s as weights.
    """

    def __init__(self, inverse: np.ndarray, factors: np.ndarray, power: int) -> None:
        rounds, bands = len(factors), len(inverse)
        added = np.zeros(rounds)
        covariances = []
        for apart in range(bands):
            products = inverse[: bands - apart] * inverse[apart:]
            covariance = np.cumsum(np.pad(products, (0, max(0, rounds - len(products)))))[: rounds - apart]
            covariances.append((2 if apart else 1) * covariance)
            added[apart:] += covariances[apart] * factors[: rounds - apart] * factors[apart:]
        self.log_value, growth = LogMean.of(added, power)
        self.by_factor, self.by_inverse = np.zeros(rounds), np.zeros(bands)
        for apart, covariance in enumerate(covariances):
            early, late = factors[: rounds - apart], factors[apart:]
            self.by_factor[: rounds - apart] += growth[apart:] * covariance * late
            self.by_factor[apart:] += growth[apart:] * covariance * early
            by_product = (2 if apart else 1) * np.cumsum((growth[apart:] * early * late)[::-1])[::-1][: bands - apart]
            self.by_inverse[: bands - apart] += by_product * inverse[apart:]
            self.by_inverse[apart:] += by_product * inverse[: bands - apart]


def optimize_scaled_inverse(
    *, rounds: int, bands: int, participation: Participation, objective: str = "rms"
) -> ScaledInverse:
    """Returns a banded inverse with scaled columns whose RmsLoss or MaxLoss for prefix sums is small.

    As in `optimize_scaled_blt`, columns of one participation have equal norms, and participations weigh less, or not
    more, the later they come. The inverse and these weights are found together, by BFGS for functions with kinks, from
    the best banded inverse (`optimize_banded_inverse`), whose scales are 1; that is returned if it is better, or if
    clients take part more than 40 times. For "max" the maximum is approached by means of powers.

    The `history` in `optimized_for.search` has the loss, or the mean of powers in it, after each iteration, and its
    `gradient_norm` is the gain of the last iterations.

    Args:
        rounds: Number of rounds n, at most 16,384.
        bands: Number of diagonals of C⁻¹, at most `rounds`; if more than 1,024 are asked for, the result has 1,024.
        participation: The participation schema.
        objective: "rms" for RmsLoss, "max" for MaxLoss.

    Source: ours, over Kalinin, McKenna, Upadhyay and Lampert (2025), "Back to square roots"; see
    docs/explanation/mechanisms.md.

    Example:
        >>> from tff_mf import MinSep, rms_loss
        >>> participation = MinSep(min_sep=64, max_participations=8)
        >>> found = optimize_scaled_inverse(rounds=512, bands=8, participation=participation)
        >>> round(rms_loss(found, 512, participation), 2)
        9.65

    Raises:
        InputTypeError: If an argument is of the wrong type.
        InputValueError: If an argument is out of range, or the participations do not fit in `rounds`.
    """
    began = time.perf_counter()
    validation.dense(validation.whole("rounds", rounds))
    unscaled = optimize_banded_inverse(rounds=rounds, bands=bands, participation=participation, objective=objective)
    optimized_for = unscaled.optimized_for
    assert optimized_for is not None
    assert optimized_for.search is not None
    start = _descent.nothing_to_choose(np.log(optimized_for.search.loss))._replace(
        iterations=optimized_for.search.iterations, gradient_norm=optimized_for.search.gradient_norm
    )
    same = ScaledInverse(inverse_column=unscaled.inverse_column, scales=[1.0] * rounds, optimized_for=optimized_for)
    same = with_descent(same, start, objective, began)
    if participation.max_participations > MOST_PARTICIPATIONS:
        return same
    loss = ScaledInverseLoss(optimized_for, np.array(unscaled.inverse_column))
    variables = np.append(np.zeros(len(loss.basis)), np.full(loss.falls, np.log(FIRST_FALL)))
    found = loss.minimized(start._replace(variables=variables), POWERS[objective])
    scaled = with_descent(loss.mechanism(found.variables), found, objective, began)
    return min(same, scaled, key=_descent.loss_of)
