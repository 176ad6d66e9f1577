"""Balls in bins by samples: the proposals of both directions.

Under q, a is Gaussian with mean 0 and covariance K′, Z = (1/b) Σ_j exp(a_j − K′_jj/2), L′ = log Z. Proposals:

    power r = 1, …, 4:  density q·Z^r / m_r with m_r = E_q[Z^r]: a mixture over r indices, of which each set has weight
                        exp(Σ K′ over its pairs) and mean Σ K′e_j, since Z^r is a sum of products of exponentials;
    tilt θ ≥ 1:         density q·T_θ / z_θ with T_θ = (1/b) Σ_j exp(θ(a_j − K′_jj/2)) and z_θ = E_q[T_θ]: a mixture
                        over one index with weight exp(θ(θ − 1)K′_jj/2) and mean θ·K′e_j. T_θ ≥ Z^θ.

Each density divided by q is therefore at least a function of L′ alone, so that the range of an estimator is computed.
"""

import dataclasses
import math

import numpy as np

from tff_mf.accounting.balls_in_bins._pair import Pair
from tff_mf.accounting.betting import CHUNK, AddDirection, RemoveDirection, Sample, growth, log_mean_exp

# exp of six times this variance, the largest weight of four indices, is a float.
LARGEST_VARIANCE = 60.0
# Above it, sums over four indices take minutes, and power 4 has no share.
_MOST_BINS = 512
_STEPS = 6000
_PILOT = 8000
# Shares of the powers to try, and θ of the remaining share.
_POWERS = ((0.1, 0.0, 0.0, 0.0), (0.1, 0.2, 0.4, 0.0), (0.1, 0.1, 0.2, 0.4), (0.05, 0.05, 0.1, 0.75))
_TILTS = (1.3, 1.7, 2.3, 3.0, 4.5, 7.0, 11.0, 16.0)
_SHIFTS = (0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 300.0)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Tilts:
    """A mixture of proposals.

    Attributes:
        powers: The share of each power 1, …, 4, float64 `[4]`; that of power 1 is above 0.
        tilt: θ of the remaining share; at least 1.
    """

    powers: tuple[float, float, float, float]
    tilt: float

    @property
    def shares(self) -> np.ndarray:
        """The shares of the powers and of the tilt, which add up to 1."""
        return np.array([*self.powers, max(0.0, 1 - sum(self.powers))])


class Sampler:
    """Draws samples of a from mixtures of proposals, for one covariance K′.

    Args:
        pair: The pair; its variances are at most `LARGEST_VARIANCE`.
    """

    def __init__(self, pair: Pair):
        self.pair = pair
        self._weights = np.exp(pair.covariance)
        self._squared = self._weights @ self._weights
        self.has_fourth = pair.bins <= _MOST_BINS
        self._of_first = np.zeros(pair.bins)
        if self.has_fourth:
            self._of_first = np.array([np.sum(self._quadruples(first)) for first in range(pair.bins)])
        bins = float(pair.bins)
        moments = [
            1.0,
            np.sum(self._weights) / bins**2,
            np.sum(self._weights * self._squared) / bins**3,
            np.sum(self._of_first) / bins**4,
        ]
        self.log_moments = np.log(np.maximum(np.array(moments), 1e-300))

    def log_tilted_moment(self, tilt: float) -> float:
        """Returns log z_θ."""
        return float(log_mean_exp(tilt * (tilt - 1) / 2 * self.pair.variances))

    def log_density(self, loss: np.ndarray, tilts: Tilts, log_tilted: np.ndarray) -> np.ndarray:
        """Returns log of the density of the mixture divided by q.

        Args:
            loss: L′.
            tilts: The mixture.
            log_tilted: log T_θ of the same samples; θ·L′ in its place gives a lower bound.
        """
        parts = [
            np.log(share) + power * loss - self.log_moments[power - 1]
            for power, share in enumerate(tilts.powers, 1)
            if share
        ]
        rest = tilts.shares[-1]
        if rest:
            parts.append(np.log(rest) + log_tilted - self.log_tilted_moment(tilts.tilt))
        return np.logaddexp.reduce(parts)

    def samples(self, tilts: Tilts, counts: np.ndarray, generator: np.random.Generator):
        """Yields L′ and log T_θ of `counts` samples of each proposal, in chunks, each float64."""
        triples = self._triples(int(counts[3]), generator)
        for proposal, count in enumerate(counts):
            for start in range(0, int(count), CHUNK):
                size = min(CHUNK, int(count) - start)
                if proposal == len(tilts.powers):
                    means = self._tilted_means(size, tilts.tilt, generator)
                else:
                    means = self._means(proposal + 1, triples[start : start + size], size, generator)
                exponents = generator.standard_normal((size, self.pair.bins)) @ self.pair.root.T
                exponents += means
                exponents -= self.pair.variances / 2
                loss = log_mean_exp(exponents)
                tilted = log_mean_exp(tilts.tilt * exponents) if tilts.shares[-1] else loss
                yield loss, tilted

    def _tilted_means(self, size: int, tilt: float, generator: np.random.Generator) -> np.ndarray:
        exponents = tilt * (tilt - 1) / 2 * self.pair.variances
        index = _draw(np.exp(exponents - exponents.max()), size, generator)
        return tilt * self.pair.covariance[index]

    def _means(self, power: int, triples: np.ndarray, size: int, generator: np.random.Generator) -> np.ndarray:
        """Returns Σ K′e_j over `power` indices, drawn with their weights."""
        covariance, bins = self.pair.covariance, self.pair.bins
        if power == 1:
            return covariance[generator.integers(bins, size=size)]
        if power < 4:
            table = self._weights if power == 2 else self._weights * self._squared
            first, second = np.divmod(_draw(table.ravel(), size, generator), bins)
            means = covariance[first] + covariance[second]
            if power == 2:
                return means
            given = self._weights[first] * self._weights[second]
        else:
            first, second, third = triples.T
            means = covariance[first] + covariance[second] + covariance[third]
            given = self._weights[first] * self._weights[second] * self._weights[third]
        return means + covariance[_draw_rows(given, generator)]

    def _triples(self, count: int, generator: np.random.Generator) -> np.ndarray:
        """Returns the first three of four indices, in random order, int64 `[count, 3]`."""
        found = np.empty((count, 3), dtype=np.int64)
        first = np.sort(_draw(self._of_first, count, generator))
        starts = np.searchsorted(first, np.arange(self.pair.bins + 1))
        for index in np.unique(first):
            begin, end = starts[index], starts[index + 1]
            pairs = _draw(self._quadruples(index).ravel(), end - begin, generator)
            found[begin:end, 0] = index
            found[begin:end, 1], found[begin:end, 2] = np.divmod(pairs, self.pair.bins)
        return generator.permutation(found)

    def _quadruples(self, first: int) -> np.ndarray:
        """Returns the sum over the fourth index of the weights, by the second and the third."""
        row = self._weights[first]
        scaled = self._weights * row
        return (scaled @ self._weights) * scaled * row[:, np.newaxis]


