"""Optimizer of BLTs with scaled columns: decays, buffers' weights and the weights of participations together."""

import functools
import itertools
import time
from typing import NamedTuple

import numpy as np

from tff_mf.base import validation
from tff_mf.mechanisms import BLT, OptimizedFor, ScaledBLT
from tff_mf.mechanisms.series import geometric_sum
from tff_mf.optimize._descent import Descent, Value, descend, with_descent
from tff_mf.optimize.blt import FASTEST_DECAY, increment_limits, optimize_blt
from tff_mf.problem.participation import Participation

# MaxError is approached by means of these powers of the squared errors; RmsError is the mean of their first power.
_POWERS = {"rms": (1,), "max": (8, 128, 2048)}
# Of the log of weights from one participation to the next, where the search starts.
_FIRST_FALL = 0.05
_ITERATIONS = 500


class ScaledBLTLoss:
    """log(MaxLoss) or log(RmsLoss) of a BLT with scaled columns, LtToep(c)·diag(d), for prefix sums, and its gradient.

    The BLT is C(s) = Π(1 − θ̂_j s) / Π(1 − θ_j s). Exponents x = −log θ and y = −log θ̂ are interlaced,
    0 < x₁ < y₁ < x₂ < …. By partial fractions of C and C⁻¹,

        c_i = Σ_j ω_j θ_j^(i−1) with ω_j = Π_i (θ_j − θ̂_i) / Π_{i≠j} (θ_j − θ_i), and the same for C⁻¹.

    d_t = a_t / ‖column t of LtToep(c)‖, where a never rises, and may fall every b rounds up to the last participation.
    Since c ≥ 0 never rises, and columns have equal norms between two falls, no entry of CᵀC is larger than in the
    earliest pattern, and the sensitivity is ‖Cu‖ for it.

    It is called with the power of squared errors whose mean is taken: 1 for RmsLoss, and large for nearly MaxLoss.
    Variables are logarithms: of the increments of exponents, and of how far log(a) falls before each participation but
    the first.

    Args:
        optimized_for: The setting.
        buffers: Number of buffers.
    """

    def __init__(self, optimized_for: OptimizedFor, buffers: int) -> None:
        rounds, participation = optimized_for.rounds, optimized_for.participation
        self.optimized_for, self.rounds, self.buffers = optimized_for, rounds, buffers
        self._starts = np.arange(0, rounds, participation.min_sep)[: participation.max_participations]
        self._epochs = np.searchsorted(self._starts, np.arange(rounds), side="right") - 1
        # Exponents are this times exponentials of variables: first all x, then all y.
        increments = np.tril(np.ones((2 * buffers, 2 * buffers)))
        self.exponents = np.concatenate([increments[::2], increments[1::2]])
        signs = np.kron([[-1, 1], [1, -1]], np.ones((buffers, buffers)))
        self.powers = signs + np.eye(2 * buffers)

    def mechanism(self, variables: np.ndarray) -> ScaledBLT:
        """Returns the mechanism, its first scale 1."""
        matrix = _Matrix(self, self.own(variables))
        scales = self._weights(variables) / _norms(matrix.column)
        exponents, weights = (np.split(numbers, 2)[0] for numbers in (matrix.exponents, matrix.weights))
        decays, weights = (np.exp(-exponents), weights) if self.buffers else (np.array([0.5]), np.zeros(1))
        return ScaledBLT(
            theta=np.maximum(decays, FASTEST_DECAY).tolist(),
            omega=np.abs(weights).tolist(),
            scales=(scales / scales[0]).tolist(),
            optimized_for=self.optimized_for,
        )

    @property
    def falls(self) -> int:
        """Number of variables that are not of c."""
        return len(self._starts) - 1

    def own(self, variables: np.ndarray) -> np.ndarray:
        """Returns the variables of c."""
        return variables[: len(variables) - self.falls]

    def __call__(self, variables: np.ndarray, power: int) -> Value:
        """Returns log(loss) and its gradient, of the length of `variables`."""
        matrix = _Matrix(self, self.own(variables))
        column = matrix.column
        norms, weights = _norms(column), self._weights(variables)
        factors = norms / weights
        error = matrix.error(factors, power)
        squared, by_column, by_scale = self._earliest_pattern(column, weights / norms)

        by_log_scale = 0.5 * by_scale / squared / factors - error.by_factor * factors
        by_column = 0.5 * by_column / squared - column * np.cumsum(by_log_scale / norms**2)[::-1]
        by_epoch = np.bincount(self._epochs, by_log_scale)
        by_fall = -np.cumsum(by_epoch[::-1])[::-1][1:] * self._falls(variables)
        gradient = np.append(matrix.gradient(by_column, error), by_fall)
        return Value(error.log_value + 0.5 * np.log(squared), gradient)

    def _weights(self, variables: np.ndarray) -> np.ndarray:
        """Returns a of each round."""
        return np.exp(-np.cumsum(np.append(0.0, self._falls(variables))))[self._epochs]

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


