"""Losses of Toeplitz mechanisms as functions of the coefficients of C⁻¹, with gradients, and with slopes at kinks."""

import numpy as np

from tff_mf.mechanisms import OptimizedFor
from tff_mf.optimize import _kinks
from tff_mf.optimize._descent import Value
from tff_mf.optimize._toeplitz_loss import correlate, log_product, weights
from tff_mf.sensitivities import sums, toeplitz
from tff_mf.workloads import ToeplitzWorkload

# Sums of squares of larger coefficients overflow.
_LARGEST = 1e100


class InverseLoss:
    """Log of MaxLoss or RmsLoss of C = LtToep(d)⁻¹ for a Toeplitz workload, for any d with d_0 = 1.

    The sensitivity in it is ‖M·1_π‖ for the earliest pattern π, where M = LtToep(m) and

        m_i = max over j ≥ i of |c_j|   in general, an upper bound, exact where c ≥ 0 never rises;
        m_i = |c_i|                     for one participation (exact) or fixed epochs (exact where c ≥ 0).

    For fixed epochs ‖Cu‖² ≤ Σ_{s,t∈π} |CᵀC|_st ≤ Σ_{s,t∈π} (|C|ᵀ|C|)_st, which is largest for the earliest π, because
    later columns of a Toeplitz matrix are shorter. `tff_mf.sensitivity`, with which privacy is accounted, is never
    larger than this.

    The loss is continuous in d, and grows with |d| without bound if A has an inverse, because sens ≥ c_0 = 1. It
    attains its minimum, and its domain has no boundary. It has kinks where two of the |c_j| in m are equal.
    """

    def __init__(self, optimized_for: OptimizedFor, objective: str) -> None:
        """Takes the setting, whose workload must be Toeplitz, and "rms" or "max"."""
        assert isinstance(optimized_for.workload, ToeplitzWorkload)
        self.optimized_for = optimized_for
        self.objective = objective
        self.workload = optimized_for.workload.coefficients(optimized_for.rounds)
        self._weights = weights(optimized_for.rounds, objective)
        schema = optimized_for.participation
        self._may_rise = schema.max_participations == 1 or toeplitz.sums_epochs(schema, optimized_for.rounds)

    def __call__(self, inverse: np.ndarray) -> Value:
        """Returns log(loss) for d, float64 `[bands]`, and its gradient, at a kink from one side.

        The loss is infinite where C is so large that its squares may overflow.
        """
        error, column = self._error(inverse), self._column(inverse)
        if not np.all(np.abs(column) < _LARGEST):
            return Value(np.inf, np.zeros(len(inverse)))
        bound = self._bound(column)
        total = self._over_pattern(bound[::-1])[::-1]
        mass = 2 * self._over_pattern(total)
        by_column = np.sign(column) * np.bincount(_owners(column, bound), mass, minlength=len(column))
        by_inverse = self._by_inverse(by_column, inverse, column)
        return log_product(error, Value(float(total @ total), by_inverse))

    def slope(self, inverse: np.ndarray, basis: np.ndarray) -> float:
        """Returns the largest entry of the smallest generalized gradient of log(loss) at d.

        Away from kinks that is the gradient. At or near a kink, gradients of the pieces that meet there are mixed.

        Args:
            inverse: d, float64 `[bands]`.
            basis: Directions of the slope: changes of d_1, …, float64 `[bands − 1, variables]`.
        """
        error, column = self._error(inverse), self._column(inverse)
        bound = self._bound(column)
        total = self._over_pattern(bound[::-1])[::-1]
        mass = self._over_pattern(total) / (total @ total)
        found = _kinks.ties(np.abs(column), bound, mass, may_rise=self._may_rise)
        at_kinks, others = _kinks.split(found)
        by_column = np.zeros(len(column))
        by_column[others.places] = np.sign(column[others.places]) * others.held
        by_inverse = error.gradient / (2 * error.value) + self._by_inverse(by_column, inverse, column)
        # δ(1 / d) = −δd / d², so that the derivative of c_j with respect to d_l is entry j − l of −1 / d².
        lags = np.arange(1, len(inverse))
        powers = np.append(np.zeros(len(lags)), self._expanded(column, inverse))
        gradients = -powers[at_kinks.places[:, None] - lags + len(lags)] @ basis
        signs = np.where(column[at_kinks.places] < 0, -1.0, 1.0)
        return _kinks.least_gradient(by_inverse[1:] @ basis, signs[:, None] * gradients, at_kinks)

    def whitening(self, bands: int) -> np.ndarray:
        """Returns directions of d_1, … in which the squared error has curvature 2, float64 `[bands − 1, bands − 1]`."""
        from scipy.linalg import LinAlgError, cholesky, solve_triangular

        gram = self._gram(bands)[1:, 1:]
        ridge = 1e-14 * np.trace(gram)
        while True:
            try:
                root = cholesky(gram + ridge * np.eye(len(gram)))
            except LinAlgError:
                ridge *= 100
            else:
                return solve_triangular(root, np.eye(len(gram)))

    def error(self, inverse: np.ndarray) -> float:
        """Returns the root of the squared error."""
        return self._error(inverse).value ** 0.5

    def _error(self, inverse: np.ndarray) -> Value:
        decoder = np.convolve(self.workload, inverse)[: len(self.workload)]
        weighted = self._weights * decoder
        return Value(float(weighted @ decoder), 2 * correlate(weighted, self.workload, len(inverse)))

    def _column(self, inverse: np.ndarray) -> np.ndarray:
        return self._expanded(np.eye(1, len(self.workload))[0], inverse)

    def _expanded(self, numerator: np.ndarray, inverse: np.ndarray) -> np.ndarray:
        """Returns a(x) / d(x): `series.quotient`, by a loop in C."""
        # Imported here: it would double the time of `import tff_mf`.
        from scipy.signal import lfilter

        return np.asarray(lfilter([1.0], inverse, numerator))

    def _by_inverse(self, by_column: np.ndarray, inverse: np.ndarray, column: np.ndarray) -> np.ndarray:
        return -correlate(by_column, self._expanded(column, inverse), len(inverse))

    def _bound(self, column: np.ndarray) -> np.ndarray:
        sizes = np.abs(column)
        return sizes if self._may_rise else np.maximum.accumulate(sizes[::-1])[::-1]

    def _over_pattern(self, values: np.ndarray) -> np.ndarray:
        schema = self.optimized_for.participation
        return sums.window_sums(values, width=schema.max_participations, stride=schema.min_sep)

    def _gram(self, bands: int) -> np.ndarray:
        """Returns the Q with error² = dᵀQd, float64 `[bands, bands]`, in O(rounds · bands).

        Q_jl sums a_{i−j}·a_{i−l} over the rounds i with their weights. Along a diagonal of Q only the terms of the last
        rounds drop out, so that each diagonal is a running sum.
        """
        rounds = len(self.workload)
        gram = np.empty((bands, bands))
        for apart in range(bands):
            products = self.workload[apart:] * self.workload[: rounds - apart]
            places = np.arange(bands - apart)
            sums = np.cumsum(products)[rounds - apart - 1 - places]
            if self.objective == "rms":
                weighted = np.cumsum(np.cumsum(products) / rounds)
                sums = weighted[rounds - apart - 1 - places]
            gram[places, places + apart] = gram[places + apart, places] = sums
        return gram


def _owners(column: np.ndarray, bound: np.ndarray) -> np.ndarray:
    """Returns the first j ≥ i with |c_j| = m_i for each i."""
    places = np.where(np.abs(column) >= bound, np.arange(len(column)), len(column))
    return np.minimum.accumulate(places[::-1])[::-1]