def _draw(weights: np.ndarray, size: int, generator: np.random.Generator) -> np.ndarray:
    """Returns indices drawn with probabilities proportional to the weights."""
    sums = np.cumsum(weights)
    found = np.searchsorted(sums, generator.uniform(size=size) * sums[-1], side="right")
    return np.minimum(found, len(weights) - 1)


def _draw_rows(weights: np.ndarray, generator: np.random.Generator) -> np.ndarray:
    """Returns one index per row, drawn with probabilities proportional to its weights."""
    sums = np.cumsum(weights, axis=1)
    levels = generator.uniform(size=(len(weights), 1)) * sums[:, -1:]
    return np.minimum((sums <= levels).sum(axis=1), weights.shape[1] - 1)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Remove(RemoveDirection):
    """The run with the client against the run without it."""

    sampler: Sampler
    tilts: Tilts

    @property
    def mu(self) -> float:
        return math.sqrt(self.sampler.pair.common)

    @property
    def plain_share(self) -> float:
        return self.tilts.powers[0]

    def ends(self, epsilon: float) -> np.ndarray:
        least = -6 * self.mu - float(self.sampler.pair.variances.max()) - 2
        return np.linspace(least, epsilon + 30 * self.mu + 4, _STEPS)

    def least_log_density(self, losses: np.ndarray) -> np.ndarray:
        return self.sampler.log_density(losses, self.tilts, self.tilts.tilt * losses)

    def sample(self, count: int, generator: np.random.Generator) -> Sample:
        counts = generator.multinomial(count, self.tilts.shares)
        parts = list(self.sampler.samples(self.tilts, counts, generator))
        loss, tilted = (np.concatenate(each) for each in zip(*parts, strict=True))
        density = self.sampler.log_density(loss, self.tilts, tilted)
        return Sample(mu=self.mu, loss=loss, log_density=density, remove=True)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Add(AddDirection):
    """The run without the client against the run with it: y is such that a has the mean −τ·K′1/b, and ⟨g, y⟩ is ā."""

    pair: Pair

    @property
    def mu(self) -> float:
        return math.sqrt(self.pair.common)

    @property
    def square(self) -> float:
        return float(self.pair.covariance.mean())

    @property
    def half(self) -> float:
        return float(self.pair.variances.mean()) / 2

    def ends(self, epsilon: float) -> np.ndarray:
        return np.linspace(-self.half - epsilon - 30 * self.mu - 4, 6 * self.mu + 2, _STEPS)

    def drawn(self, shifts: np.ndarray, generator: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        vector = generator.standard_normal((len(shifts), self.pair.bins)) @ self.pair.root.T
        vector -= shifts * self.pair.covariance.mean(axis=0)
        return log_mean_exp(vector - self.pair.variances / 2), vector.mean(axis=1)


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