def _norms(column: np.ndarray) -> np.ndarray:
    """Returns the norm of each column of LtToep(column)."""
    return np.sqrt(np.cumsum(np.square(column))[::-1])


class _Matrix:
    """The BLT of some variables."""

    def __init__(self, loss: ScaledBLTLoss, variables: np.ndarray) -> None:
        self._loss, self._variables = loss, variables
        # x and y, and ω of C and of C⁻¹, float64 `[2·buffers]`.
        self.exponents = loss.exponents @ np.exp(variables)
        self.weights = np.prod(_differences(self.exponents) ** loss.powers, axis=1)
        self._steps = np.arange(loss.rounds - 1.0)
        (x, _), (omega, _) = np.split(self.exponents, 2), np.split(self.weights, 2)
        self._decayed = np.exp(-np.multiply.outer(x, self._steps))
        self.column = np.append(1.0, omega @ self._decayed)

    def error(self, factors: np.ndarray, power: int) -> "_Error":
        return _Error(np.split(self.exponents, 2)[1], np.split(self.weights, 2)[1], factors, power)

    def gradient(self, by_column: np.ndarray, error: "_Error") -> np.ndarray:
        omega = np.split(self.weights, 2)[0]
        by_weight = np.append(self._decayed @ by_column[1:], error.by_weight)
        by_exponent = np.append(-omega * (self._decayed @ (self._steps * by_column[1:])), error.by_exponent)
        # Each weight is a product of powers of differences of decays.
        decays = np.exp(np.negative(self.exponents))
        slopes = self._loss.powers / _differences(self.exponents)
        by_log_weight = by_weight * self.weights
        by_decay = by_log_weight * slopes.sum(axis=1) - by_log_weight @ slopes
        by_increment = (by_exponent - decays * by_decay) @ self._loss.exponents
        return np.asarray(by_increment * np.exp(self._variables))


def _differences(exponents: np.ndarray) -> np.ndarray:
    """Returns e^(−x_i) − e^(−x_j), and 1 on the diagonal."""
    return np.exp(-exponents) * np.expm1(exponents - exponents[:, np.newaxis]) + np.eye(len(exponents))


class _LogMean(NamedTuple):
    """Half the log of the mean of powers of squared errors.

    Attributes:
        value: The value.
        growth: How it grows with what round t adds to the squared errors of its round and of all later ones.
    """

    value: float
    growth: np.ndarray

    @classmethod
    def of(cls, added: np.ndarray, power: int) -> "_LogMean":
        """Takes what each round adds to the squared errors."""
        squares = np.cumsum(added)
        shares = (squares / squares.max()) ** power
        mean = shares.mean()
        value = 0.5 * float(np.log(squares.max()) + np.log(mean) / power)
        return cls(value, 0.5 * np.cumsum((shares / squares)[::-1])[::-1] / (mean * len(squares)))


