"""The error of a banded C and its gradient, in O(rounds · bands²); column norms that all have one sensitivity."""

from typing import NamedTuple

import numpy as np

from tff_mf.base.errors import InputValueError
from tff_mf.mechanisms import OptimizedFor
from tff_mf.problem.participation import FixedEpoch
from tff_mf.problem.workloads import LearningRates, Momentum, MomentumWithRates, PrefixSum, Workload

# A workload with a rate of 0 has no inverse. In the search, rates are at least this share of the largest.
_SMALLEST_RATE = 1e-3


def inverse_diagonals(workload: Workload, rounds: int) -> np.ndarray:
    """Returns the diagonals of A⁻¹, float64 `[few, rounds]`: entry `[i, t]` belongs to row t + i and column t.

    Raises:
        InputValueError: If A has no inverse.
    """
    if isinstance(workload, PrefixSum):
        return _of_sgd(np.ones(rounds), 0.0)
    if isinstance(workload, Momentum):
        return _of_sgd(np.ones(rounds), workload.momentum)
    if isinstance(workload, LearningRates):
        rates = workload.listed(rounds)
        if not np.any(rates):
            raise InputValueError(f"workload={workload!r} has no rate above 0: every mechanism has the same error.")
        momentum = workload.momentum if isinstance(workload, MomentumWithRates) else 0.0
        return _of_sgd(np.maximum(rates, _SMALLEST_RATE * rates.max()), momentum)
    return _of_matrix(workload.matrix(rounds))


def _of_sgd(rates: np.ndarray, momentum: float) -> np.ndarray:
    """Returns the diagonals of (1 − βS)·diag(1 / η)·(1 − S), where S shifts rows down by one."""
    inverse = 1 / rates
    following = np.append(inverse[1:], 0.0)
    diagonals = np.stack([inverse, -following - momentum * inverse, momentum * following])
    return diagonals if momentum else diagonals[:2]


def _of_matrix(matrix: np.ndarray) -> np.ndarray:
    from scipy.linalg import solve_triangular

    if not np.all(np.diagonal(matrix)):
        raise InputValueError("workload has a 0 on its main diagonal, and therefore no inverse.")
    inverse = solve_triangular(matrix, np.eye(len(matrix)), lower=True)
    diagonals = np.zeros_like(inverse)
    for offset in range(len(inverse)):
        diagonals[offset, : len(inverse) - offset] = np.diagonal(inverse, -offset)
    return diagonals


# Share of equal norms in the first norms tried for min-sep participation.
_SHARED = 0.3


class ColumnNorms:
    """A set of squared column norms d, and variables for it: d = 1 alone, and other sets as subclasses."""

    def __init__(self, optimized_for: OptimizedFor) -> None:
        self._rounds = optimized_for.rounds

    def start(self) -> np.ndarray:
        """Returns the first variables to try, float64 `[variables]`."""
        return np.zeros(0)

    def squared(self, variables: np.ndarray) -> np.ndarray:
        """Returns d, float64 `[rounds]`."""
        del variables
        return np.ones(self._rounds)

    def gradient(self, variables: np.ndarray, by_squared: np.ndarray) -> np.ndarray:
        """Returns the gradient with respect to the variables, given that with respect to d."""
        del by_squared
        return np.zeros_like(variables)

    def refined(self, coarse: "ColumnNorms", variables: np.ndarray) -> np.ndarray:
        """Returns variables whose d resembles the d of `variables` in a set of the same kind over fewer rounds."""
        del coarse
        return variables


def column_norms(optimized_for: OptimizedFor, *, unit: bool) -> ColumnNorms:
    """Returns all norms that the schema allows, or d = 1, which is optimal for one participation."""
    if unit or optimized_for.participation.max_participations == 1:
        return ColumnNorms(optimized_for)
    return (
        _EpochNorms(optimized_for)
        if isinstance(optimized_for.participation, FixedEpoch)
        else _WindowNorms(optimized_for)
    )


