"""Both directions of the adjacency: what is averaged over samples for δ(ε), and the range of its values."""

import dataclasses
import math

import numpy as np

from tff_mf.accounting.balls_in_bins._pair import DELTA_SLACK, LOSS_SLACK, Pair, gaussian_delta, log_mean_exp
from tff_mf.accounting.balls_in_bins._tilts import Sampler, Tilts
from tff_mf.accounting.betting import growth

_STEPS = 6000
_CHUNK = 8192
_PILOT = 8000
# Shares of the powers to try, and θ of the remaining share.
_POWERS = ((0.1, 0.0, 0.0, 0.0), (0.1, 0.2, 0.4, 0.0), (0.1, 0.1, 0.2, 0.4), (0.05, 0.05, 0.1, 0.75))
_TILTS = (1.3, 1.7, 2.3, 3.0, 4.5, 7.0, 11.0, 16.0)
_SHIFTS = (0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 300.0)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Sample:
    """Losses L′ of a sample of one direction, and the logarithm of the density of its proposals divided by q."""

    pair: Pair
    loss: np.ndarray
    log_density: np.ndarray
    remove: bool

    def values(self, epsilon: float) -> np.ndarray:
        """Returns independent numbers, whose expectation is at least δ(ε), rounded up."""
        mu = math.sqrt(self.pair.common)
        epsilon -= LOSS_SLACK
        if self.remove:
            heights = gaussian_delta(epsilon - self.loss, mu) * np.exp(self.loss - self.log_density)
        else:
            heights = gaussian_delta(epsilon + self.loss, mu) * np.exp(-self.log_density)
        return heights * (1 + DELTA_SLACK)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Remove:
    """The run with the client against the run without it: δ(ε) = E_q[Z·δ_G(ε − L′)]."""

    sampler: Sampler
    tilts: Tilts

    def sample(self, count: int, generator: np.random.Generator) -> Sample:
        """Returns a sample; which proposal a value comes from is drawn for each independently."""
        counts = generator.multinomial(count, self.tilts.shares)
        parts = list(self.sampler.samples(self.tilts, counts, generator))
        loss, tilted = (np.concatenate(each) for each in zip(*parts, strict=True))
        density = self.sampler.log_density(loss, self.tilts, tilted)
        return Sample(pair=self.sampler.pair, loss=loss, log_density=density, remove=True)

    def most(self, epsilon: float) -> float:
        """Returns a bound of all values: the supremum over L′ = ℓ of δ_G(ε − ℓ)·e^ℓ / D(ℓ), D the least density.

        δ_G(ε − ℓ) rises, and D(ℓ)·e^(−ℓ) does not fall, so that an interval is bounded by the first at its right and
        the second at its left. D(ℓ)·e^(−ℓ) is at least the share of power 1, which bounds what is left of all of them.
        """
        mu = math.sqrt(self.sampler.pair.common)
        epsilon -= LOSS_SLACK
        ends = np.linspace(-6 * mu - float(self.sampler.pair.variances.max()) - 2, epsilon + 30 * mu + 4, _STEPS)
        rises = np.append(gaussian_delta(epsilon - ends, mu), 1.0)
        falls = self.sampler.log_density(ends, self.tilts, self.tilts.tilt * ends) - ends
        inverse = np.concatenate([[1 / self.tilts.powers[0]], np.exp(-falls)])
        return float(np.max(rises * inverse)) * (1 + 4 * DELTA_SLACK)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Add:
    """The run without the client against the run with it: δ(ε) = E_q[δ_G(ε + L′)].

    Half of the samples is from q, the other half has the mean −τ·K′1/b: its density divided by q is
    exp(−τ·ā − τ²v/2) with ā the mean of a and v its variance, and ā ≤ L′ + (mean of K′_jj)/2 by Jensen's inequality.
    """

    pair: Pair
    shift: float

    def sample(self, count: int, generator: np.random.Generator) -> Sample:
        """Returns a sample; whether a value is shifted is drawn for each independently."""
        shifted = generator.uniform(size=count) < 0.5
        direction = self.shift * self.pair.covariance.mean(axis=0)
        losses, densities = [], []
        for start in range(0, count, _CHUNK):
            moved = shifted[start : start + _CHUNK, np.newaxis]
            vector = generator.standard_normal((len(moved), self.pair.bins)) @ self.pair.root.T - moved * direction
            losses.append(log_mean_exp(vector - self.pair.variances / 2))
            densities.append(self._log_density(vector.mean(axis=1)))
        return Sample(pair=self.pair, loss=np.concatenate(losses), log_density=np.concatenate(densities), remove=False)

    def _log_density(self, mean: np.ndarray) -> np.ndarray:
        variance = float(self.pair.covariance.mean())
        return np.logaddexp(0.0, -self.shift * mean - self.shift**2 * variance / 2) - math.log(2)

    def most(self, epsilon: float) -> float:
        """Returns a bound of all values: the supremum over ℓ of δ_G(ε + ℓ) / D(ℓ), D the least density.

        Both fall in ℓ. To the left of all intervals δ_G is at most 1, and to the right D is at least ½.
        """
        mu = math.sqrt(self.pair.common)
        epsilon -= LOSS_SLACK
        half = float(self.pair.variances.mean()) / 2
        ends = np.linspace(-half - epsilon - 30 * mu - 4, 6 * mu + 2, _STEPS)
        heights = np.concatenate([[1.0], gaussian_delta(epsilon + ends, mu)])
        inverse = np.append(np.exp(-self._log_density(ends + half)), 2.0)
        return float(np.max(heights * inverse)) * (1 + 4 * DELTA_SLACK)


def remove_direction(pair: Pair, epsilon: float, generator: np.random.Generator) -> Remove:
    """Returns proposals near the best for δ(ε), found by a pilot."""
    sampler = Sampler(pair)
    found = []
    for powers in _POWERS:
        if powers[3] and not sampler.has_fourth:
            continue
        tried = [Remove(sampler=sampler, tilts=Tilts(powers=powers, tilt=tilt)) for tilt in _TILTS]
        tried = sorted(tried, key=lambda each: each.most(epsilon))[: 3 if powers is _POWERS[0] else 1]
        found += [
            (growth(each.sample(_PILOT // 2, generator).values(epsilon), each.most(epsilon)), index, each)
            for index, each in enumerate(tried, len(found))
        ]
    return max(found)[-1]


def add_direction(pair: Pair, epsilon: float) -> Add:
    """Returns the proposal with the smallest range."""
    return min((Add(pair=pair, shift=shift) for shift in _SHIFTS), key=lambda each: each.most(epsilon))
