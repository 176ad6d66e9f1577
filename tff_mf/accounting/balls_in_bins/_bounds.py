"""ε and δ at one σ, for real numbers: the smallest of an unamplified, two deterministic and a Monte Carlo bound."""

import dataclasses
import math

import numpy as np

from tff_mf.accounting import allocation
from tff_mf.accounting._result import Level
from tff_mf.accounting._secret_run import FAILURE
from tff_mf.accounting.balls_in_bins._directions import Add, Remove, add_direction, remove_direction
from tff_mf.accounting.balls_in_bins._estimate import BallsInBinsEstimator
from tff_mf.accounting.balls_in_bins._majorant import Moments, moment_delta, moment_epsilon
from tff_mf.accounting.balls_in_bins._pair import Pair, dominating_pair
from tff_mf.accounting.balls_in_bins._tilts import LARGEST_VARIANCE
from tff_mf.accounting.betting import Claim, DirectionBound, decided, strongest
from tff_mf.numerics import gaussian

# The deterministic bound is taken if it exceeds the estimate by less than this share.
_CLOSE = 0.004
# Claims approach the estimate by this factor, up to these shares of it.
_APPROACH, _FINEST, _UNDER = 0.8, 5e-4, -0.004
# δ below it is not told from 0.
_LEAST_DELTA = 1e-250


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


def _amplifies(problem: Problem, pair: Pair | None) -> bool:
    return pair is not None and len(problem.gram) > 1 and float(np.max(pair.variances)) <= LARGEST_VARIANCE


def epsilon_bound(problem: Problem, delta: float, *, failure: float) -> Level:
    """Returns ε; half of `failure` is for either direction. Without any, no samples are drawn."""
    return decided(*directions(problem, delta, failure=failure), delta=delta, failure=failure)


def directions(problem: Problem, delta: float, *, failure: float) -> tuple[DirectionBound, DirectionBound]:
    """Returns ε for the run with the client against the run without it, and for the opposite."""
    most = gaussian.epsilon_from_delta(delta, problem.mu() if problem.sigma else math.inf)
    plain = DirectionBound(value=most, estimate=most, bound="unamplified", samples=0)
    bins = len(problem.gram)
    if 0 < most < math.inf and _is_independent(problem.gram):
        remove, add = (_independent_epsilon(plain, bins, problem.mu(), delta, remove=each) for each in (True, False))
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
    if most > 1e-300 and _is_independent(problem.gram):
        remove, add = (_independent_delta(plain, bins, problem.mu(), epsilon, remove=each) for each in (True, False))
        return decided(remove, add, epsilon=epsilon, failure=0.0)
    pair = problem.pair() if most > 1e-300 else None
    if pair is None or not _amplifies(problem, pair):
        return decided(plain, plain, epsilon=epsilon, failure=0.0)
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
    return decided(
        *(dataclasses.replace(each, value=min(most, each.value)) for each in bounds), epsilon=epsilon, failure=failure
    )


def _is_independent(gram: np.ndarray) -> bool:
    """Whether G is diagonal.

    Example:
        >>> bool(_is_independent(np.eye(2))), bool(_is_independent(np.ones((2, 2))))
        (True, False)
    """
    return np.count_nonzero(gram - np.diag(np.diagonal(gram))) == 0


def _independent_epsilon(plain: DirectionBound, bins: int, mu: float, delta: float, *, remove: bool) -> DirectionBound:
    """Returns the smaller of `plain` and of ε at `delta` for terms that are all as large as the largest.

    Formal guarantee: by Kahane's inequality, δ grows with every entry of the diagonal of K.
    """
    atoms = allocation.one_of_many(bins, mu, delta)
    if atoms is None:
        return plain
    return _smaller(plain, atoms.epsilon(delta, most=plain.value, remove=remove))


def _independent_delta(plain: DirectionBound, bins: int, mu: float, epsilon: float, *, remove: bool) -> DirectionBound:
    """Returns the smaller of `plain` and of δ at `epsilon`; as `_independent_epsilon`."""
    near = plain.value
    for _ in range(2):
        atoms = allocation.one_of_many(bins, mu, min(max(near, _LEAST_DELTA), 0.1))
        if atoms is None:
            return plain
        near = min(near, atoms.delta(epsilon, remove=remove))
    return _smaller(plain, near)


def _smaller(plain: DirectionBound, value: float) -> DirectionBound:
    if value >= plain.value:
        return plain
    return dataclasses.replace(plain, value=value, estimate=value, bound="allocation")
