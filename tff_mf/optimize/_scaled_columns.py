"""The loss of C = LtToep(c)·diag(d) with the column c and the scales d chosen together."""

import abc
import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np

from tff_mf.mechanisms import OptimizedFor
from tff_mf.optimize import _descent
from tff_mf.optimize._descent import Descent, Value
from tff_mf.problem.participation import FixedEpoch

# MaxError is approached by means of these powers of the squared errors; RmsError is the mean of their first power.
POWERS = {"rms": (1,), "max": (8, 128, 2048)}
# Of the log of weights from one participation to the next, where the search starts.
FIRST_FALL = 0.05
# The bound of columns of both signs takes entries of CᵀC at this many distances within an epoch. It takes one for each
# pair of participations, so that columns of both signs are not searched for more participations.
_DISTANCES = 24
MOST_PARTICIPATIONS = 40

_ITERATIONS = 500
_KINKED_ITERATIONS, _KINKED_TOLERANCE, _LAST = 150, 1e-5, 9


class LogMean(NamedTuple):
    """Half the log of the mean of powers of squared errors.

    Attributes:
        value: The value.
        growth: How it grows with what round t adds to the squared errors of its round and of all later ones.
    """

    value: float
    growth: np.ndarray

    @classmethod
    def of(cls, added: np.ndarray, power: int) -> "LogMean":
        """Takes what each round adds to the squared errors."""
        squares = np.cumsum(added)
        shares = (squares / squares.max()) ** power
        mean = shares.mean()
        value = 0.5 * float(np.log(squares.max()) + np.log(mean) / power)
        return cls(value, 0.5 * np.cumsum((shares / squares)[::-1])[::-1] / (mean * len(squares)))


class Error(Protocol):
    """The error of Σ_s≤t f_s·(row s of LtToep(c)⁻¹z), as `LogMean`, and its gradient by the factors f."""

    log_value: float
    by_factor: np.ndarray


class Matrix(Protocol):
    """LtToep(c) at some variables."""

    column: np.ndarray

    def error(self, factors: np.ndarray, power: int) -> Error:
        """Returns the error for factors, float64 `[rounds]`."""

    def gradient(self, by_column: np.ndarray, error: Any) -> np.ndarray:
        """Returns the gradient by the variables, from the one by c and an error that this matrix gave."""