class _EpochNorms(ColumnNorms):
    """For clients at fixed places in epochs: for each place, d adds up to k over k epochs.

    After k epochs d repeats, so that it adds up to k over any k consecutive epochs. Source: Choquette-Choo et al.
    (2023), proposition B.1.
    """

    def __init__(self, optimized_for: OptimizedFor) -> None:
        schema = optimized_for.participation
        self._most, self._places, self._rounds = schema.max_participations, schema.min_sep, optimized_for.rounds
        epochs = np.arange(schema.max_participations)[:, None]
        self._reached = epochs * schema.min_sep + np.arange(schema.min_sep) < optimized_for.rounds

    def start(self) -> np.ndarray:
        return np.zeros(self._reached.size)

    def squared(self, variables: np.ndarray) -> np.ndarray:
        return np.resize(self._most * self._shares(variables), self._rounds)

    def gradient(self, variables: np.ndarray, by_squared: np.ndarray) -> np.ndarray:
        period = self._reached.size
        repeats = -(-self._rounds // period)
        whole = np.concatenate([by_squared, np.zeros(repeats * period - self._rounds)])
        by_shares = self._most * whole.reshape(repeats, *self._reached.shape).sum(axis=0)
        shares = self._shares(variables)
        return (shares * (by_shares - np.sum(shares * by_shares, axis=0))).ravel()

    def refined(self, coarse: ColumnNorms, variables: np.ndarray) -> np.ndarray:
        assert isinstance(coarse, _EpochNorms)
        return resampled(variables.reshape(coarse._reached.shape), self._places, axis=1).ravel()

    def _shares(self, variables: np.ndarray) -> np.ndarray:
        grid = np.where(self._reached, variables.reshape(self._reached.shape), -np.inf)
        powers = np.exp(grid - grid.max(axis=0, where=self._reached, initial=-np.inf))
        return powers / powers.sum(axis=0)


class _WindowNorms(ColumnNorms):
    """For min-sep participation: d is y plus the sum of y_w over the windows w of b rounds that contain the round.

    With y ≥ 0 and Σ y_w + k·y = k, no pattern has a sum above k: it has at most one round in a window, and at most k
    rounds. This covers all allowed norms: the largest sum is a linear program whose matrix, with rows of consecutive
    ones, is totally unimodular, and every y is a solution of its dual.
    """

    def __init__(self, optimized_for: OptimizedFor) -> None:
        schema = optimized_for.participation
        self._most, self._width = schema.max_participations, min(schema.min_sep, optimized_for.rounds)
        self._windows = optimized_for.rounds - self._width + 1

    def start(self) -> np.ndarray:
        return np.append(np.full(self._windows, np.sqrt((1 - _SHARED) / self._windows)), np.sqrt(_SHARED))

    def squared(self, variables: np.ndarray) -> np.ndarray:
        shares = np.square(variables) / np.sum(np.square(variables))
        sums = np.convolve(shares[:-1], np.ones(self._width))
        return self._most * sums + shares[-1]

    def gradient(self, variables: np.ndarray, by_squared: np.ndarray) -> np.ndarray:
        total = np.sum(np.square(variables))
        shares = np.square(variables) / total
        by_windows = self._most * np.correlate(by_squared, np.ones(self._width), mode="valid")
        by_shares = np.append(by_windows, by_squared.sum())
        return 2 * variables * (by_shares - shares @ by_shares) / total

    def refined(self, coarse: ColumnNorms, variables: np.ndarray) -> np.ndarray:
        assert isinstance(coarse, _WindowNorms)
        ratio = np.sqrt(coarse._windows / self._windows)
        return np.append(ratio * resampled(variables[:-1], self._windows, axis=0), variables[-1])


def resampled(values: np.ndarray, length: int, *, axis: int) -> np.ndarray:
    """Returns the values interpolated linearly to `length` values along an axis."""
    places = np.linspace(0, values.shape[axis] - 1, length)
    left = np.minimum(places.astype(int), max(values.shape[axis] - 2, 0))
    shape = [1] * values.ndim
    shape[axis] = length
    weight = (places - left).reshape(shape)
    right = np.minimum(left + 1, values.shape[axis] - 1)
    return (1 - weight) * np.take(values, left, axis=axis) + weight * np.take(values, right, axis=axis)


# Rounds by which the window of errors advances: products of small matrices are slow, and long blocks waste work.
_BLOCK = 96


class BandedError:
    """Sum over rounds of the variance of A·C⁻¹z, and its gradient with respect to the diagonals of C.

    The errors x = A·C⁻¹z satisfy M·x = z with M = C·A⁻¹, which is banded if A⁻¹ is: given as many errors as M has bands
    below its diagonal, the next ones are a linear function of them and of fresh noise. The covariance of a window of
    errors therefore advances block by block, by matrix products. No matrix of size [rounds, rounds] is formed. The
    gradient comes from the same recursion run backwards.

    Diagonals are stored as in LAPACK: row l, column j holds the entry (j + l, j).
    """

    def __init__(self, workload_inverse: np.ndarray) -> None:
        """Takes the diagonals of A⁻¹, float64 `[few, rounds]`."""
        self._inverse = workload_inverse

    def __call__(self, diagonals: np.ndarray) -> tuple[float, np.ndarray]:
        """Returns the sum of variances and its gradient for the diagonals of C, float64 `[bands, rounds]`."""
        bands, rounds = diagonals.shape
        extra = len(self._inverse) - 1
        reach = max(bands - 1 + extra, 1)
        product = np.zeros((reach + 1, reach + rounds))
        for step, row in enumerate(self._inverse):
            product[step : step + bands, reach : reach + rounds - step] += diagonals[:, step:] * row[: rounds - step]
        value, product_gradient = _sum_of_variances(product, reach, rounds)
        gradient = np.zeros_like(diagonals)
        for step, row in enumerate(self._inverse):
            by_product = product_gradient[step : step + bands, reach : reach + rounds - step]
            gradient[:, step:] += by_product * row[: rounds - step]
        return value, gradient


class _Step(NamedTuple):
    """The intermediate results of one block of rounds that the gradient needs.

    Attributes:
        start: Its first round.
        window: Covariance of the errors before it, `[reach, reach]`.
        weights: K, so that the block is R·z − K·window, `[block, reach]`.
        noise: R, the inverse of the diagonal block of M, `[block, block]`.
    """

    start: int
    window: np.ndarray
    weights: np.ndarray
    noise: np.ndarray


def _sum_of_variances(product: np.ndarray, reach: int, rounds: int) -> tuple[float, np.ndarray]:
    """Returns tr((MᵀM)⁻¹) and its gradient, in the padded layout of `product`."""
    import scipy.linalg

    rows = _by_rows(product, reach, rounds)
    window = np.zeros((reach, reach))
    steps: list[_Step] = []
    total = 0.0
    for start in range(0, rounds, min(_BLOCK, reach)):
        dense = _dense(rows[start : start + min(_BLOCK, reach)])
        size = len(dense)
        noise = scipy.linalg.solve_triangular(dense[:, reach:], np.eye(size), lower=True, check_finite=False)
        weights = noise @ dense[:, :reach]
        steps.append(_Step(start, window, weights, noise))
        cross = weights @ window
        inside = noise @ noise.T + cross @ weights.T
        total += np.trace(inside)
        moved = np.empty_like(window)
        moved[: reach - size, : reach - size] = window[size:, size:]
        moved[reach - size :, : reach - size] = -cross[:, size:]
        moved[: reach - size, reach - size :] = -cross[:, size:].T
        moved[reach - size :, reach - size :] = inside
        window = moved
    return float(total), _gradient(steps, reach, rounds)


def _gradient(steps: list[_Step], reach: int, rounds: int) -> np.ndarray:
    gradient = np.zeros((reach + 1, reach + rounds))
    rows = _by_rows(gradient, reach, rounds)
    adjoint = np.zeros((reach, reach))
    for start, window, weights, noise in reversed(steps):
        size = len(noise)
        inside = adjoint[reach - size :, reach - size :] + np.eye(size)
        own = inside @ weights
        across = own.copy()
        across[:, size:] -= adjoint[reach - size :, : reach - size]
        by_weights = 2 * (across @ window)
        by_dense = np.empty((size, reach + size))
        by_dense[:, :reach] = noise.T @ by_weights
        by_dense[:, reach:] = -(noise.T @ (by_weights @ weights.T + 2 * inside @ (noise @ noise.T)))
        rows[start : start + size] = _skewed(by_dense)
        # Half of KᵀΛK belongs to either side of the symmetric update.
        update = weights.T @ (across - 0.5 * own)
        moved = update + update.T
        moved[size:, size:] += adjoint[: reach - size, : reach - size]
        adjoint = moved
    return gradient


def _by_rows(padded: np.ndarray, reach: int, rounds: int) -> np.ndarray:
    """Returns a view of diagonals as rows of M: entry (i, t) belongs to row i and column i − reach + t.

    `padded` has `reach` additional columns on the left, so that these columns exist from the first round on.
    """
    step = padded.itemsize
    return np.lib.stride_tricks.as_strided(
        padded[reach:], (rounds, reach + 1), (step, step - padded.strides[0]), writeable=True
    )


def _dense(rows: np.ndarray) -> np.ndarray:
    """Returns rows of a banded matrix in their columns: each row starts one column after the previous one."""
    size, width = rows.shape
    dense = np.zeros((size, width - 1 + size))
    _skewed(dense)[:] = rows
    return dense


def _skewed(dense: np.ndarray) -> np.ndarray:
    """Returns a view of the band of a result of `_dense`, `[size, width]`."""
    size, width = dense.shape
    step = dense.itemsize
    return np.lib.stride_tricks.as_strided(dense, (size, width - size + 1), (dense.strides[0] + step, step))
