"""Optimizer of BLTs with scaled columns: decays, buffers' weights and the weights of participations together."""

import functools
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from tff_mf.base import validation
from tff_mf.mechanisms import BLT, OptimizedFor, ScaledBLT
from tff_mf.mechanisms.series import geometric_sum
from tff_mf.optimize import _descent
from tff_mf.optimize._descent import Descent, Value, with_descent
from tff_mf.optimize.blt import FASTEST_DECAY, increment_limits, optimize_blt
from tff_mf.problem.participation import FixedEpoch, Participation

# MaxError is approached by means of these powers of the squared errors; RmsError is the mean of their first power.
_POWERS = {"rms": (1,), "max": (8, 128, 2048)}
# Of the log of weights from one participation to the next, where the search starts.
_FIRST_FALL = 0.05
# The bound of columns of both signs takes entries of CᵀC at this many distances within an epoch. It takes one for each
# pair of participations, so that columns of both signs are not searched for more participations.
_DISTANCES = 24
_MOST_PARTICIPATIONS = 40

_ITERATIONS = 500
_KINKED_ITERATIONS, _KINKED_TOLERANCE, _LAST = 150, 1e-5, 9
# Pairs are added to this many real buffers, or to one more. More real ones gain nothing beside pairs.
_REAL_BUFFERS = 2
# Where a pair starts: its decay and, for pair 1, 2, …, its angle over the rounds of a separation, and how much larger
# both are in C⁻¹.
_PAIR_DECAY, _PAIR_ANGLE, _PAIR_WIDTH = 3.0, 6.0, 1.1
# Least relative gain of a pair.
_WORTHWHILE = 1e-3


