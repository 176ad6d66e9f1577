"""Certificates by sampling for balls in bins: bets that are won only if a mean is small.

With L′ = log Z′ the loss without its Gaussian part of μ, which is integrated out, δ(ε) is E[Z′·δ_G(ε − L′)] for the run
with the client against the run without it. Samples come from proposals with density D relative to the law without the
client, and D is at least a function of L′ alone: so the range of the weighted samples is computed. docs/proofs.md has
the proofs.
"""

import dataclasses
import math

import numpy as np

from tff_mf.accounting._bins_moments import DELTA_SLACK, LOSS_SLACK, Pair, gaussian_delta
from tff_mf.accounting.guarantee import Level
from tff_mf.accounting.secret import FAILURE

# Samples in memory at a time.
_CHUNK = 4096
# Bets beside that which did best in the pilot.
_FACTORS = (0.4, 0.7, 1.0, 1.5)
_TRIED = 80
_BELOW_ONE = 0.999
# Samples of a pilot, and of one that compares proposals.
_PILOT, _FEW = 8000, 4000
# Claims approach the estimate by this factor, up to these shares of it.
_APPROACH, FINEST, _UNDER = 0.8, 5e-4, -0.004
# Of proposals: above so many bins, sums over four indices take minutes, and power 4 has no share; steps of the range;
# shares of the powers to try, and θ of the remaining share.
_MOST_FOURTH, _STEPS = 512, 6000
_POWERS = ((0.1, 0.0, 0.0, 0.0), (0.1, 0.2, 0.4, 0.0), (0.1, 0.1, 0.2, 0.4), (0.05, 0.05, 0.1, 0.75))
_TILTS = (1.3, 1.7, 2.3, 3.0, 4.5, 7.0, 11.0, 16.0)

# L′ and log D of samples.
Sample = tuple[np.ndarray, np.ndarray]


def log_mean_exp(values: np.ndarray) -> np.ndarray:
    """Returns log of the mean of exp over the last axis.

    Example:
        >>> float(log_mean_exp(np.zeros(3)))
        0.0
    """
    most = values.max(axis=-1, keepdims=True)
    return most[..., 0] + np.log(np.exp(values - most).mean(axis=-1))


class Sampler:
    """Draws samples of a from proposals, for one covariance K′.

    Args:
        pair: The pair; its variances are at most `LARGEST_VARIANCE`.
    """

    def __init__(self, pair: Pair):
        self.pair = pair
        self._weights = np.exp(pair.covariance)
        self._squared = self._weights @ self._weights
        self.has_fourth = pair.bins <= _MOST_FOURTH
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

    def samples(self, tilt: float, counts: np.ndarray, generator: np.random.Generator):
        """Yields L′ and log T_θ of `counts` samples of the powers 1, …, 4 and of the tilt, in chunks, each float64."""
        triples = self._triples(int(counts[3]), generator)
        for proposal, count in enumerate(counts):
            for start in range(0, int(count), _CHUNK):
                size = min(_CHUNK, int(count) - start)
                if proposal == 4:
                    means = self._tilted_means(size, tilt, generator)
                else:
                    means = self._means(proposal + 1, triples[start : start + size], size, generator)
                exponents = generator.standard_normal((size, self.pair.bins)) @ self.pair.root.T
                exponents += means
                exponents -= self.pair.variances / 2
                yield log_mean_exp(exponents), log_mean_exp(tilt * exponents)

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
            weights = self._weights[first] * self._weights[second]
        else:
            first, second, third = triples.T
            means = covariance[first] + covariance[second] + covariance[third]
            weights = self._weights[first] * self._weights[second] * self._weights[third]
        return means + covariance[_draw_rows(weights, generator)]

    def _triples(self, count: int, generator: np.random.Generator) -> np.ndarray:
        """Returns the first three of four indices, in random order, int64 `[count, 3]`."""
        triples = np.empty((count, 3), dtype=np.int64)
        first = np.sort(_draw(self._of_first, count, generator))
        starts = np.searchsorted(first, np.arange(self.pair.bins + 1))
        for index in np.unique(first):
            begin, end = starts[index], starts[index + 1]
            pairs = _draw(self._quadruples(index).ravel(), end - begin, generator)
            triples[begin:end, 0] = index
            triples[begin:end, 1], triples[begin:end, 2] = np.divmod(pairs, self.pair.bins)
        return generator.permutation(triples)

    def _quadruples(self, first: int) -> np.ndarray:
        """Returns the sum over the fourth index of the weights, by the second and the third."""
        row = self._weights[first]
        scaled = self._weights * row
        return (scaled @ self._weights) * scaled * row[:, np.newaxis]


def _draw(weights: np.ndarray, size: int, generator: np.random.Generator) -> np.ndarray:
    """Returns indices drawn with probabilities proportional to the weights."""
    sums = np.cumsum(weights)
    indices = np.searchsorted(sums, generator.uniform(size=size) * sums[-1], side="right")
    return np.minimum(indices, len(weights) - 1)


