"""Search for Toeplitz matrices with the least error at (ε, δ) with balls in bins.

σ·error is minimized, where σ(C) is what (ε, δ) needs. σ² is estimated by sampling, and its derivative by the Gram
matrix G of C is a matrix W: it says which inner products of columns cost privacy. For a fixed W, ⟨W, G(C)⟩·error² is
smooth and exact, and minimized in milliseconds. So C and W take turns: C is best against the mean of all W so far, and
each C adds its own W (fictitious play). The mean keeps C from running back and forth.
"""

import math
from collections.abc import Callable
from typing import Generic, NamedTuple, TypeVar

import numpy as np

from tff_mf.accounting import BallsInBinsEstimator, balls_in_bins_gram
from tff_mf.mechanisms import BandedToeplitz, OptimizedFor
from tff_mf.optimize._descent import Value
from tff_mf.optimize._toeplitz_loss import ToeplitzLoss, log_product

# The newest W has at least this part in the mean.
_NEWEST = 0.25

# Turns at most, and the least relative gain that one of the last two must have.
_TURNS, _GAIN = 12, 1e-3

State = TypeVar("State")


class Turns(NamedTuple, Generic[State]):
    """The best state of all turns, its σ·error, and whether the last turns gained nothing."""

    state: State
    loss: float
    settled: bool


class AmplifiedSearch:
    """The mean of all W so far, and the losses of all C so far.

    Attributes:
        optimized_for: The setting.
        objective: "rms" or "max".
        epsilon: ε of the target.
        delta: δ of the target.
        history: σ·error of every C that was measured, an estimate.
        noise_multiplier: σ of the C that was measured last, an estimate.
    """

    def __init__(self, optimized_for: OptimizedFor, objective: str, *, epsilon: float, delta: float) -> None:
        """Takes a setting whose min-sep is the number of bins, "rms" or "max", and the target."""
        self.optimized_for, self.objective = optimized_for, objective
        self.epsilon, self.delta = epsilon, delta
        self.history: list[float] = []
        self._error = ToeplitzLoss(optimized_for, objective)
        self._rounds, self._bins = optimized_for.rounds, optimized_for.participation.min_sep
        self.noise_multiplier = math.nan
        self._mean = np.zeros((self._bins, self._bins))

    def measure(self, column: np.ndarray) -> float:
        """Returns σ·error of C = LtToep(`column`), and adds its W to the mean."""
        gram = balls_in_bins_gram(BandedToeplitz(column=column.tolist()), self._rounds, bins=self._bins)
        estimator = BallsInBinsEstimator(gram)
        self.noise_multiplier = estimator.noise_multiplier(epsilon=self.epsilon, delta=self.delta)
        weights = estimator.epsilon(noise_multiplier=self.noise_multiplier, delta=self.delta).gradient
        part = max(_NEWEST, 1 / (1 + len(self.history)))
        if self.history:
            self._mean *= (1 - part) / np.vdot(self._mean, gram)
        self._mean += part * weights / np.vdot(weights, gram)
        error = self._error.squared_error(column).value
        self.history.append(self.noise_multiplier * math.sqrt(error))
        return self.history[-1]

    def surrogate(self, length: int) -> Callable[[np.ndarray], Value]:
        """Returns log √(⟨W, G(C)⟩·error²) for columns of up to `length` entries, with its gradient."""
        quadratic = quadratic_form(self._mean, self._rounds, length)

        def loss(column: np.ndarray) -> Value:
            by_column = quadratic[: len(column), : len(column)] @ column
            return log_product(self._error.squared_error(column), Value(float(column @ by_column), 2 * by_column))

        return loss

    def alternate(
        self, state: State, column_of: Callable[[State], np.ndarray], improved: Callable[[State], State]
    ) -> Turns[State]:
        """Measures and improves a state in turns, until the loss no longer falls, and returns the best state."""
        best, since = (math.inf, state), 0
        for turn in range(_TURNS):
            loss = self.measure(column_of(state))
            since = 0 if loss < best[0] * (1 - _GAIN) else since + 1
            best = min(best, (loss, state), key=lambda each: each[0])
            if since == 2:
                break
            if turn < _TURNS - 1:
                state = improved(state)
        return Turns(best[1], best[0], since == 2)


def quadratic_form(weights: np.ndarray, rounds: int, length: int) -> np.ndarray:
    """Returns Q, float64 `[length, length]`, with cᵀQc = ⟨W, G⟩ for C = LtToep(c) and a symmetric W.

    Entry t of m_j is the sum of c_{t−r} over the rounds r = j, j + b, … up to t. So Q_{l,l'} is the sum over t of
    W_{ij} for the bins i and j of the rounds t − l and t − l': a sum along a diagonal of W, repeated periodically.
    """
    bins = len(weights)
    quadratic = np.empty((length, length))
    for apart in range(length):
        earlier = np.arange(rounds - apart)
        sums = np.cumsum(weights[earlier % bins, (earlier + apart) % bins])
        later = np.arange(apart, length)
        quadratic[later, later - apart] = quadratic[later - apart, later] = sums[rounds - 1 - later]
    return quadratic
