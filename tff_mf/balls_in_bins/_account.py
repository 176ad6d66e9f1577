"""ε, δ and σ of balls-in-bins sampling: the smallest of an unamplified, two deterministic and a Monte Carlo bound."""

import dataclasses
import math
import time

import numpy as np

from tff_mf import gaussian, validation
from tff_mf.balls_in_bins._directions import Add, Remove
from tff_mf.balls_in_bins._estimate import BallsInBinsEstimator
from tff_mf.balls_in_bins._gram import balls_in_bins_gram, gram_error
from tff_mf.balls_in_bins._independent import independent_delta, independent_epsilon, is_independent
from tff_mf.balls_in_bins._majorant import Moments, moment_delta, moment_epsilon
from tff_mf.balls_in_bins._pair import Pair, dominating_pair
from tff_mf.balls_in_bins._result import BallsInBinsGuarantee, DirectionBound
from tff_mf.balls_in_bins._search import add_direction, remove_direction
from tff_mf.balls_in_bins._tilts import LARGEST_VARIANCE
from tff_mf.betting import Claim, strongest
from tff_mf.errors import InputValueError
from tff_mf.mechanisms import Mechanism

# Share of δ that is spent on wrong certificates, of all that a decision needs.
FAILURE = 1e-3
# The deterministic bound is taken if it exceeds the estimate by less than this share.
_CLOSE = 0.004
# Claims approach the estimate by this factor, up to these shares of it.
_APPROACH, _FINEST, _UNDER = 0.8, 5e-4, -0.004
_ATTEMPTS = 8
_WANTED = 0.004


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Problem:
    """G with its error, for one σ, and the source of random numbers."""

    gram: np.ndarray
    error: float
    sigma: float
    samples: int
    generator: np.random.Generator

    def pair(self) -> Pair:
        return dominating_pair(self.gram / self.sigma**2, relative_error=self.error + 2.0**-50)

    def mu(self) -> float:
        """μ of a client whose group is known; conditioning on the group never makes ε smaller."""
        return gaussian.mu_of(math.sqrt(float(np.max(np.diagonal(self.gram))) * (1 + self.error)), self.sigma)