class ScaledColumnsLoss(abc.ABC):
    """log(MaxLoss) or log(RmsLoss) of LtToep(c)·diag(d) for prefix sums, and its gradient.

    d_t = a_t / ‖column t of LtToep(c)‖, where a never rises, and may fall every b rounds up to the last participation.
    If c ≥ 0 never rises, no entry of CᵀC is larger than in the earliest pattern, for columns have equal norms between
    two falls, and the sensitivity is ‖Cu‖ for it. Otherwise it is the bound of `sensitivities.scaled_columns`, of the
    entries at some distances. It has kinks.

    It is called with the power of squared errors whose mean is taken: 1 for RmsLoss, and large for nearly MaxLoss.
    Variables are those of c, and the logarithms of how far log(a) falls before each participation but the first.

    Args:
        optimized_for: The setting.
        kinked: Whether c may have both signs, or rise.
    """

    def __init__(self, optimized_for: OptimizedFor, *, kinked: bool) -> None:
        rounds, participation = optimized_for.rounds, optimized_for.participation
        self.optimized_for, self.kinked = optimized_for, kinked
        self.rounds = rounds
        self._starts = np.arange(0, rounds, participation.min_sep)[: participation.max_participations]
        self._epochs = np.searchsorted(self._starts, np.arange(rounds), side="right") - 1
        step = (
            participation.min_sep if isinstance(participation, FixedEpoch) else -(-participation.min_sep // _DISTANCES)
        )
        apart = (self._starts[1:, np.newaxis] + np.arange(0, participation.min_sep, step)).ravel()
        self._apart = apart[apart < rounds]

    @abc.abstractmethod
    def matrix(self, own: np.ndarray) -> Matrix:
        """Returns LtToep(c) for the variables of c."""

    @property
    def falls(self) -> int:
        """Number of variables beside those of c."""
        return len(self._starts) - 1

    def own(self, variables: np.ndarray) -> np.ndarray:
        """Returns the variables of c."""
        return variables[: len(variables) - self.falls]

    def scales(self, variables: np.ndarray, column: np.ndarray) -> np.ndarray:
        """Returns d for c, its first entry 1."""
        scales = self._weights(variables)[self._epochs] / _norms(column)
        return np.asarray(scales / scales[0])

    def __call__(self, variables: np.ndarray, power: int) -> Value:
        """Returns log(loss) and its gradient, of the length of `variables`."""
        matrix = self.matrix(self.own(variables))
        column = matrix.column
        norms, weights = _norms(column), self._weights(variables)[self._epochs]
        factors = norms / weights
        error = matrix.error(factors, power)
        sensitivity = self._largest_entries if self.kinked else self._earliest_pattern
        squared, by_column, by_scale = sensitivity(column, weights / norms)

        by_log_scale = 0.5 * by_scale / squared / factors - error.by_factor * factors
        by_column = 0.5 * by_column / squared - column * np.cumsum(by_log_scale / norms**2)[::-1]
        by_epoch = np.bincount(self._epochs, by_log_scale)
        by_fall = -np.cumsum(by_epoch[::-1])[::-1][1:] * self._falls(variables)
        gradient = np.append(matrix.gradient(by_column, error), by_fall)
        return Value(error.log_value + 0.5 * np.log(squared), gradient)

    def minimized(self, found: Descent, powers: Sequence[int]) -> Descent:
        """Goes on from where a search ended, for one power after the other."""
        for power in powers:
            at_power = functools.partial(self, power=power)
            if self.kinked:
                end = _along_kinks(at_power, found.variables)
            else:
                end = _descent.descend(at_power, found.variables, iterations=_ITERATIONS)
            found = end._replace(iterations=found.iterations + end.iterations, history=found.history + end.history)
        return found

    def _weights(self, variables: np.ndarray) -> np.ndarray:
        return np.exp(-np.cumsum(np.append(0.0, self._falls(variables))))

    def _falls(self, variables: np.ndarray) -> np.ndarray:
        return np.exp(variables[len(variables) - self.falls :])

    def _earliest_pattern(self, column: np.ndarray, scales: np.ndarray) -> tuple[float, np.ndarray, np.ndarray]:
        """Returns ‖Cu‖² for the earliest pattern, and its gradients by the column and the scales."""
        total, by_column, by_scale = (np.zeros(self.rounds) for _ in range(3))
        for start in self._starts:
            total[start:] += scales[start] * column[: self.rounds - start]
        for start in self._starts:
            by_column[: self.rounds - start] += 2 * scales[start] * total[start:]
            by_scale[start] = 2 * (total[start:] @ column[: self.rounds - start])
        return float(total @ total), by_column, by_scale

    def _largest_entries(self, column: np.ndarray, scales: np.ndarray) -> tuple[float, np.ndarray, np.ndarray]:
        """Returns the sum of the largest |X_st| over s ≥ ib, t − s ≥ (j − i)b for all i, j, and its gradients."""
        entries = np.zeros((len(self._apart), self.rounds))
        for row, apart in zip(entries, self._apart, strict=True):
            left = self.rounds - apart
            row[:left] = np.cumsum(column[:left] * column[apart:])[::-1] * scales[:left] * scales[apart:]
        sizes = np.abs(entries)
        own = _norms(column) * scales
        total = float(np.sum(np.square(own[self._starts])))
        # With columns of equal norms from one start to the next, the norm at a start is the largest from there on.
        by_column, by_scale = np.zeros(self.rounds), np.zeros(self.rounds)
        for start in self._starts:
            by_column[: self.rounds - start] += 2 * scales[start] ** 2 * column[: self.rounds - start]
            by_scale[start] = 2 * own[start] ** 2 / scales[start]
        places: dict[tuple[int, int], int] = {}
        for epochs, distance in enumerate(self._starts[1:], 1):
            first = int(np.searchsorted(self._apart, distance))
            largest = sizes[first:].max(axis=0)
            for start in self._starts[:-epochs]:
                s = start + int(np.argmax(largest[start:]))
                row = first + int(np.argmax(sizes[first:, s]))
                places[row, s] = places.get((row, s), 0) + 2
        for (row, s), count in places.items():
            t = s + int(self._apart[row])
            left, size = self.rounds - t, sizes[row, s]
            total += count * size
            by_scale[[s, t]] += count * size / scales[[s, t]]
            factor = np.sign(entries[row, s]) * count * scales[s] * scales[t]
            by_column[:left] += factor * column[t - s :][:left]
            by_column[t - s :][:left] += factor * column[:left]
        return total, by_column, by_scale


def _norms(column: np.ndarray) -> np.ndarray:
    """Returns the norm of each column of LtToep(column)."""
    return np.sqrt(np.cumsum(np.square(column))[::-1])


def _along_kinks(loss: Callable[[np.ndarray], Value], start: np.ndarray) -> Descent:
    # Decays may coincide, or C overflow, in a step that is too long; the line search then turns back.
    with np.errstate(all="ignore"):
        path = _descent.bfgs(loss, start, iterations=_KINKED_ITERATIONS, tolerance=_KINKED_TOLERANCE)
    return Descent(
        variables=path.variables,
        log_loss=path.values[-1],
        gradient_norm=float(path.values[-_LAST:][0] - path.values[-1]),
        iterations=len(path.values) - 1,
        ended=path.ended,
        ending="no step lowers the loss" if path.ended else "iteration limit reached",
        history=tuple(np.exp(path.values[1:]).tolist()),
    )
