"""Optimizers for the error at equal (ε, δ) with amplification by balls-in-bins sampling."""

import dataclasses
import math
import time
from collections.abc import Callable

import numpy as np

from tff_mf import validation
from tff_mf.errors import InputValueError
from tff_mf.mechanisms import BandedToeplitz, Mechanism, OptimizedFor, series
from tff_mf.optimize._amplified_families import BLTFamily, Column, best_column
from tff_mf.optimize._amplified_search import AmplifiedSearch, Turns
from tff_mf.optimize._blt_search import Optimum, descend, increment_limits, with_one_more_buffer, without_buffers
from tff_mf.optimize._status import MechanismT, with_status
from tff_mf.optimize.banded_toeplitz import check_bands
from tff_mf.participation import FixedEpoch
from tff_mf.workloads import PrefixSum, ToeplitzWorkload

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
