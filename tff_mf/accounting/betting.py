"""Certificates by sampling: bets that are won only if a mean is small.

With L = log Z the loss without an independent Gaussian part of μ, which is integrated out (0 if there is none), δ(ε) is
E[Z·δ_G(ε − L)] for the run with the client against the run without it, and E[δ_G(ε + L)] for the opposite. Samples come
from proposals with density D relative to the law without the client, and D is at least a function of L alone: so the
range of the weighted samples is computed. docs/proofs.md has the proofs.
"""

import abc
import dataclasses
import math
from typing import Protocol

import numpy as np

from tff_mf.accounting.guarantee import Level
from tff_mf.accounting.secret import FAILURE

# Bounds the rounding error of everything that is computed from a sample, as an amount of ε and as a share of δ.
LOSS_SLACK, DELTA_SLACK = 1e-8, 1e-7
# Samples in memory at a time.
CHUNK = 4096
# Bets beside that which did best in the pilot.
_FACTORS = (0.4, 0.7, 1.0, 1.5)
_TRIED = 80
_BELOW_ONE = 0.999
_PILOT = 8000
# Claims approach the estimate by this factor, up to these shares of it.
_APPROACH, FINEST, _UNDER = 0.8, 5e-4, -0.004


@dataclasses.dataclass(frozen=True, kw_only=True)
class DirectionBound:
    """A bound in one direction of the adjacency.

    Attributes:
        value: The certified ε.
        estimate: An estimate of it, without a certificate.
        bound: The bound that was smallest: "unamplified", "no round", "Poisson sampling", "moments" or "moments of
            b-min-sep sampling" (deterministic), or "Monte Carlo".
        samples: Number of samples of the Monte Carlo bound, 0 if another one was close enough.
    """

    value: float
    estimate: float
    bound: str
    samples: int = 0

    def or_proved(self, value: float, name: str) -> "DirectionBound":
        """Returns the smaller of this bound and of one that needs no samples."""
        # NaN is no bound.
        if not value < self.value:
            return self
        # Not NumPy's number.
        return dataclasses.replace(self, value=float(value), estimate=float(value), bound=name)


def level_of(remove: DirectionBound, add: DirectionBound, *, delta: float, failure: float) -> Level:
    """Returns ε at δ, the larger of both directions; `failure` is of both together."""
    larger = remove if remove.value >= add.value else add
    certified = "Monte Carlo" in (remove.bound, add.bound)
    are_equal = remove.value == add.value and remove.bound == add.bound
    return Level(
        epsilon=larger.value,
        delta=delta,
        bound="certified" if certified else "proved",
        theorem=larger.bound,
        direction="both" if are_equal else "remove" if larger is remove else "add",
        failure=failure if certified else 0.0,
        samples=remove.samples + add.samples,
        estimate=max(remove.estimate, add.estimate),
    )


def log_mean_exp(values: np.ndarray) -> np.ndarray:
    """Returns log of the mean of exp over the last axis.

    Example:
        >>> float(log_mean_exp(np.zeros(3)))
        0.0
    """
    most = values.max(axis=-1, keepdims=True)
    return most[..., 0] + np.log(np.exp(values - most).mean(axis=-1))


def gaussian_delta(epsilon: np.ndarray, mu: float) -> np.ndarray:
    """Returns δ(ε) of one Gaussian release for an array of ε of any sign: E[(e^(μg − μ²/2) − e^ε)₊].

    It is also E[(1 − e^(ε + μg − μ²/2))₊]. The relative error is below 1e-8. With μ = 0 it is (1 − e^ε)₊.

    Example:
        >>> gaussian_delta(np.array([1.0]), 1 / 4.22468).round(8)
        array([1.e-06])
    """
    epsilon = np.asarray(epsilon, dtype=np.float64)
    if not mu:
        return -np.expm1(np.minimum(epsilon, 0.0))
    # Imported here: it takes half of the import time of the package.
    from scipy.special import erfcx, log_ndtr, ndtr

    at = epsilon / mu - mu / 2
    above = np.maximum(at, 0)
    below = np.minimum(at, 0)
    tails = erfcx(above / np.sqrt(2)) - erfcx((above + mu) / np.sqrt(2))
    far = 0.5 * np.exp(-above * above / 2) * np.maximum(tails, 0)
    near = ndtr(-below) - np.exp(np.minimum(epsilon, mu * mu / 2) + log_ndtr(-below - mu))
    return np.where(at > 0, far, near)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Sample:
    """Losses L of a sample of one direction, and the logarithm of the density of its proposals."""

    mu: float
    loss: np.ndarray
    log_density: np.ndarray
    remove: bool

    def values(self, epsilon: float) -> np.ndarray:
        """Returns independent numbers of at least 0, whose expectation is at least δ(ε), rounded up."""
        epsilon -= LOSS_SLACK
        if self.remove:
            heights = gaussian_delta(epsilon - self.loss, self.mu) * np.exp(self.loss - self.log_density)
        else:
            heights = gaussian_delta(epsilon + self.loss, self.mu) * np.exp(-self.log_density)
        return heights * (1 + DELTA_SLACK)


