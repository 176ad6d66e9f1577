"""Sets of squared column norms of C that all have one sensitivity, each parametrized without constraints.

If C has at most `min_sep` bands, its squared sensitivity is the largest sum of squared column norms d over a
participation pattern. In every set here it is the largest number of participations k, as for d = 1.
"""

from typing import Protocol

import numpy as np

from tff_mf.mechanisms import OptimizedFor
from tff_mf.participation import FixedEpoch

# Share of equal norms in the first norms tried for min-sep participation.
_SHARED = 0.3


class ColumnNorms(Protocol):
    """A set of squared column norms d, and variables for it."""

    def start(self) -> np.ndarray:
        """Returns the first variables to try, float64 `[variables]`."""
        ...

    def squared(self, variables: np.ndarray) -> np.ndarray:
        """Returns d, float64 `[rounds]`."""
        ...

    def gradient(self, variables: np.ndarray, by_squared: np.ndarray) -> np.ndarray:
        """Returns the gradient with respect to the variables, given that with respect to d."""
        ...

    def refined(self, coarse: "ColumnNorms", variables: np.ndarray) -> np.ndarray:
        """Returns variables whose d resembles the d of `variables` in a set of the same kind over fewer rounds."""
        ...


def column_norms(optimized_for: OptimizedFor, *, unit: bool) -> ColumnNorms:
    """Returns all norms that the schema allows, or d = 1, which is optimal for one participation."""
    if unit or optimized_for.participation.max_participations == 1:
        return _UnitNorms(optimized_for)
    return (
        _EpochNorms(optimized_for)
        if isinstance(optimized_for.participation, FixedEpoch)
        else _WindowNorms(optimized_for)
    )


class _UnitNorms:
    def __init__(self, optimized_for: OptimizedFor) -> None:
        self._rounds = optimized_for.rounds

    def start(self) -> np.ndarray:
        return np.zeros(0)

    def squared(self, variables: np.ndarray) -> np.ndarray:
        del variables
        return np.ones(self._rounds)

    def gradient(self, variables: np.ndarray, by_squared: np.ndarray) -> np.ndarray:
        del by_squared
        return np.zeros_like(variables)

    def refined(self, coarse: ColumnNorms, variables: np.ndarray) -> np.ndarray:
        del coarse
        return variables


class _EpochNorms:
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


class _WindowNorms:
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
