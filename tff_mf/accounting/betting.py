"""Certificates by sampling: a bet that is won only if the mean of bounded random variables is small."""

import dataclasses
import typing

import numpy as np

from tff_mf.accounting._result import Level

# Bets beside that which did best in the pilot.
_FACTORS = (0.4, 0.7, 1.0, 1.5)
_TRIED = 80
_BELOW_ONE = 0.999
_PILOT = 8000


@dataclasses.dataclass(frozen=True, kw_only=True)
class Claim:
    """The claim that δ(ε) of one direction is at most `mean`."""

    epsilon: float
    mean: float


@dataclasses.dataclass(frozen=True, kw_only=True)
class DirectionBound:
    """A bound in one direction of the adjacency.

    Attributes:
        value: The certified ε, or δ.
        estimate: An estimate of it, without a certificate.
        bound: The bound that was smallest: "unamplified", "no round", "allocation", "Poisson sampling", "moments" or
            "moments of b-min-sep sampling" (deterministic), or "Monte Carlo".
        samples: Number of samples of the Monte Carlo bound, 0 if another one was close enough.
    """

    value: float
    estimate: float
    bound: str
    samples: int


def decided(
    remove: DirectionBound,
    add: DirectionBound,
    *,
    failure: float,
    epsilon: float | None = None,
    delta: float | None = None,
) -> Level:
    """Returns ε at `delta`, or δ at `epsilon`, of the direction that decides; `failure` is of both together."""
    worst = remove if remove.value >= add.value else add
    certified = "Monte Carlo" in (remove.bound, add.bound)
    both = remove.value == add.value and remove.bound == add.bound
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


class Sample(typing.Protocol):
    """A sample of one direction."""

    def values(self, epsilon: float) -> np.ndarray:
        """Returns independent numbers of at least 0, whose expectation is at least δ(ε)."""
        ...


class Direction(typing.Protocol):
    """One direction of the adjacency, with the proposals that its samples come from."""

    def sample(self, count: int, generator: np.random.Generator) -> Sample:
        """Returns a sample."""
        ...

    def most(self, epsilon: float) -> float:
        """Returns a bound of all values at ε."""
        ...


def strongest(
    direction: Direction, claims: list[Claim], *, samples: int, failure: float, generator: np.random.Generator
) -> int:
    """Returns how many of the claims, in their order, are certified.

    Formal guarantee: let every claim imply those before it. The probability that a false claim is certified is at most
    `failure`: that is then so of the first false one, whose test alone decides. Claims, proposals and bets depend on
    the pilot only, which is independent of the samples.
    """
    pilot = direction.sample(_PILOT, generator)
    sample = direction.sample(samples, generator)
    for index, claim in enumerate(claims):
        bets = best_bets(pilot.values(claim.epsilon), claim.mean, direction.most(claim.epsilon))
        if not mean_is_at_most(sample.values(claim.epsilon), claim.mean, bets, failure):
            return index
    return len(claims)


def is_hopeless(direction: Direction, epsilon: float, delta: float, *, samples: int, failure: float) -> bool:
    """Returns whether no sample certifies this ε: not even one of zeros alone, on which a bet wins most."""
    return samples * np.log1p(delta / direction.most(epsilon)) < -np.log(failure)


def best_bets(pilot: np.ndarray, mean: float, most: float) -> np.ndarray:
    """Returns a few stakes λ with 1 + λ(mean − x) > 0 for all x from 0 to `most`, near the best for the pilot."""
    largest = _BELOW_ONE / max(most - mean, mean * 1e-9)
    tried = largest * np.geomspace(1e-5, 1, _TRIED)
    growth = [np.mean(np.log1p(stake * (mean - pilot))) for stake in tried]
    return np.unique(np.minimum(np.array(_FACTORS) * tried[int(np.argmax(growth))], largest))


def growth(pilot: np.ndarray, most: float) -> float:
    """Returns by how much the best bet on a tenth more than the mean grows per sample: more for better proposals."""
    mean = 1.1 * float(np.mean(pilot)) + 1e-300
    return max(float(np.mean(np.log1p(stake * (mean - pilot)))) for stake in best_bets(pilot, mean, most))


def mean_is_at_most(values: np.ndarray, mean: float, bets: np.ndarray, failure: float) -> bool:
    """Returns whether independent samples show that their expectation is at most `mean`.

    Formal guarantee: let the values be independent, with the same expectation above `mean`, and each from 0 to a bound
    for which the stakes were chosen. Then the result is True with a probability of at most `failure`.

    Proof: for each stake λ the factors 1 + λ(mean − X_i) are at least 0 and have an expectation below 1, so that their
    product has one, and so has the average of the products over the stakes. By Markov's inequality that average is at
    least 1/failure with a probability of at most `failure`.

    Args:
        values: float64 `[samples]`.
        mean: The claim.
        bets: Stakes that do not depend on the values.
        failure: Probability of a wrong result.

    Source: Waudby-Smith and Ramdas (2024), "Estimating means of bounded random variables by betting", section 4.

    Example:
        >>> values = np.full(1000, 0.1)
        >>> mean_is_at_most(values, 0.2, best_bets(values[:10], 0.2, 1.0), 1e-6)
        True
        >>> mean_is_at_most(values, 0.1, best_bets(values[:10], 0.1, 1.0), 1e-6)
        False
    """
    logs = [float(np.sum(np.log1p(stake * (mean - values)))) for stake in bets]
    wealth = np.logaddexp.reduce(logs) - np.log(len(logs))
    # The sum of the logarithms is rounded by less.
    return bool(wealth * (1 - 1e-9) - 1e-6 >= -np.log(failure))
