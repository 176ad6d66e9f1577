"""Optimizers for the error at equal (ε, δ) with amplification by balls-in-bins sampling."""

import dataclasses
import math
import time
from collections.abc import Callable
from typing import Generic, NamedTuple, TypeVar

import numpy as np

from tff_mf.accounting import BallsInBinsEstimator, balls_in_bins_gram
from tff_mf.base import validation
from tff_mf.base.errors import InputValueError
from tff_mf.mechanisms import BLT, BandedToeplitz, Mechanism, OptimizedFor, series
from tff_mf.optimize._blt_loss import BLTLoss
from tff_mf.optimize._descent import MechanismT, Value, with_status
from tff_mf.optimize.banded_toeplitz import ToeplitzLoss, check_bands, log_product
from tff_mf.optimize.blt import Optimum, descend, increment_limits, with_one_more_buffer, without_buffers
from tff_mf.problem.participation import FixedEpoch
from tff_mf.problem.workloads import PrefixSum, ToeplitzWorkload

_ITERATIONS = 300

# The smallest normal float32: the cast to float32 would make a faster decay 0.
_FASTEST_DECAY = float(np.finfo(np.float32).tiny)


class Column(NamedTuple):
    """A column c with c_0 = 1, the log of its surrogate loss, and the largest entry of its projected gradient."""

    column: np.ndarray
    log_loss: float
    gradient_norm: float


def best_column(loss: Callable[[np.ndarray], Value], start: np.ndarray) -> Column:
    """Returns the c ≥ 0 with c_0 = 1 and as many entries as `start` where the loss is least."""
    # Imported here: it would double the time of `import tff_mf`.
    import scipy.optimize

    if len(start) == 1:
        return Column(np.ones(1), float(loss(np.ones(1)).value), 0.0)

    def of_free(free: np.ndarray) -> tuple[float, np.ndarray]:
        value, gradient = loss(np.append(1.0, free))
        return value, gradient[1:]

    found = scipy.optimize.minimize(
        of_free,
        start[1:] / start[0],
        jac=True,
        method="L-BFGS-B",
        bounds=[(0, None)] * (len(start) - 1),
        options={"maxcor": 20, "maxiter": _ITERATIONS, "ftol": 1e-9},
    )
    projected = found.x - np.maximum(found.x - found.jac, 0)
    return Column(np.append(1.0, found.x), float(found.fun), float(np.abs(projected).max()))