class Direction(Protocol):
    """One direction of the adjacency, with the proposals that its samples come from."""

    def most(self, epsilon: float) -> float:
        """Returns a bound of all values at ε."""
        ...

    def sample(self, count: int, generator: np.random.Generator) -> Sample:
        """Returns a sample; which proposal a value comes from is drawn for each independently."""
        ...


@dataclasses.dataclass(frozen=True, kw_only=True)
class AddDirection(abc.ABC):
    """The run without the client against the run with it: δ(ε) = E[δ_G(ε + L)].

    Half of the samples is from the law without the client, the other half has the mean −τ·g, where g is the mean of
    what the client adds, in units of σ: its density is exp(−τ⟨g, y⟩ − τ²‖g‖²/2), and by Jensen's inequality ⟨g, y⟩ is
    at most L and half of the mean of the squared norm of what the client adds.

    Attributes:
        shift: τ.
    """

    shift: float

    @property
    def mu(self) -> float:
        """μ of the Gaussian part."""
        return 0.0

    @abc.abstractmethod
    def ends(self, epsilon: float) -> np.ndarray:
        """Returns losses, increasing, between which the range of values at ε is bounded; any are valid."""

    @property
    @abc.abstractmethod
    def square(self) -> float:
        """‖g‖²."""

    @property
    @abc.abstractmethod
    def half(self) -> float:
        """By how much ⟨g, y⟩ exceeds L at most."""

    @property
    def least(self) -> float:
        """A bound of all losses from below."""
        return -math.inf

    @abc.abstractmethod
    def drawn(self, shifts: np.ndarray, generator: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        """Returns L and ⟨g, y⟩ of one y for each of some τ, float64 `[count, 1]`."""

    def sample(self, count: int, generator: np.random.Generator) -> Sample:
        """Returns a sample; whether a value is shifted is drawn for each independently."""
        shifts = self.shift * (generator.random((count, 1)) < 0.5)
        parts = [self.drawn(shifts[begin : begin + CHUNK], generator) for begin in range(0, count, CHUNK)]
        loss, along = (np.concatenate(chunks) for chunks in zip(*parts, strict=True))
        return Sample(mu=self.mu, loss=loss, log_density=self.log_density(along), remove=False)

    def log_density(self, along: np.ndarray) -> np.ndarray:
        """Returns the logarithm of the density of the proposals at ⟨g, y⟩."""
        return np.logaddexp(0.0, -self.shift * along - self.shift**2 * self.square / 2) - math.log(2)

    def most(self, epsilon: float) -> float:
        """Returns a bound of all values: the supremum over ℓ of δ_G(ε + ℓ) / D(ℓ), D the least density.

        Both fall in ℓ. To the left of all intervals δ_G is that of the least loss, and to the right D is at least ½.
        """
        epsilon -= LOSS_SLACK
        ends = self.ends(epsilon)
        ends = ends[ends > self.least]
        heights = gaussian_delta(epsilon + np.concatenate([[self.least], ends]), self.mu)
        inverse = np.append(np.exp(-self.log_density(ends + self.half)), 2.0)
        return float(np.max(heights * inverse)) * (1 + 4 * DELTA_SLACK)


def approach(high: float, estimate: float) -> list[float]:
    """Returns figures below `high` that fall towards the estimate, and a little below it."""
    excess = high / estimate - 1
    excesses = []
    while excess > FINEST:
        excess *= _APPROACH
        excesses.append(excess)
    excesses += [0.0, _UNDER / 4, _UNDER / 2, _UNDER]
    return [estimate * (1 + excess) for excess in excesses if estimate * (1 + excess) < high]


def certified_epsilon(
    proved: DirectionBound,
    direction: Direction,
    aim: float,
    delta: float,
    *,
    samples: int,
    failure: float,
    generator: np.random.Generator,
) -> DirectionBound:
    """Returns the smaller of a proved ε and of one near `aim` that samples certify, for δ less what may fail."""
    epsilons, mean = approach(proved.value, aim), delta * (1 - FAILURE)
    count = certified_count(direction, epsilons, mean, samples=samples, failure=failure, generator=generator)
    proved = dataclasses.replace(proved, samples=samples)
    return dataclasses.replace(proved, value=epsilons[count - 1], bound="Monte Carlo") if count else proved


def certified_count(
    direction: Direction,
    epsilons: list[float],
    mean: float,
    *,
    samples: int,
    failure: float,
    generator: np.random.Generator,
) -> int:
    """Returns how many of the claims that δ(ε) is at most `mean`, in their order, are certified.

    Formal guarantee: let ε fall, so that every claim implies those before it. The probability that a false claim is
    certified is at most `failure`: where one is, so is the first false claim, whose own test is wrong with at most this
    probability. Claims, proposals and bets depend on the pilot only, which is independent of the samples.
    """
    pilot = direction.sample(_PILOT, generator)
    sample = direction.sample(samples, generator)
    for index, epsilon in enumerate(epsilons):
        bets = best_bets(pilot.values(epsilon), mean, direction.most(epsilon))
        if not mean_is_at_most(sample.values(epsilon), mean, bets, failure):
            return index
    return len(epsilons)


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
