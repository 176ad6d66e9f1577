"""ε, δ and σ of balls-in-bins sampling, of real numbers or of the integers of a grid."""

import dataclasses
import math
import time
from collections.abc import Callable

import numpy as np

from tff_mf import gaussian, grids, validation
from tff_mf.balls_in_bins._bounds import FAILURE, Problem, delta_bound, epsilon_bound
from tff_mf.balls_in_bins._estimate import BallsInBinsEstimator
from tff_mf.balls_in_bins._gram import balls_in_bins_gram, gram_error
from tff_mf.balls_in_bins._on_grid import epsilon_on_grid, known_on_grid
from tff_mf.balls_in_bins._result import BallsInBinsGuarantee
from tff_mf.errors import InputValueError
from tff_mf.grids import Grid, GridCharge
from tff_mf.mechanisms import Mechanism

_ATTEMPTS = 8
_WANTED = 0.004
# Of σ, in search of one that is large enough on a grid without amplification: steps, and their factor.
_STEPS, _STEP = 100, 1.04


def balls_in_bins_epsilon(
    mechanism: Mechanism,
    rounds: int,
    *,
    bins: int,
    noise_multiplier: float,
    delta: float,
    samples: int = 200_000,
    seed: int | None = None,
    grid: Grid | None = None,
    dimension: int | None = None,
    clients_per_round: float | None = None,
) -> BallsInBinsGuarantee:
    """Returns a certified ε for which a run with balls-in-bins sampling is (ε, δ)-DP.

    Formal guarantee:
        Adjacency: zero-out of all contributions of one client, each of L2 norm at most the clip norm. They may be
        chosen adaptively, from everything that was released before.
        Participation: a trusted server puts the client into one of b groups, each with probability 1/b, once for the
        whole run, independently of everything else and in secret; it takes part in the rounds j, j + b, j + 2b, … of
        its group j and no others. The groups of others may be anything that is independent of it. Shuffled epochs with
        groups of equal size, cohorts of a fixed size and a log of the cohorts that is released are not covered.
        Sensitivity: C is `mechanism.cast_to_float32()` and has no entry below 0; its rounding errors are included.
        Released: all `rounds` noised sums, possibly divided by a constant, but not by the size of a cohort, and nothing
        else that depends on the group, such as counts of adaptive clipping.
        Arithmetic: with `grid`, the release is the integers that are computed, and what they cost is included, by the
        chain of `grids.charged_epsilon`, if the groups of all clients are drawn independently. Without one, noise is
        taken to be Gaussian with real values.
        Certainty: the result holds except with probability `failure` ≤ δ/1000 over the random numbers drawn here, which
        δ includes. They come from the system; numbers of NumPy's generator are taken for random.
        Proof: docs/amplification.md.

    Args:
        mechanism: A mechanism whose C has no entry below 0.
        rounds: Number of rounds n.
        bins: Number of groups b, at most n.
        noise_multiplier: σ, standard deviation of a coordinate of z divided by the clip norm; at least 0.
        delta: δ, strictly between 0 and 1.
        samples: Number of samples per direction.
        seed: Makes the result repeatable, and not certified.
        grid: The grid on which records are summed and noised, or `None` for floating point.
        dimension: Number d of coordinates of a record, with a grid.
        clients_per_round: Expected size of a cohort, with a grid.

    Source: Choquette-Choo et al. (2024), "Near exact privacy amplification for matrix mechanisms", for the pair of
    distributions; docs/amplification.md for the rest.

    Example:
        >>> from tff_mf import BLT
        >>> found = balls_in_bins_epsilon(BLT(theta=[0.9], omega=[0.1]), 60, bins=20, noise_multiplier=4.0, delta=1e-6)
        >>> found.bound, found.certified, 0.7 < found.epsilon < 0.8
        ('moments', True, True)

    Raises:
        InputTypeError: If an argument is of the wrong type.
        InputValueError: If an argument is out of range, or C has an entry below 0.
    """
    began = time.perf_counter()
    sigma = validation.nonnegative("noise_multiplier", noise_multiplier)
    delta = validation.open_unit("delta", delta)
    problem = _problem(mechanism, rounds, bins, sigma, samples, seed)
    charge_of = grids.charge_of_secret_cohorts(
        mechanism, rounds, -(-rounds // bins), grid=grid, dimension=dimension, clients_per_round=clients_per_round
    )
    return _timed(_epsilon(problem, charge_of, delta, share=1.0), began, seed, grid)


def balls_in_bins_delta(
    mechanism: Mechanism,
    rounds: int,
    *,
    bins: int,
    noise_multiplier: float,
    epsilon: float,
    samples: int = 200_000,
    seed: int | None = None,
) -> BallsInBinsGuarantee:
    """Returns a certified δ for which a run with balls-in-bins sampling is (ε, δ)-DP.

    Formal guarantee: as for `balls_in_bins_epsilon` without a grid: noise is taken to be Gaussian with real values.

    Args:
        mechanism: A mechanism whose C has no entry below 0.
        rounds: Number of rounds n.
        bins: Number of groups b, at most n.
        noise_multiplier: σ, standard deviation of a coordinate of z divided by the clip norm; above 0.
        epsilon: ε, at least 0.
        samples: Number of samples per direction.
        seed: Makes the result repeatable, and not certified.

    Example:
        >>> from tff_mf import BLT
        >>> found = balls_in_bins_delta(BLT(theta=[0.9], omega=[0.1]), 60, bins=20, noise_multiplier=4.0, epsilon=0.8)
        >>> 1e-7 < found.delta < 1e-6
        True

    Raises:
        InputTypeError: If an argument is of the wrong type.
        InputValueError: If an argument is out of range, or C has an entry below 0.
    """
    began = time.perf_counter()
    sigma = validation.positive("noise_multiplier", noise_multiplier)
    epsilon = validation.nonnegative("epsilon", epsilon)
    problem = _problem(mechanism, rounds, bins, sigma, samples, seed)
    return _timed(delta_bound(problem, epsilon), began, seed, None)


def calibrate_balls_in_bins(
    mechanism: Mechanism,
    rounds: int,
    *,
    bins: int,
    epsilon: float,
    delta: float,
    samples: int = 200_000,
    seed: int | None = None,
    grid: Grid | None = None,
    dimension: int | None = None,
    clients_per_round: float | None = None,
) -> BallsInBinsGuarantee:
    """Returns a σ near the smallest for which a run with balls-in-bins sampling is certified.

    Formal guarantee: as for `balls_in_bins_epsilon`, for `noise_multiplier` of the result, whose `epsilon` is at most
    the requested one. Attempt t for one σ may fail with probability δ/1000·2^(−t), so that all of them together fail
    with at most δ/1000.

    Args:
        mechanism: A mechanism whose C has no entry below 0.
        rounds: Number of rounds n.
        bins: Number of groups b, at most n.
        epsilon: ε, greater than 0.
        delta: δ, strictly between 0 and 1.
        samples: Number of samples per direction and attempt.
        seed: Makes the result repeatable, and not certified.
        grid: The grid on which records are summed and noised, or `None` for floating point.
        dimension: Number d of coordinates of a record, with a grid.
        clients_per_round: Expected size of a cohort, with a grid.

    Example:
        >>> from tff_mf import BLT
        >>> found = calibrate_balls_in_bins(BLT(theta=[0.9], omega=[0.1]), 60, bins=20, epsilon=1.0, delta=1e-6)
        >>> found.epsilon <= 1.0, 3 < found.noise_multiplier < 4
        (True, True)

    Raises:
        InputTypeError: If an argument is of the wrong type.
        InputValueError: If an argument is out of range, C has an entry below 0, or the grid alone costs more than
            `epsilon`.
    """
    began = time.perf_counter()
    target, delta = validation.positive("epsilon", epsilon), validation.open_unit("delta", delta)
    problem = _problem(mechanism, rounds, bins, 1.0, samples, seed)
    charge_of = grids.charge_of_secret_cohorts(
        mechanism, rounds, -(-rounds // bins), grid=grid, dimension=dimension, clients_per_round=clients_per_round
    )
    return _timed(_calibrate(problem, charge_of, target, delta), began, seed, grid)


_ChargeOf = Callable[[float], GridCharge] | None


def _epsilon(problem: Problem, charge_of: _ChargeOf, delta: float, *, share: float) -> BallsInBinsGuarantee:
    """Returns ε; a certificate by sampling may fail with `share` of what δ leaves to all of them."""
    if charge_of is None or problem.sigma == 0:
        return epsilon_bound(problem, delta, failure=FAILURE * delta * share)
    return epsilon_on_grid(problem, charge_of(problem.sigma), delta, share=share)


def _calibrate(problem: Problem, charge_of: _ChargeOf, target: float, delta: float) -> BallsInBinsGuarantee:
    estimator = BallsInBinsEstimator(problem.gram)
    aim, best = target, None
    for attempt in range(1, _ATTEMPTS + 1):
        sigma = estimator.noise_multiplier(epsilon=aim, delta=delta)
        found = _epsilon(dataclasses.replace(problem, sigma=sigma), charge_of, delta, share=2.0**-attempt)
        if found.epsilon <= target and (best is None or sigma < best.noise_multiplier):
            best = found
        if (best is not None and best.epsilon >= target * (1 - _WANTED)) or found.epsilon == math.inf:
            break
        aim *= target / max(found.epsilon, target / 2) * (1 - _WANTED / 3)
    if best is None:
        best = _without_amplification(problem, charge_of, target, delta)
    # Certificates of the other attempts could have failed as well.
    return dataclasses.replace(best, failure=FAILURE * delta if best.failure else 0.0)


def _without_amplification(problem: Problem, charge_of: _ChargeOf, target: float, delta: float) -> BallsInBinsGuarantee:
    """Returns the guarantee of a σ that is large enough without amplification."""
    sigma = problem.mu() / gaussian.mu_from(target, delta) * (1 + 2.0**-30)
    if charge_of is not None:
        tried = (sigma * _STEP**step for step in range(_STEPS))
        found = next((s for s in tried if known_on_grid(problem, s, charge_of(s)).epsilon(delta) <= target), None)
        if found is None:
            raise InputValueError(
                f"epsilon={target!r} at delta={delta!r} was not reached on the grid, which costs too much of it, or "
                "has too little room for cohorts: take fewer bits or a larger max_clients."
            )
        sigma = found
    return _epsilon(dataclasses.replace(problem, sigma=sigma), charge_of, delta, share=0.0)


def _problem(mechanism: Mechanism, rounds: int, bins: int, sigma: float, samples: int, seed: int | None) -> Problem:
    samples = validation.whole("samples", samples, at_least=1000)
    if seed is not None:
        seed = validation.whole("seed", seed, at_least=0)
    gram = balls_in_bins_gram(mechanism, rounds, bins=bins)
    if not np.max(gram) < math.inf:
        raise InputValueError("mechanism has entries of C whose squares overflow: scale it, and σ with it.")
    generator = np.random.default_rng(seed)
    return Problem(gram=gram, error=gram_error(rounds), sigma=sigma, samples=samples, generator=generator)


def _timed(found: BallsInBinsGuarantee, began: float, seed: int | None, grid: Grid | None) -> BallsInBinsGuarantee:
    return dataclasses.replace(found, seconds=time.perf_counter() - began, certified=seed is None, grid=grid)
