"""Optimizer of BLTs with scaled columns: decays, buffers' scales and the weights of participations together."""

import functools
import time

import numpy as np

from tff_mf.base import validation
from tff_mf.mechanisms import BLT, OptimizedFor, ScaledBLT
from tff_mf.mechanisms.geometric import geometric_sum
from tff_mf.optimize import _descent
from tff_mf.optimize._blt_loss import BLTLoss
from tff_mf.optimize._descent import Value, with_descent
from tff_mf.optimize.blt import FASTEST_DECAY, increment_limits, optimize_blt
from tff_mf.problem.participation import Participation

# MaxError is approached by means of these powers of the squared errors; RmsError is the mean of their first power.
_POWERS = {"rms": (1,), "max": (8, 128, 2048)}
# Of the log of weights from one participation to the next, where the search starts.
_FIRST_FALL = 0.05
_ITERATIONS = 500


class ScaledBLTLoss:
    """log(MaxLoss) or log(RmsLoss) of BLT(θ, ω)·diag(d) and its gradient, in O(n·buffers²).

    d_t = a_t / ‖column t of the BLT‖, where a falls, or not, after each b rounds up to the last participation. With
    columns of equal norms between two falls, no round of a participation is worse than the first, and the sensitivity
    is ‖Cu‖ for the earliest pattern.

    It is called with the power of squared errors whose mean is taken: 1 for RmsLoss, and large for nearly MaxLoss.
    Variables are those of `BLTLoss`, and then, for each participation but the first, the log of how far log(a) falls
    before it.
    """

    def __init__(self, optimized_for: OptimizedFor, blt: BLTLoss) -> None:
        rounds, participation = optimized_for.rounds, optimized_for.participation
        self._rounds, self._blt = rounds, blt
        self._starts = np.arange(0, rounds, participation.min_sep)[: participation.max_participations]
        self._epochs = np.searchsorted(self._starts, np.arange(rounds), side="right") - 1
        self._steps = np.arange(rounds - 1.0)

    @property
    def falls(self) -> int:
        """Number of variables beside those of the BLT."""
        return len(self._starts) - 1

    def scales(self, variables: np.ndarray) -> np.ndarray:
        """Returns d, the first of them 1."""
        column, _ = self._column(*self._blt.nodes(self.of_blt(variables)))
        scales = self._weights(variables)[self._epochs] / _norms(column)
        return scales / scales[0]

    def __call__(self, variables: np.ndarray, power: int) -> Value:
        """Returns log(loss) and its gradient, of the length of `variables`."""
        of_blt = self.of_blt(variables)
        exponents, weights = self._blt.nodes(of_blt)
        column, decayed = self._column(exponents, weights)
        participations, norms = self._weights(variables), _norms(column)
        error = _Error(exponents, weights, norms / participations[self._epochs], power)

        # Of half the log of ‖Cu‖².
        counted = participations / norms[self._starts]
        total = np.zeros(self._rounds)
        for each, start in zip(counted, self._starts, strict=True):
            total[start:] += each * column[: self._rounds - start]
        square = float(total @ total)
        by_counted = np.array([total[start:] @ column[: self._rounds - start] for start in self._starts]) / square
        by_column = np.zeros(self._rounds)
        for each, start in zip(counted, self._starts, strict=True):
            by_column[: self._rounds - start] += each * total[start:] / square

        by_norm = error.by_factor / participations[self._epochs]
        by_norm[self._starts] -= by_counted * counted / norms[self._starts]
        by_log = by_counted * counted - np.bincount(self._epochs, error.by_factor * error.factors)
        by_column += column * np.cumsum(by_norm / norms)[::-1]

        by_log_weight, by_exponent = error.by_log_weight, error.by_exponent
        by_log_weight[1::2] += weights[1::2] * (decayed @ by_column[1:])
        by_exponent[1::2] -= weights[1::2] * (decayed @ (self._steps * by_column[1:]))
        by_blt = self._blt.gradient(of_blt, by_log_weight, by_exponent)
        by_fall = -np.cumsum(by_log[::-1])[::-1][1:]
        return Value(error.log_value + 0.5 * np.log(square), np.append(by_blt, by_fall * self._falls(variables)))

    def of_blt(self, variables: np.ndarray) -> np.ndarray:
        """Returns the variables of the BLT."""
        return variables[: len(variables) - self.falls]

    def _weights(self, variables: np.ndarray) -> np.ndarray:
        return np.exp(-np.cumsum(np.append(0.0, self._falls(variables))))

    def _falls(self, variables: np.ndarray) -> np.ndarray:
        return np.exp(variables[len(variables) - self.falls :])

    def _column(self, exponents: np.ndarray, weights: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        decayed = np.exp(-np.multiply.outer(exponents[1::2], self._steps))
        return np.append(1.0, weights[1::2] @ decayed), decayed


def _norms(column: np.ndarray) -> np.ndarray:
    """Returns the norm of each column of LtToep(column)."""
    return np.sqrt(np.cumsum(np.square(column))[::-1])


class _Error:
    """Half the log of the mean of powers of squared errors, of Σ_s≤t e_s·(row s of C⁻¹z), with its gradients.

    C⁻¹z is z_t + Σ_j w_j S_jt with S_j,t+1 = p_j S_jt + z_t. With q_jt the covariance of S_jt and the sum before t, the
    squared error grows by 2e_t Σ_j w_j q_jt + e_t²·Var of row t. Gradients are by the adjoint of that recursion.

    Attributes:
        log_value: The value.
        factors: e.
        by_factor: Its gradient by e.
        by_log_weight: Its gradient by the logarithms of weights of `BLTLoss`, of which B has the even ones.
        by_exponent: Its gradient by the exponents of `BLTLoss`.
    """

    def __init__(self, exponents: np.ndarray, weights: np.ndarray, factors: np.ndarray, power: int) -> None:
        x, poles = exponents[2::2], np.exp(-exponents[2::2])
        # The prefix sums have weights β = −w / (1 − p).
        w = weights[2::2] * np.expm1(-x)
        rounds, self.factors = len(factors), factors
        sums, slopes = geometric_sum((x[:, np.newaxis] + x)[:, :, np.newaxis], np.arange(rounds, dtype=np.float64))
        own = np.einsum("jlt,l->jt", sums, w)
        variance, added = 1 + w @ own, 1 + poles[:, np.newaxis] * own
        sums_before = np.array(
            [np.append(0.0, _filtered(each, pole)[:-1]) for each, pole in zip(factors * added, poles, strict=True)]
        ).reshape(len(x), rounds)
        covariance = w @ sums_before
        squares = np.cumsum(2 * factors * covariance + factors**2 * variance)
        shares = (squares / squares.max()) ** power
        mean = shares.mean()
        self.log_value = 0.5 * float(np.log(squares.max()) + np.log(mean) / power)

        # How the value grows with what round t adds to the squared errors of its round and of all later ones.
        growth = 0.5 * np.cumsum((shares / squares)[::-1])[::-1] / (mean * rounds)
        by_covariance, by_variance = 2 * growth * factors, growth * factors**2
        later = np.array(
            [_filtered((each * by_covariance)[::-1], pole)[::-1] for each, pole in zip(w, poles, strict=True)]
        )
        by_sum = np.pad(later.reshape(len(x), rounds)[:, 1:], [(0, 0), (0, 1)])
        by_added = by_sum * factors
        by_own = poles[:, np.newaxis] * by_added + np.multiply.outer(w, by_variance)
        self.by_factor = 2 * growth * (covariance + factors * variance) + np.sum(by_sum * added, axis=0)
        by_w = sums_before @ by_covariance + own @ by_variance + np.einsum("jt,jlt->l", by_own, sums)
        by_pair = np.einsum("jt,jlt->jl", by_own, slopes) * w
        by_pole = np.sum(by_sum * sums_before + by_added * own, axis=1)
        self.by_log_weight, self.by_exponent = np.zeros_like(weights), np.zeros_like(exponents)
        self.by_log_weight[2::2] = by_w * w
        self.by_exponent[2::2] = by_pair.sum(axis=0) + by_pair.sum(axis=1) - poles * by_pole + by_w * w / np.expm1(x)


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
    not more, the later they come. The decays and scales of the BLT and these weights are found together by L-BFGS, from
    the best BLT of so many buffers (`optimize_blt`). For "max" the maximum is approached by means of powers.

    The `history` in `optimized_for.search` has the loss, or the mean of powers in it, after each iteration.

    Args:
        rounds: Number of rounds n, at most 16,384.
        participation: The participation schema.
        buffers: Number of buffers, or `None` to choose it as `optimize_blt` does.
        objective: "max" for MaxLoss, "rms" for RmsLoss.

    Source: McMahan et al. (2024), section 3, for BLTs; the scales are ours: docs/explanation/mechanisms.md.

    Example:
        >>> from tff_mf import MinSep, rms_loss
        >>> participation = MinSep(min_sep=64, max_participations=8)
        >>> found = optimize_scaled_blt(rounds=512, participation=participation, buffers=2, objective="rms")
        >>> round(rms_loss(found, 512, participation), 2)
        9.59

    Raises:
        InputTypeError: If an argument is of the wrong type.
        InputValueError: If an argument is out of range, or the participations do not fit in `rounds`.
    """
    began = time.perf_counter()
    validation.dense(validation.whole("rounds", rounds))
    start = optimize_blt(rounds=rounds, participation=participation, buffers=buffers, objective=objective)
    optimized_for = start.optimized_for
    assert optimized_for is not None
    assert optimized_for.search is not None
    of_blt = _variables(start, rounds)
    blt = BLTLoss(optimized_for, objective, len(of_blt) // 2)
    loss = ScaledBLTLoss(optimized_for, blt)
    found = _descent.nothing_to_choose(np.log(optimized_for.search.loss))._replace(
        variables=np.append(of_blt, np.full(loss.falls, np.log(_FIRST_FALL))),
        iterations=optimized_for.search.iterations,
    )
    for power in _POWERS[objective]:
        end = _descent.descend(functools.partial(loss, power=power), found.variables, iterations=_ITERATIONS)
        found = end._replace(iterations=found.iterations + end.iterations, history=found.history + end.history)
    theta, omega = blt.parameters(loss.of_blt(found.variables))
    mechanism = ScaledBLT(
        theta=np.maximum(theta, FASTEST_DECAY).tolist() or start.theta,
        omega=omega.tolist() or start.omega,
        scales=loss.scales(found.variables).tolist(),
        optimized_for=optimized_for,
    )
    return with_descent(mechanism, found, objective, began)


def _variables(blt: BLT, rounds: int) -> np.ndarray:
    """Returns the variables of `BLTLoss` for a BLT, none for C = I."""
    if not any(blt.omega):
        return np.zeros(0)
    decays = np.array([*blt.theta, *blt.inverse_parameters().theta])
    exponents = np.sort(-np.log(np.clip(decays, FASTEST_DECAY, 1)))
    return np.log(np.clip(np.diff(exponents, prepend=0.0), *increment_limits(rounds, blt.buffers)))
