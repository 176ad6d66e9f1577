"""ε and δ at one σ, for real numbers: the smallest of an unamplified, two deterministic and a Monte Carlo bound."""

import dataclasses
import math

import numpy as np

from tff_mf import gaussian
from tff_mf.accounting._result import Level
from tff_mf.accounting._sampling import FAILURE
from tff_mf.accounting.balls_in_bins._directions import Add, Remove
from tff_mf.accounting.balls_in_bins._estimate import BallsInBinsEstimator
from tff_mf.accounting.balls_in_bins._independent import independent_delta, independent_epsilon, is_independent
from tff_mf.accounting.balls_in_bins._majorant import Moments, moment_delta, moment_epsilon
from tff_mf.accounting.balls_in_bins._pair import Pair, dominating_pair
from tff_mf.accounting.balls_in_bins._search import add_direction, remove_direction
from tff_mf.accounting.balls_in_bins._tilts import LARGEST_VARIANCE
from tff_mf.accounting.betting import Claim, DirectionBound, strongest

# The deterministic bound is taken if it exceeds the estimate by less than this share.
_CLOSE = 0.004
# Claims approach the estimate by this factor, up to these shares of it.
_APPROACH, _FINEST, _UNDER = 0.8, 5e-4, -0.004


@dataclasses.dataclass(frozen=True, kw_only=True)
class Problem:
    """G with its error, for one σ, and the source of random numbers."""

    gram: np.ndarray
    error: float
    sigma: float
    samples: int
    generator: np.random.Generator

    def pair(self) -> Pair:
        """Returns a pair of distributions that dominates."""
        return dominating_pair(self.gram / self.sigma**2, relative_error=self.error + 2.0**-50)

    def mu(self) -> float:
        """Returns μ of a client whose group is known; conditioning on the group never makes ε smaller."""
        return gaussian.mu_of(math.sqrt(float(np.max(np.diagonal(self.gram))) * (1 + self.error)), self.sigma)


def _combined(
    remove: DirectionBound,
    add: DirectionBound,
    *,
    failure: float,
    epsilon: float | None = None,
    delta: float | None = None,
) -> Level:
    """Returns ε at `delta`, or δ at `epsilon`, of the direction that decides."""
    worst, other = (remove, add) if remove.value >= add.value else (add, remove)
    certified = "Monte Carlo" in (remove.bound, add.bound)
    both = worst.value == other.value and worst.bound == other.bound
    return Level(
        epsilon=worst.value if epsilon is None else epsilon,
        delta=worst.value if delta is None else delta,
        bound="certified" if certified else "proved",
        theorem=worst.bound,
        direction="both" if both else "remove" if worst is remove else "add",
        failure=failure if certified else 0.0,
        samples=remove.samples + add.samples,
        estimate=max(remove.estimate, add.estimate),
    )


def _amplifies(problem: Problem, pair: Pair | None) -> bool:
    return pair is not None and len(problem.gram) > 1 and float(np.max(pair.variances)) <= LARGEST_VARIANCE


def epsilon_bound(problem: Problem, delta: float, *, failure: float) -> Level:
    """Returns ε; half of `failure` is for either direction. Without any, no samples are drawn."""
    return _combined(*directions(problem, delta, failure=failure), delta=delta, failure=failure)


def directions(problem: Problem, delta: float, *, failure: float) -> tuple[DirectionBound, DirectionBound]:
    """Returns ε for the run with the client against the run without it, and for the opposite."""
    most = gaussian.epsilon_from_delta(delta, problem.mu() if problem.sigma else math.inf)
    plain = DirectionBound(value=most, estimate=most, bound="unamplified", samples=0)
    bins = len(problem.gram)
    if 0 < most < math.inf and is_independent(problem.gram):
        remove, add = (independent_epsilon(plain, bins, problem.mu(), delta, remove=each) for each in (True, False))
        return remove, add
    pair = problem.pair() if 0 < most < math.inf else None
    if pair is None or not _amplifies(problem, pair):
        return plain, plain
    moments = Moments.of(pair)
    estimate = BallsInBinsEstimator(problem.gram).epsilon(noise_multiplier=problem.sigma, delta=delta)
    remove = _bounded(problem, pair, moments, plain, estimate.remove, delta, failure, least=None)
    return remove, _bounded(problem, pair, moments, plain, estimate.add, delta, failure, least=remove.value)


def _bounded(
    problem: Problem,
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


def _direction(problem: Problem, pair: Pair, epsilon: float, *, remove: bool) -> Remove | Add:
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


def delta_bound(problem: Problem, epsilon: float) -> Level:
    """Returns δ at ε; it includes what a certificate by sampling may fail with."""
    most = gaussian.delta_from_epsilon(epsilon, problem.mu())
    plain = DirectionBound(value=most, estimate=most, bound="unamplified", samples=0)
    bins = len(problem.gram)
    if most > 1e-300 and is_independent(problem.gram):
        remove, add = (independent_delta(plain, bins, problem.mu(), epsilon, remove=each) for each in (True, False))
        return _combined(remove, add, epsilon=epsilon, failure=0.0)
    pair = problem.pair() if most > 1e-300 else None
    if pair is None or not _amplifies(problem, pair):
        return _combined(plain, plain, epsilon=epsilon, failure=0.0)
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
    return _combined(
        *(dataclasses.replace(each, value=min(most, each.value)) for each in bounds), epsilon=epsilon, failure=failure
    )