class BLTFamily:
    """BLTs in the variables of `BLTLoss`, whose values all have ω > 0, under a loss of their coefficients."""

    def __init__(self, optimized_for: OptimizedFor) -> None:
        self._optimized_for = optimized_for
        self._steps = np.arange(optimized_for.rounds - 1.0)[:, np.newaxis]

    def mechanism(self, variables: np.ndarray) -> BLT:
        """Returns the BLT."""
        if not len(variables):
            return BLT(theta=(0.5,), omega=(0.0,), optimized_for=self._optimized_for)
        theta, omega = self._loss(len(variables) // 2).parameters(variables)
        theta = np.maximum(theta, _FASTEST_DECAY).tolist()
        return BLT(theta=theta, omega=omega.tolist(), optimized_for=self._optimized_for)

    def column(self, variables: np.ndarray) -> np.ndarray:
        """Returns the coefficients, float64 `[rounds]`."""
        theta, omega = self._loss(len(variables) // 2).parameters(variables)
        return np.append(1.0, np.exp(np.log(theta) * self._steps) @ omega)

    def loss(
        self, of_column: Callable[[np.ndarray], Value], buffers: int
    ) -> Callable[[np.ndarray], tuple[float, np.ndarray]]:
        """Returns a loss of coefficients as one of variables."""
        variables_of = self._loss(buffers)

        def of_variables(variables: np.ndarray) -> tuple[float, np.ndarray]:
            theta, omega = variables_of.parameters(variables)
            decayed = np.exp(np.log(theta) * self._steps)
            value, by_column = of_column(np.append(1.0, decayed @ omega))
            by_nodes = np.zeros((2, 2 * len(omega) + 1))
            by_nodes[0, 1::2] = omega * (by_column[1:] @ decayed)
            by_nodes[1, 1::2] = -omega * ((by_column[1:] * self._steps[:, 0]) @ decayed)
            return value, variables_of.gradient(variables, *by_nodes)

        return of_variables

    def _loss(self, buffers: int) -> BLTLoss:
        return BLTLoss(self._optimized_for, "rms", buffers)


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


# A matrix of rounds × rounds, or of bands × bands, is held.
_MOST = 4096

# Relative loss at which fewer bands are preferred, and least relative gain of a buffer that is chosen here.
_AS_GOOD, _WORTHWHILE = 5e-3, 1e-3
_MOST_BUFFERS = 8

# With fewer bins, more bands than bins are of use.
_BANDS_OF_FEW_BINS = 128


@dataclasses.dataclass(frozen=True, kw_only=True)
class AmplifiedOptimum:
    """A mechanism made for balls-in-bins sampling, with estimates of its noise and its error.

    The estimates are for comparisons and no guarantee. `tff_mf.calibrate_noise_multiplier` with `tff_mf.BallsInBins`
    gives σ with a certificate.

    Attributes:
        mechanism: The mechanism, whose `optimized_for.search` says how the search ended.
        bins: Number of bins b.
        epsilon: ε that was asked for.
        delta: δ.
        estimated_noise_multiplier: σ that (ε, δ) needs, an estimate.
        estimated_error: σ times the error of the workload, RMS or maximum by the objective, in clip norms.
    """

    mechanism: Mechanism
    bins: int
    epsilon: float
    delta: float
    estimated_noise_multiplier: float
    estimated_error: float


def optimize_amplified_banded_toeplitz(
    *,
    rounds: int,
    bins: int,
    epsilon: float,
    delta: float,
    bands: int | None = None,
    workload: ToeplitzWorkload | None = None,
    objective: str = "rms",
) -> AmplifiedOptimum:
    """Returns the banded Toeplitz matrix with the least error at (ε, δ) with balls-in-bins sampling.

    C, its number of bands and σ are found together: c ≥ 0 with c_0 = 1 minimizes σ·error, where σ is what (ε, δ) needs
    with amplification. The best C has much fewer bands than bins where ε is small.

    The `history` in `optimized_for.search` has estimates of σ·error in the order in which columns were measured, its
    `loss` is the last of them, and its `gradient_norm` belongs to the loss whose privacy part is linearized at the end.

    Args:
        rounds: Number of rounds n.
        bins: Number of bins b: a client takes part every b rounds. At most `rounds`.
        epsilon: ε, from 1e-6 to 1e5.
        delta: δ.
        bands: Number of diagonals of C at most; `None` for the fewest, among powers of 2 and b, whose error is within
            0.5 % of the error with b bands.
        workload: The workload A, which must be Toeplitz; `None` is the prefix sum.
        objective: "rms" for the root mean square error, "max" for the largest.

    Source: Choquette-Choo et al. (2024), "Near exact privacy amplification for matrix mechanisms", for the sampling.

    Example:
        >>> found = optimize_amplified_banded_toeplitz(rounds=64, bins=16, epsilon=2.0, delta=1e-5)
        >>> found.mechanism.bands, round(found.estimated_error, 1)
        (14, 6.4)

    Raises:
        InputTypeError: If an argument is of the wrong type.
        InputValueError: If an argument is out of range.
    """
    began = time.perf_counter()
    workload = PrefixSum() if workload is None else workload
    validation.instance("workload", workload, ToeplitzWorkload, "take PrefixSum or Momentum")
    search = _search(rounds, bins, epsilon, delta, workload, objective)
    rounds = search.optimized_for.rounds
    most = _most_bands(search) if bands is None else check_bands(bands, rounds)
    _check_size("bands", most)
    found = _best_toeplitz(search, most)
    if bands is None:
        fewer = _fewest_bands(search, found.state.column)
        found = _best_toeplitz(search, fewer, found.state.column) if fewer < most else found
    column = np.trim_zeros(found.state.column, "b")
    mechanism = BandedToeplitz(column=column.tolist(), optimized_for=search.optimized_for)
    return _result(search, mechanism, column, found.settled, found.state.gradient_norm, began)


def optimize_amplified_blt(
    *, rounds: int, bins: int, epsilon: float, delta: float, buffers: int | None = None, objective: str = "rms"
) -> AmplifiedOptimum:
    """Returns the BLT with the least error of prefix sums at (ε, δ) with balls-in-bins sampling.

    As `optimize_amplified_banded_toeplitz`, whose search comes first: for its privacy part, buffers are added one at a
    time, as long as each lowers the loss by 0.1 %. Then parameters and privacy part take turns.

    Args:
        rounds: Number of rounds n, at most 4096.
        bins: Number of bins b: a client takes part every b rounds. At most `rounds`.
        epsilon: ε, from 1e-6 to 1e5.
        delta: δ.
        buffers: Number of buffers at most, or `None` to choose it.
        objective: "rms" for the root mean square error, "max" for the largest.

    Source: McMahan et al. (2024) for BLTs, Choquette-Choo et al. (2024) for the sampling.

    Example:
        >>> found = optimize_amplified_blt(rounds=64, bins=16, epsilon=2.0, delta=1e-5, buffers=2)
        >>> found.mechanism.buffers, round(found.estimated_error, 1)
        (1, 6.5)

    Raises:
        InputTypeError: If an argument is of the wrong type.
        InputValueError: If an argument is out of range.
    """
    began = time.perf_counter()
    wanted = _MOST_BUFFERS if buffers is None else validation.whole("buffers", buffers)
    search = _search(rounds, bins, epsilon, delta, PrefixSum(), objective)
    rounds = search.optimized_for.rounds
    _check_size("rounds", rounds)
    _best_toeplitz(search, _most_bands(search))
    family = BLTFamily(search.optimized_for)

    def of_variables(buffers: int) -> Callable[[np.ndarray], tuple[float, np.ndarray]]:
        return family.loss(surrogate, buffers)

    def improved(state: Optimum) -> Optimum:
        if not state.buffers:
            return state
        loss = family.loss(search.surrogate(rounds), state.buffers)
        return descend(loss, state.variables, increment_limits(rounds, state.buffers))

    surrogate = search.surrogate(rounds)
    optimum = without_buffers(of_variables)
    while optimum.buffers < wanted:
        candidate = with_one_more_buffer(of_variables, rounds, optimum)
        if optimum.log_loss - candidate.log_loss < _WORTHWHILE:
            break
        optimum = candidate
    found = search.alternate(optimum, lambda state: family.column(state.variables), improved)
    mechanism = family.mechanism(found.state.variables)
    return _result(search, mechanism, mechanism.coefficients(rounds), found.settled, found.state.gradient_norm, began)


def _search(
    rounds: int, bins: int, epsilon: float, delta: float, workload: ToeplitzWorkload, objective: str
) -> AmplifiedSearch:
    rounds, bins = validation.listable(rounds), validation.whole("bins", bins)
    if bins > rounds:
        raise InputValueError(f"bins={bins} exceeds rounds={rounds}: some bins would have no round; take fewer.")
    _check_size("bins", bins)
    schema = FixedEpoch(min_sep=bins, max_participations=-(-rounds // bins))
    return AmplifiedSearch(
        OptimizedFor(rounds=rounds, participation=schema, workload=workload),
        validation.one_of("objective", objective, ("rms", "max")),
        epsilon=validation.positive("epsilon", epsilon),
        delta=validation.open_unit("delta", delta),
    )


def _check_size(name: str, value: int) -> None:
    if value > _MOST:
        raise InputValueError(f"{name}={value} exceeds {_MOST}: the search holds a matrix of {name} × {name}.")


def _most_bands(search: AmplifiedSearch) -> int:
    return min(search.optimized_for.rounds, max(search.optimized_for.participation.min_sep, _BANDS_OF_FEW_BINS))


def _best_toeplitz(search: AmplifiedSearch, bands: int, start: np.ndarray | None = None) -> Turns[Column]:
    """Returns the best column of as many bands, from `start` or else the optimal column without amplification."""

    def improved(state: Column) -> Column:
        return best_column(search.surrogate(bands), state.column)

    first = Column(column=series.inverse_square_root(bands), log_loss=math.inf, gradient_norm=math.inf)
    if start is not None:
        first = best_column(search.surrogate(bands), start[:bands])
    return search.alternate(first, lambda state: state.column, improved)


def _fewest_bands(search: AmplifiedSearch, column: np.ndarray) -> int:
    """Returns the least power of 2 as the number of bands with nearly the loss of all bands, or all of them."""
    loss = search.surrogate(len(column))
    enough = best_column(loss, column).log_loss + _AS_GOOD
    fewest = len(column)
    for power in reversed(range((len(column) - 1).bit_length())):
        if best_column(loss, column[: 2**power]).log_loss > enough:
            break
        fewest = 2**power
    return fewest


def _result(
    search: AmplifiedSearch,
    mechanism: MechanismT,
    column: np.ndarray,
    settled: bool,
    gradient_norm: float,
    began: float,
) -> AmplifiedOptimum:
    error = search.measure(column)
    mechanism = with_status(
        mechanism,
        objective=search.objective,
        loss=error,
        converged=settled,
        message=f"{'The loss no longer falls' if settled else 'The loss still fell'} after {len(search.history)} turns",
        iterations=len(search.history),
        began=began,
        gradient_norm=gradient_norm,
        history=tuple(search.history),
    )
    return AmplifiedOptimum(
        mechanism=mechanism,
        bins=search.optimized_for.participation.min_sep,
        epsilon=search.epsilon,
        delta=search.delta,
        estimated_noise_multiplier=search.noise_multiplier,
        estimated_error=error,
    )
