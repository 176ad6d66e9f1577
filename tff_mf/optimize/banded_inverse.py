"""Optimizer of Toeplitz matrices with a banded inverse."""

import time
from typing import NamedTuple

import numpy as np

from tff_mf.mechanisms import BandedInverse, OptimizedFor, series
from tff_mf.optimize import _descent
from tff_mf.optimize._descent import Descent, Value, nothing_to_choose, with_descent
from tff_mf.optimize.banded_toeplitz import checked_arguments, correlate, log_product, weights
from tff_mf.problem.participation import Participation
from tff_mf.problem.workloads import ToeplitzWorkload
from tff_mf.sensitivities import sums, toeplitz

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
        found = _descent.ties(np.abs(column), bound, mass, may_rise=self._may_rise)
        at_kinks, others = _descent.split(found)
        by_column = np.zeros(len(column))
        by_column[others.places] = np.sign(column[others.places]) * others.held
        by_inverse = error.gradient / (2 * error.value) + self._by_inverse(by_column, inverse, column)
        # δ(1 / d) = −δd / d², so that the derivative of c_j with respect to d_l is entry j − l of −1 / d².
        lags = np.arange(1, len(inverse))
        powers = np.append(np.zeros(len(lags)), self._expanded(column, inverse))
        gradients = -powers[at_kinks.places[:, None] - lags + len(lags)] @ basis
        signs = np.where(column[at_kinks.places] < 0, -1.0, 1.0)
        return _descent.least_gradient(by_inverse[1:] @ basis, signs[:, None] * gradients, at_kinks)

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


# Time and memory of the search grow with the square of the bands.
MOST_BANDS = 1024

# With more bands, fewer starts are tried: valleys differ little then.
_MANY_BANDS = 64

# A search that ended with a larger slope is started again from its end, as long as that lowers the loss.
_FLAT = 1e-4
_RESTARTS = 3


class _Effort(NamedTuple):
    """How long to search: largest number of iterations, and the gain in log(loss) below which one gains nothing."""

    iterations: int
    tolerance: float


_BRIEF = _Effort(iterations=60, tolerance=1e-5)
_FULL = _Effort(iterations=1000, tolerance=1e-8)


class _End(NamedTuple):
    """The end of a search: d, log(loss) at the start and after each iteration, and whether it ended by itself."""

    inverse: np.ndarray
    values: list[float]
    ended: bool


def best_inverse(loss: InverseLoss, bands: int) -> Descent:
    """Returns the best d_1, …, d_{b̂−1} for d_0 = 1, as `variables`, and how the search for it ended.

    Because of kinks the loss has several valleys. Brief searches start from the inverse square roots of the workload
    and of prefix sums, from uncorrelated noise, and from the best result for half as many bands; the two that end
    lowest are continued.
    """
    if bands == 1:
        return nothing_to_choose(loss(np.ones(1)).value)
    return _Searches(loss).best(bands)


class _Searches:
    """Searches in one setting, with a count of their iterations."""

    def __init__(self, loss: InverseLoss) -> None:
        self._loss = loss
        self._iterations = 0

    def best(self, bands: int) -> Descent:
        ends = self._brief_ends(bands)
        whitening = self._loss.whitening(bands)
        finished = [self._finished(end, whitening) for end in ends[: 2 if bands <= _MANY_BANDS else 1]]
        return min(finished, key=lambda found: found.log_loss)._replace(iterations=self._iterations)

    def _brief_ends(self, bands: int) -> list[_End]:
        """Returns the ends of the brief searches, lowest loss first."""
        starts = [_inverse_root(self._loss.workload[:bands])]
        if bands <= _MANY_BANDS:
            starts += [np.ones(1), series.square_root(bands)]
        if bands >= 4:
            starts.append(self._brief_ends(bands // 2)[0].inverse)
        distinct = dict.fromkeys(tuple(series.padded(start, bands)) for start in starts)
        whitening = self._loss.whitening(bands)
        ends = [self._searched(np.array(start), whitening, _BRIEF) for start in distinct]
        return sorted(ends, key=lambda end: end.values[-1])

    def _finished(self, end: _End, whitening: np.ndarray) -> Descent:
        """Returns the end of a search that continues a brief one."""
        values, slope = end.values, np.inf
        for _ in range(_RESTARTS):
            end = self._searched(end.inverse, whitening, _FULL)
            values = values + end.values[1:]
            slope = self._loss.slope(end.inverse, whitening * self._loss.error(end.inverse))
            if slope <= _FLAT or end.values[0] - end.values[-1] <= _FULL.tolerance:
                break
        return Descent(
            variables=end.inverse[1:],
            log_loss=values[-1],
            gradient_norm=slope,
            iterations=len(values) - 1,
            ended=end.ended,
            ending="no step lowers the loss" if end.ended else "iteration limit reached",
            history=tuple(float(value) for value in np.exp(values[1:])),
        )

    def _searched(self, inverse: np.ndarray, whitening: np.ndarray, effort: _Effort) -> _End:
        along = _Along(self._loss, inverse, whitening * self._loss.error(inverse))
        start = np.zeros(len(whitening))
        path = _descent.bfgs(along, start, iterations=effort.iterations, tolerance=effort.tolerance)
        self._iterations += len(path.values) - 1
        return _End(along.inverse(path.variables), path.values, path.ended)


class _Along:
    """The loss at d + basis · variables."""

    def __init__(self, loss: InverseLoss, inverse: np.ndarray, basis: np.ndarray) -> None:
        self._loss = loss
        self._inverse = inverse
        self._basis = basis

    def inverse(self, variables: np.ndarray) -> np.ndarray:
        """Returns d + basis · variables, with d_0 unchanged."""
        return self._inverse + np.append(0.0, self._basis @ variables)

    def __call__(self, variables: np.ndarray) -> Value:
        # C overflows after a step that is too long; the line search then turns back.
        with np.errstate(over="ignore", invalid="ignore"):
            value, by_inverse = self._loss(self.inverse(variables))
        return Value(value, by_inverse[1:] @ self._basis)


def _inverse_root(series: np.ndarray) -> np.ndarray:
    """Returns the coefficients of (a(x) / a_0)^(−1/2), or of 1 if a_0 is not above 0: by r² · a = a_0."""
    terms = len(series)
    root = np.eye(1, terms)[0]
    if not series[0] > 0:
        return root
    ratios = series / series[0]
    for order in range(1, terms):
        # y = a^(−1/2) has a·y' = −a'·y / 2.
        below = np.arange(order)
        weights = below + (order - below) / 2
        root[order] = -np.sum(weights * root[:order] * ratios[order:0:-1]) / order
    return root


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