def _draw_rows(weights: np.ndarray, generator: np.random.Generator) -> np.ndarray:
    """Returns one index per row, drawn with probabilities proportional to its weights."""
    sums = np.cumsum(weights, axis=1)
    levels = generator.uniform(size=(len(weights), 1)) * sums[:, -1:]
    return np.minimum((sums <= levels).sum(axis=1), weights.shape[1] - 1)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Remove:
    """The run with the client against the run without it: δ(ε) = E[Z′·δ_G(ε − L′)], μ² = k, and proposals for it.

    They are a mixture of densities that are at least a function of L′ alone. Under q, a is Gaussian with mean 0 and
    covariance K′, Z = (1/b) Σ_j exp(a_j − K′_jj/2), L′ = log Z. *Powers* r have the density q·Z^r / E_q[Z^r]: a mixture
    over r indices, of which each set has weight exp(Σ K′ over its pairs) and mean Σ K′e_j. The *tilt* θ ≥ 1 has the
    density q·T_θ / E_q[T_θ] with T_θ = (1/b) Σ_j exp(θ(a_j − K′_jj/2)) ≥ Z^θ: a mixture over one index with weight
    exp(θ(θ − 1)K′_jj/2) and mean θ·K′e_j.

    Attributes:
        sampler: Draws from all of them.
        powers: The share of each power 1, …, 4; the first is above 0.
        tilt: θ of the remaining share; at least 1.
    """

    sampler: Sampler
    powers: tuple[float, float, float, float]
    tilt: float

    @property
    def shares(self) -> np.ndarray:
        """The shares of the powers and of the tilt, which add up to 1."""
        return np.array([*self.powers, max(0.0, 1 - sum(self.powers))])

    def log_density(self, loss: np.ndarray, log_tilted: np.ndarray) -> np.ndarray:
        """Returns log D.

        Args:
            loss: L′.
            log_tilted: log T_θ of the same samples; θ·L′ in its place gives a lower bound.
        """
        shares, variances = self.shares, self.sampler.pair.variances
        parts = [power * loss - log for power, log in enumerate(self.sampler.log_moments, 1)]
        parts.append(log_tilted - log_mean_exp(self.tilt * (self.tilt - 1) / 2 * variances))
        return np.logaddexp.reduce([np.log(share) + part for share, part in zip(shares, parts, strict=True) if share])

    @property
    def mu(self) -> float:
        """μ of the Gaussian part."""
        return math.sqrt(self.sampler.pair.common)

    def most(self, epsilon: float) -> float:
        """Returns a bound of all values: the supremum over L′ = ℓ of δ_G(ε − ℓ)·e^ℓ / D(ℓ), D the least density.

        δ_G(ε − ℓ) rises, and D(ℓ)·e^(−ℓ) does not fall, so that an interval is bounded by the first at its right and
        the second at its left. It is at least the share of density Z′, which bounds what is left of all intervals.
        """
        epsilon -= LOSS_SLACK
        least = -6 * self.mu - float(self.sampler.pair.variances.max()) - 2
        ends = np.linspace(least, epsilon + 30 * self.mu + 4, _STEPS)
        rises = np.append(gaussian_delta(epsilon - ends, self.mu), 1.0)
        densities = self.log_density(ends, self.tilt * ends)
        inverse = np.concatenate([[1 / self.powers[0]], np.exp(ends - densities)])
        return float(np.max(rises * inverse)) * (1 + 4 * DELTA_SLACK)

    def sample(self, count: int, generator: np.random.Generator) -> Sample:
        """Returns L′ and log D of a sample; which proposal a value comes from is drawn for each independently."""
        counts = generator.multinomial(count, self.shares)
        parts = list(self.sampler.samples(self.tilt, counts, generator))
        loss, tilted = (np.concatenate(chunks) for chunks in zip(*parts, strict=True))
        return loss, self.log_density(loss, tilted)

    def values(self, sample: Sample, epsilon: float) -> np.ndarray:
        """Returns independent numbers of at least 0, whose expectation is at least δ(ε), rounded up."""
        loss, log_density = sample
        heights = gaussian_delta(epsilon - LOSS_SLACK - loss, self.mu) * np.exp(loss - log_density)
        return heights * (1 + DELTA_SLACK)


def remove_direction(pair: Pair, epsilon: float, generator: np.random.Generator) -> Remove:
    """Returns proposals near the best for δ(ε), by a pilot."""
    sampler, piloted = Sampler(pair), []
    for powers in _POWERS:
        if powers[3] and not sampler.has_fourth:
            continue
        tried = [Remove(sampler=sampler, powers=powers, tilt=tilt) for tilt in _TILTS]
        for proposal in sorted(tried, key=lambda remove: remove.most(epsilon))[: 3 if powers is _POWERS[0] else 1]:
            grown = growth(proposal.values(proposal.sample(_FEW, generator), epsilon), proposal.most(epsilon))
            piloted.append((grown, len(piloted), proposal))
    return max(piloted)[-1]


def approach(high: float, estimate: float) -> list[float]:
    """Returns figures below `high` that fall towards the estimate, and a little below it."""
    excess = high / estimate - 1
    excesses = []
    while excess > FINEST:
        excess *= _APPROACH
        excesses.append(excess)
    excesses += [0.0, _UNDER / 4, _UNDER / 2, _UNDER]
    return [estimate * (1 + excess) for excess in excesses if estimate * (1 + excess) < high]


def certified(
    proved: Level, direction: Remove, aim: float, *, samples: int, failure: float, generator: np.random.Generator
) -> Level:
    """Returns the smaller of a proved ε and of one near `aim` that samples certify, for δ less what may fail."""
    epsilons, mean = approach(proved.epsilon, aim), proved.delta * (1 - FAILURE)
    count = certified_count(direction, epsilons, mean, samples=samples, failure=failure, generator=generator)
    level = dataclasses.replace(proved, samples=samples)
    if not count:
        return level
    epsilon = epsilons[count - 1]
    return dataclasses.replace(level, epsilon=epsilon, bound="certified", theorem="Monte Carlo", failure=failure)


def certified_count(
    direction: Remove,
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
        bets = best_bets(direction.values(pilot, epsilon), mean, direction.most(epsilon))
        if not mean_is_at_most(direction.values(sample, epsilon), mean, bets, failure):
            return index
    return len(epsilons)


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