class ScaledBLTLoss:
    """log(MaxLoss) or log(RmsLoss) of a BLT with scaled columns, LtToep(c)·diag(d), for prefix sums, and its gradient.

    The BLT is C(s) = Π(1 − θ̂_j s) / Π(1 − θ_j s). Exponents x = −log θ and y = −log θ̂ are real and interlaced,
    0 < x₁ < y₁ < x₂ < …, but pairs of buffers have conjugate ones. By partial fractions of C and C⁻¹,

        c_i = Σ_j ω_j θ_j^(i−1) with ω_j = Π_i (θ_j − θ̂_i) / Π_{i≠j} (θ_j − θ_i), and the same for C⁻¹.

    d_t = a_t / ‖column t of LtToep(c)‖, where a never rises, and may fall every b rounds up to the last participation.
    Without pairs, c ≥ 0 never rises, so that no entry of CᵀC is larger than in the earliest pattern, for columns have
    equal norms between two falls, and the sensitivity is ‖Cu‖ for it. With pairs it is the bound of
    `sensitivities.scaled_columns`, of the entries at some distances, which has kinks.

    It is called with the power of squared errors whose mean is taken: 1 for RmsLoss, and large for nearly MaxLoss.
    Variables are logarithms: of the increments of real exponents, of the real and the imaginary parts x, y of pairs,
    and of how far log(a) falls before each participation but the first.

    Args:
        optimized_for: The setting.
        real: Number of real buffers.
        pairs: Number of pairs of buffers.
    """

    def __init__(self, optimized_for: OptimizedFor, real: int, pairs: int = 0) -> None:
        rounds, participation = optimized_for.rounds, optimized_for.participation
        self.optimized_for, self._kinked = optimized_for, pairs > 0
        self.rounds = rounds
        self._starts = np.arange(0, rounds, participation.min_sep)[: participation.max_participations]
        self._epochs = np.searchsorted(self._starts, np.arange(rounds), side="right") - 1
        step = (
            participation.min_sep if isinstance(participation, FixedEpoch) else -(-participation.min_sep // _DISTANCES)
        )
        apart = (self._starts[1:, np.newaxis] + np.arange(0, participation.min_sep, step)).ravel()
        self._apart = apart[apart < rounds]
        self.real, self.pairs = real, pairs

        # Exponents are this times exponentials of variables: first all x, then all y.
        buffers = real + 2 * pairs
        self.exponents = np.zeros((2 * buffers, 2 * real + 4 * pairs), complex if pairs else float)
        increments = np.tril(np.ones((2 * real, 2 * real)))
        self.exponents[:real, : 2 * real] = increments[::2]
        self.exponents[buffers : buffers + real, : 2 * real] = increments[1::2]
        for pair in range(pairs):
            for half in range(2):
                row, column = half * buffers + real + 2 * pair, 2 * real + 4 * pair + 2 * half
                self.exponents[row : row + 2, column : column + 2] = [[1, 1j], [1, -1j]]
        signs = np.kron([[-1, 1], [1, -1]], np.ones((buffers, buffers)))
        self.powers = signs + np.eye(2 * buffers)

    def matrix(self, own: np.ndarray) -> "_Matrix":
        return _Matrix(self, own)

    def mechanism(self, variables: np.ndarray) -> ScaledBLT:
        """Returns the mechanism, its first scale 1."""
        matrix = self.matrix(self.own(variables))
        scales = self.scales(variables, matrix.column)
        exponents, weights = (np.split(numbers, 2)[0] for numbers in (matrix.exponents, matrix.weights))
        decays = np.exp(-exponents)
        # One of two conjugates stands for both.
        chosen = decays.imag <= 0
        decays, weights = (decays[chosen], weights[chosen]) if self.real else (np.array([0.5]), np.zeros(1))
        paired = decays.imag < 0
        weights = np.where(paired, 2 * weights, weights.real)
        return ScaledBLT(
            theta=np.maximum(np.abs(decays), FASTEST_DECAY).tolist(),
            omega=np.abs(weights).tolist(),
            scales=scales.tolist(),
            turn=np.where(paired, -np.angle(decays), 0.0).tolist(),
            # Not −0.
            phase=(np.angle(np.conj(weights)) + 0.0).tolist(),
            optimized_for=self.optimized_for,
        )

    @property
    def falls(self) -> int:
        """Number of variables that are not of c."""
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
        sensitivity = self._largest_entries if self._kinked else self._earliest_pattern
        squared, by_column, by_scale = sensitivity(column, weights / norms)

        by_log_scale = 0.5 * by_scale / squared / factors - error.by_factor * factors
        by_column = 0.5 * by_column / squared - column * np.cumsum(by_log_scale / norms**2)[::-1]
        by_epoch = np.bincount(self._epochs, by_log_scale)
        by_fall = -np.cumsum(by_epoch[::-1])[::-1][1:] * self._falls(variables)
        gradient = np.append(matrix.gradient(by_column, error), by_fall)
        return Value(error.log_value + 0.5 * np.log(squared), gradient)

    def minimized(self, descent: Descent, powers: Sequence[int]) -> Descent:
        """Goes on from where a search ended, for one power after the other."""
        for power in powers:
            at_power = functools.partial(self, power=power)
            if self._kinked:
                end = _along_kinks(at_power, descent.variables)
            else:
                end = _descent.descend(at_power, descent.variables, iterations=_ITERATIONS)
            descent = end._replace(
                iterations=descent.iterations + end.iterations, history=descent.history + end.history
            )
        return descent

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
        gram_entries = np.zeros((len(self._apart), self.rounds))
        for row, apart in zip(gram_entries, self._apart, strict=True):
            left = self.rounds - apart
            row[:left] = np.cumsum(column[:left] * column[apart:])[::-1] * scales[:left] * scales[apart:]
        sizes = np.abs(gram_entries)
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
            factor = np.sign(gram_entries[row, s]) * count * scales[s] * scales[t]
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


class _Matrix:
    """The BLT of some variables."""

    def __init__(self, loss: ScaledBLTLoss, variables: np.ndarray) -> None:
        self._loss, self._variables = loss, variables
        # x and y, and ω of C and of C⁻¹, complex `[2·buffers]`.
        self.exponents = loss.exponents @ np.exp(variables)
        self.weights = np.prod(_differences(self.exponents) ** loss.powers, axis=1)
        self._steps = np.arange(loss.rounds - 1.0)
        (x, _), (omega, _) = np.split(self.exponents, 2), np.split(self.weights, 2)
        self._decayed = np.exp(-np.multiply.outer(x, self._steps))
        self.column = np.append(1.0, (omega @ self._decayed).real)

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
        by_increment = ((by_exponent - decays * by_decay) @ self._loss.exponents).real
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
    Decays p and weights w may be conjugates; each formula holds for them, without a conjugation.

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
        variance, added = 1 + (w @ own).real, 1 + poles[:, np.newaxis] * own
        sums_before = np.array(
            [
                np.append(0.0, _filtered(numbers, pole)[:-1])
                for numbers, pole in zip(factors * added, poles, strict=True)
            ]
        ).reshape(len(x), rounds)
        covariance = (w @ sums_before).real
        self.log_value, growth = _LogMean.of(2 * factors * covariance + factors**2 * variance, power)

        by_covariance, by_variance = 2 * growth * factors, growth * factors**2
        later = np.array(
            [_filtered((weight * by_covariance)[::-1], pole)[::-1] for weight, pole in zip(w, poles, strict=True)]
        )
        by_sum = np.pad(later.reshape(len(x), rounds)[:, 1:], [(0, 0), (0, 1)])
        by_added = by_sum * factors
        by_own = poles[:, np.newaxis] * by_added + np.multiply.outer(w, by_variance)
        self.by_factor = 2 * growth * (covariance + factors * variance) + np.sum(by_sum * added, axis=0).real
        self.by_weight = sums_before @ by_covariance + own @ by_variance + np.einsum("jt,jlt->l", by_own, sums)
        by_pair = np.einsum("jt,jlt->jl", by_own, slopes) * w
        by_pole = np.sum(by_sum * sums_before + by_added * own, axis=1)
        self.by_exponent = by_pair.sum(axis=0) + by_pair.sum(axis=1) - poles * by_pole


def _filtered(values: np.ndarray, pole: complex) -> np.ndarray:
    """Returns s with s_t = pole·s_{t−1} + values_t."""
    # Imported here: it would double the time of `import tff_mf`.
    from scipy.signal import lfilter

    return np.asarray(lfilter([1.0], [1.0, -pole], values))


def optimize_scaled_blt(
    *, rounds: int, participation: Participation, buffers: int | None = None, objective: str = "max"
) -> ScaledBLT:
    """Returns a BLT with scaled columns whose MaxLoss or RmsLoss for prefix sums is small.

    Columns are scaled so that all that fall into one participation have equal norms, and participations weigh less, or
    not more, the later they come. The decays and weights of the BLT and these weights are found together: by L-BFGS
    from the best BLT with as many buffers (`optimize_blt`), and from 4 buffers on also with pairs of buffers, whose
    coefficients oscillate and nearly vanish where a client may come again. Pairs are added one by one, from several
    starts each, by BFGS for functions with kinks. The better one is returned. For "max" the maximum is approached by
    means of powers.

    The `history` in `optimized_for.search` has the loss, or the mean of powers in it, after each iteration. With pairs,
    its `gradient_norm` is the gain of the last iterations, and such a search has converged if it ended by itself.

    Args:
        rounds: Number of rounds n, at most 16,384.
        participation: The participation schema.
        buffers: Number of rows of memory, of which a pair takes two; or `None` for real buffers only, as many as
            `optimize_blt` chooses.
        objective: "max" for MaxLoss, "rms" for RmsLoss.

    Source: McMahan et al. (2024), section 3, for BLTs; scales and pairs are ours: docs/explanation/mechanisms.md.

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
    start = functools.partial(optimize_blt, rounds=rounds, participation=participation, objective=objective)
    loss, descent = _of_real_buffers(start(buffers=buffers), objective)
    real = with_descent(loss.mechanism(descent.variables), descent, objective, began)
    rows = _REAL_BUFFERS if buffers is None else buffers
    pairs = (rows - _REAL_BUFFERS) // 2
    if pairs < 1 or not loss.real or not 1 < participation.max_participations <= _MOST_PARTICIPATIONS:
        return real
    loss, descent = _with_pairs(*_of_real_buffers(start(buffers=rows - 2 * pairs), objective), pairs, objective)
    paired = with_descent(loss.mechanism(descent.variables), descent, objective, began)
    return min(real, paired, key=_descent.loss_of)


def _of_real_buffers(blt: BLT, objective: str) -> tuple[ScaledBLTLoss, Descent]:
    optimized_for = blt.optimized_for
    assert optimized_for is not None
    assert optimized_for.search is not None
    of_blt = _variables(blt, optimized_for.rounds)
    loss = ScaledBLTLoss(optimized_for, len(of_blt) // 2)
    start = _descent.nothing_to_choose(np.log(optimized_for.search.loss))._replace(
        variables=np.append(of_blt, np.full(loss.falls, np.log(_FIRST_FALL))),
        iterations=optimized_for.search.iterations,
    )
    return loss, loss.minimized(start, _POWERS[objective])


def _with_pairs(loss: ScaledBLTLoss, descent: Descent, pairs: int, objective: str) -> tuple[ScaledBLTLoss, Descent]:
    """Adds pairs for as long as each is worth its memory."""
    first, *later_powers = _POWERS[objective]
    places = np.array([_PAIR_DECAY, _PAIR_ANGLE]) / loss.optimized_for.participation.min_sep
    value = loss(descent.variables, first).value
    for pair in range(1, pairs + 1):
        added = np.log(np.append(places * [1, pair], _PAIR_WIDTH * places * [1, pair]))
        larger = ScaledBLTLoss(loss.optimized_for, loss.real, pair)
        variables = np.insert(descent.variables, len(descent.variables) - loss.falls, added)
        candidate = larger.minimized(descent._replace(variables=variables), (first,))
        if not value - candidate.log_loss >= _WORTHWHILE:
            break
        loss, descent, value = larger, candidate, candidate.log_loss
    return loss, loss.minimized(descent, later_powers)


def _variables(blt: BLT, rounds: int) -> np.ndarray:
    """Returns the logarithms of the increments of exponents of a BLT, none for C = I."""
    if not any(blt.omega):
        return np.zeros(0)
    decays = np.array([*blt.theta, *blt.inverse_parameters().theta])
    exponents = np.sort(-np.log(np.clip(decays, FASTEST_DECAY, 1)))
    return np.log(np.clip(np.diff(exponents, prepend=0.0), *increment_limits(rounds, blt.buffers)))