class _Error:
    """The error of Σ_s≤t e_s·(row s of C⁻¹z), as `_LogMean`, with its gradients.

    C⁻¹z is z_t + Σ_j w_j S_jt with S_j,t+1 = p_j S_jt + z_t. With q_jt the covariance of S_jt and the sum before t, the
    squared error grows by 2e_t Σ_j w_j q_jt + e_t²·Var of row t. Gradients are by the adjoint of that recursion.

    Attributes:
        log_value: The value.
        by_factor: Its gradient by e.
        by_weight: Its gradient by w.
        by_exponent: Its gradient by −log p.
    """

    def __init__(self, x: np.ndarray, w: np.ndarray, factors: np.ndarray, power: int) -> None:
        poles = np.exp(-x)
        rounds = len(factors)
        sums, slopes = geometric_sum((x[:, np.newaxis] + x)[:, :, np.newaxis], np.arange(rounds, dtype=np.float64))
        own = np.einsum("jlt,l->jt", sums, w)
        variance, added = 1 + w @ own, 1 + poles[:, np.newaxis] * own
        sums_before = np.array(
            [
                np.append(0.0, _filtered(numbers, pole)[:-1])
                for numbers, pole in zip(factors * added, poles, strict=True)
            ]
        ).reshape(len(x), rounds)
        covariance = w @ sums_before
        self.log_value, growth = _LogMean.of(2 * factors * covariance + factors**2 * variance, power)

        by_covariance, by_variance = 2 * growth * factors, growth * factors**2
        later = np.array(
            [_filtered((weight * by_covariance)[::-1], pole)[::-1] for weight, pole in zip(w, poles, strict=True)]
        )
        by_sum = np.pad(later.reshape(len(x), rounds)[:, 1:], [(0, 0), (0, 1)])
        by_added = by_sum * factors
        by_own = poles[:, np.newaxis] * by_added + np.multiply.outer(w, by_variance)
        self.by_factor = 2 * growth * (covariance + factors * variance) + np.sum(by_sum * added, axis=0)
        self.by_weight = sums_before @ by_covariance + own @ by_variance + np.einsum("jt,jlt->l", by_own, sums)
        by_pair = np.einsum("jt,jlt->jl", by_own, slopes) * w
        by_pole = np.sum(by_sum * sums_before + by_added * own, axis=1)
        self.by_exponent = by_pair.sum(axis=0) + by_pair.sum(axis=1) - poles * by_pole


def _filtered(values: np.ndarray, pole: float) -> np.ndarray:
    """Returns s with s_t = pole·s_{t−1} + values_t."""
    # Imported here: it would double the time of `import tff_mf`.
    from scipy.signal import lfilter

    return np.asarray(lfilter([1.0], [1.0, -pole], values))


def optimize_scaled_blt(
    *, rounds: int, participation: Participation, buffers: int | None = None, objective: str = "max"
) -> ScaledBLT:
    """Returns a BLT with scaled columns whose MaxLoss or RmsLoss for prefix sums is small.

    Columns are scaled so that all that fall into one participation have equal norms, and participations weigh less, or
    not more, the later they come. The decays and weights of the BLT and these weights are found together, by L-BFGS
    from the best BLT with as many buffers (`optimize_blt`). For "max" the maximum is approached by means of powers, and
    the `history` in `optimized_for.search` has the loss, or the mean of powers in it, after each iteration.

    Args:
        rounds: Number of rounds n, at most 16,384.
        participation: The participation schema.
        buffers: Number of buffers, or `None` for as many as `optimize_blt` chooses.
        objective: "max" for MaxLoss, "rms" for RmsLoss.

    Source: McMahan et al. (2024), section 3, for BLTs; scales are ours: docs/explanation/mechanisms.md.

    Example:
        >>> from tff_mf import MinSep, rms_loss
        >>> participation = MinSep(min_sep=64, max_participations=8)
        >>> mechanism = optimize_scaled_blt(rounds=512, participation=participation, buffers=2, objective="rms")
        >>> round(rms_loss(mechanism, 512, participation), 2)
        9.59

    Raises:
        InputValueError: If the participations do not fit in `rounds`.
    """
    began = time.perf_counter()
    validation.dense(validation.whole("rounds", rounds))
    blt = optimize_blt(rounds=rounds, participation=participation, buffers=buffers, objective=objective)
    optimized_for = blt.optimized_for
    assert optimized_for is not None
    assert optimized_for.search is not None
    of_blt = _variables(blt, optimized_for.rounds)
    loss = ScaledBLTLoss(optimized_for, len(of_blt) // 2)
    start = np.append(of_blt, np.full(loss.falls, np.log(_FIRST_FALL)))
    steps: list[Descent] = []
    for power in _POWERS[objective]:
        variables = steps[-1].variables if steps else start
        steps.append(descend(functools.partial(loss, power=power), variables, iterations=_ITERATIONS))
    descent = steps[-1]._replace(
        iterations=optimized_for.search.iterations + sum(step.iterations for step in steps),
        history=tuple(itertools.chain.from_iterable(step.history for step in steps)),
    )
    return with_descent(loss.mechanism(descent.variables), descent, objective, began)


def _variables(blt: BLT, rounds: int) -> np.ndarray:
    """Returns the logarithms of the increments of exponents of a BLT, none for C = I."""
    if not any(blt.omega):
        return np.zeros(0)
    decays = np.array([*blt.theta, *blt.inverse_parameters().theta])
    exponents = np.sort(-np.log(np.clip(decays, FASTEST_DECAY, 1)))
    return np.log(np.clip(np.diff(exponents, prepend=0.0), *increment_limits(rounds, blt.buffers)))
