"""The search for the banded inverse with the least loss."""

from typing import NamedTuple

import numpy as np

from tff_mf.mechanisms import series
from tff_mf.optimize import _kinks
from tff_mf.optimize._descent import Descent, Value, nothing_to_choose
from tff_mf.optimize._inverse_loss import InverseLoss

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
        path = _kinks.bfgs(along, start, iterations=effort.iterations, tolerance=effort.tolerance)
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