def balls_in_bins_epsilon(
    mechanism: Mechanism,
    rounds: int,
    *,
    bins: int,
    noise_multiplier: float,
    delta: float,
    samples: int = 200_000,
    seed: int | None = None,
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
        Arithmetic: noise is taken to be Gaussian with real values; what the integers of a grid cost is not included.
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
    found = _epsilon(problem, delta, failure=FAILURE * delta)
    return _timed(found, began, seed)


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

    Formal guarantee: that of `balls_in_bins_epsilon`.

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
    return _timed(_delta(problem, epsilon), began, seed)


def calibrate_balls_in_bins(
    mechanism: Mechanism,
    rounds: int,
    *,
    bins: int,
    epsilon: float,
    delta: float,
    samples: int = 200_000,
    seed: int | None = None,
) -> BallsInBinsGuarantee:
    """Returns a σ near the smallest for which a run with balls-in-bins sampling is certified.

    Formal guarantee: that of `balls_in_bins_epsilon`, for `noise_multiplier` of the result, whose `epsilon` is at most
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

    Example:
        >>> from tff_mf import BLT
        >>> found = calibrate_balls_in_bins(BLT(theta=[0.9], omega=[0.1]), 60, bins=20, epsilon=1.0, delta=1e-6)
        >>> found.epsilon <= 1.0, 3 < found.noise_multiplier < 4
        (True, True)

    Raises:
        InputTypeError: If an argument is of the wrong type.
        InputValueError: If an argument is out of range, or C has an entry below 0.
    """
    began = time.perf_counter()
    target, delta = validation.positive("epsilon", epsilon), validation.open_unit("delta", delta)
    problem = _problem(mechanism, rounds, bins, 1.0, samples, seed)
    return _timed(_calibrate(problem, target, delta), began, seed)


def _calibrate(problem: _Problem, target: float, delta: float) -> BallsInBinsGuarantee:
    estimator = BallsInBinsEstimator(problem.gram)
    aim, best = target, None
    for attempt in range(1, _ATTEMPTS + 1):
        sigma = estimator.noise_multiplier(epsilon=aim, delta=delta)
        tried = dataclasses.replace(problem, sigma=sigma)
        found = _epsilon(tried, delta, failure=FAILURE * delta * 2.0**-attempt)
        if found.epsilon <= target and (best is None or sigma < best.noise_multiplier):
            best = found
        if best is not None and best.epsilon >= target * (1 - _WANTED):
            break
        aim *= target / max(found.epsilon, target / 2) * (1 - _WANTED / 3)
    if best is None:
        # This σ is large enough without amplification.
        sigma = problem.mu() / gaussian.mu_from(target, delta) * (1 + 2.0**-30)
        best = _epsilon(dataclasses.replace(problem, sigma=sigma), delta, failure=0.0)
    # Certificates of the other attempts could have failed as well.
    return dataclasses.replace(best, failure=FAILURE * delta if best.failure else 0.0)


def _problem(mechanism: Mechanism, rounds: int, bins: int, sigma: float, samples: int, seed: int | None) -> _Problem:
    samples = validation.whole("samples", samples, at_least=1000)
    if seed is not None:
        seed = validation.whole("seed", seed, at_least=0)
    gram = balls_in_bins_gram(mechanism, rounds, bins=bins)
    if not np.max(gram) < math.inf:
        raise InputValueError("mechanism has entries of C whose squares overflow: scale it, and σ with it.")
    generator = np.random.default_rng(seed)
    return _Problem(gram=gram, error=gram_error(rounds), sigma=sigma, samples=samples, generator=generator)


def _timed(found: BallsInBinsGuarantee, began: float, seed: int | None) -> BallsInBinsGuarantee:
    return dataclasses.replace(found, seconds=time.perf_counter() - began, certified=seed is None)


def _combined(
    problem: _Problem, remove: DirectionBound, add: DirectionBound, *, epsilon: float, delta: float, failure: float
) -> BallsInBinsGuarantee:
    worst = max(remove, add, key=lambda each: each.value)
    return BallsInBinsGuarantee(
        epsilon=epsilon,
        delta=delta,
        noise_multiplier=problem.sigma,
        bins=len(problem.gram),
        estimate=max(remove.estimate, add.estimate),
        remove=remove,
        add=add,
        bound=worst.bound,
        failure=failure if "Monte Carlo" in (remove.bound, add.bound) else 0.0,
        certified=False,
        seconds=0.0,
    )


def _amplifies(problem: _Problem, pair: Pair | None) -> bool:
    return pair is not None and len(problem.gram) > 1 and float(np.max(pair.variances)) <= LARGEST_VARIANCE


def _epsilon(problem: _Problem, delta: float, *, failure: float) -> BallsInBinsGuarantee:
    """Returns ε; half of `failure` is for either direction. Without any, no samples are drawn."""
    most = gaussian.epsilon_from_delta(delta, problem.mu() if problem.sigma else math.inf)
    plain = DirectionBound(value=most, estimate=most, bound="unamplified", samples=0)
    bins = len(problem.gram)
    if 0 < most < math.inf and is_independent(problem.gram):
        remove, add = (independent_epsilon(plain, bins, problem.mu(), delta, remove=each) for each in (True, False))
        return _combined(problem, remove, add, epsilon=max(remove.value, add.value), delta=delta, failure=0.0)
    pair = problem.pair() if 0 < most < math.inf else None
    if pair is None or not _amplifies(problem, pair):
        return _combined(problem, plain, plain, epsilon=most, delta=delta, failure=0.0)
    moments = Moments.of(pair)
    estimate = BallsInBinsEstimator(problem.gram).epsilon(noise_multiplier=problem.sigma, delta=delta)
    remove = _bounded(problem, pair, moments, plain, estimate.remove, delta, failure, least=None)
    add = _bounded(problem, pair, moments, plain, estimate.add, delta, failure, least=remove.value)
    return _combined(problem, remove, add, epsilon=max(remove.value, add.value), delta=delta, failure=failure)


def _bounded(
    problem: _Problem,
    pair: Pair,
    moments: Moments | None,
    plain: DirectionBound,
    estimate: float,
    delta: float,
    failure: float,
    *,
    least: float | None,
) -> DirectionBound:
    """Returns the smallest bound of ε of one direction; that of adding may be as large as `least`, that of removing."""
    best = dataclasses.replace(plain, estimate=estimate)
    if moments is not None:
        value = moment_epsilon(pair, moments, delta, remove=least is None, most=plain.value)
        if value < best.value:
            best = dataclasses.replace(best, value=value, bound="moments")
    if least is None:
        aim, enough = estimate, estimate * (1 + _CLOSE)
    else:
        aim, enough = max(estimate, least * (1 - _CLOSE)), max(estimate * (1 + _CLOSE), least)
    if not failure or best.value <= enough:
        return best
    aim = max(aim, best.value * _FINEST)
    claims = [Claim(epsilon=each, mean=delta * (1 - FAILURE)) for each in _approach(best.value, aim)]
    direction = _direction(problem, pair, aim, remove=least is None)
    count = strongest(direction, claims, samples=problem.samples, failure=failure / 2, generator=problem.generator)
    best = dataclasses.replace(best, samples=problem.samples)
    return dataclasses.replace(best, value=claims[count - 1].epsilon, bound="Monte Carlo") if count else best


def _direction(problem: _Problem, pair: Pair, epsilon: float, *, remove: bool) -> Remove | Add:
    return remove_direction(pair, epsilon, problem.generator) if remove else add_direction(pair, epsilon)


def _approach(high: float, estimate: float) -> list[float]:
    """Returns figures below `high` that fall towards the estimate, and a little below it."""
    excess = high / estimate - 1
    shares = []
    while excess > _FINEST:
        excess *= _APPROACH
        shares.append(excess)
    shares += [0.0, _UNDER / 4, _UNDER / 2, _UNDER]
    return [estimate * (1 + share) for share in shares if estimate * (1 + share) < high]


def _delta(problem: _Problem, epsilon: float) -> BallsInBinsGuarantee:
    most = gaussian.delta_from_epsilon(epsilon, problem.mu())
    plain = DirectionBound(value=most, estimate=most, bound="unamplified", samples=0)
    bins = len(problem.gram)
    if most > 1e-300 and is_independent(problem.gram):
        remove, add = (independent_delta(plain, bins, problem.mu(), epsilon, remove=each) for each in (True, False))
        return _combined(problem, remove, add, epsilon=epsilon, delta=max(remove.value, add.value), failure=0.0)
    pair = problem.pair() if most > 1e-300 else None
    if pair is None or not _amplifies(problem, pair):
        return _combined(problem, plain, plain, epsilon=epsilon, delta=most, failure=0.0)
    moments = Moments.of(pair)
    estimator = BallsInBinsEstimator(problem.gram)
    estimates = estimator.deltas(noise_multiplier=problem.sigma, epsilon=epsilon)
    failure = FAILURE / 2 * max(*estimates, 1e-300)
    bounds: list[DirectionBound] = []
    for remove, estimated in zip((True, False), estimates, strict=True):
        best = dataclasses.replace(plain, estimate=estimated)
        if moments is not None:
            value = moment_delta(pair, moments, epsilon, estimated, remove=remove)
            if value < best.value:
                best = dataclasses.replace(best, value=value, bound="moments")
        needed = max([estimated, *(each.value for each in bounds)])
        if best.value > needed * (1 + _CLOSE):
            claims = [
                Claim(epsilon=epsilon, mean=each) for each in _approach(best.value, estimated) if each > 2 * failure
            ]
            direction = _direction(problem, pair, epsilon, remove=remove)
            count = strongest(
                direction, claims, samples=problem.samples, failure=failure / 2, generator=problem.generator
            )
            best = dataclasses.replace(best, samples=problem.samples)
            if count:
                best = dataclasses.replace(best, value=claims[count - 1].mean + failure, bound="Monte Carlo")
        bounds.append(best)
    delta = min(most, max(each.value for each in bounds))
    return _combined(problem, *bounds, epsilon=epsilon, delta=delta, failure=failure)
