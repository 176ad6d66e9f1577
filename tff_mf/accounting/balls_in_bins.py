"""Balls in bins: ε, δ and σ, of real numbers or of the integers of a grid.

Everything depends on C through G alone, the inner products of what a client adds to the released sums in each of its
possible groups. Theorem 1, the pair of distributions, its Gaussian part and the proposals of the samples are in
docs/proofs.md.
"""

import dataclasses
import functools
import math

import numpy as np

from tff_mf.accounting._bins_moments import Moments, Pair, dominating_pair, moment_epsilon
from tff_mf.accounting.betting import (
    CHUNK,
    DELTA_SLACK,
    FINEST,
    LOSS_SLACK,
    AddDirection,
    DirectionBound,
    Sample,
    certified_epsilon,
    gaussian_delta,
    growth,
    level_of,
    log_mean_exp,
)
from tff_mf.accounting.entries import magnitudes_of
from tff_mf.accounting.guarantee import Level
from tff_mf.accounting.question import Question, SecretSampling
from tff_mf.accounting.secret import FAILURE, SecretRun
from tff_mf.base import validation
from tff_mf.base.errors import InputValueError
from tff_mf.mechanisms import Mechanism
from tff_mf.numerics import gaussian
from tff_mf.problem.draws import Cohorts, Draws
from tff_mf.problem.participation import FixedEpoch, Participation

# Above them, matrices of bins × bins and of rounds × bins take minutes or gigabytes.
_MOST_BINS, _MOST_ENTRIES = 2**12, 2**27
# exp of six times this variance, the largest weight of four indices, is a float.
LARGEST_VARIANCE = 60.0
# The deterministic bound is taken if it exceeds the estimate by less than this share.
_CLOSE = 0.004
# Of proposals: above so many bins, sums over four indices take minutes, and power 4 has no share; steps of the range;
# samples of a pilot; shares of the powers to try, and θ of the remaining share.
_MOST_FOURTH, _STEPS, _PILOT = 512, 6000, 4000
_POWERS = ((0.1, 0.0, 0.0, 0.0), (0.1, 0.2, 0.4, 0.0), (0.1, 0.1, 0.2, 0.4), (0.05, 0.05, 0.1, 0.75))
_SHIFTS = (0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 300.0)
_TILTS = (1.3, 1.7, 2.3, 3.0, 4.5, 7.0, 11.0, 16.0)
# Of estimates: tilts, in equal shares, of so many samples; far smaller or larger ε are searched for in vain.
_ESTIMATED_TILTS, _ESTIMATED, _SEED = (1.0, 1.5, 2.2, 3.2, 5.0, 8.0), 3072, 20_240_611
_TOLERANCE, _LEAST_EPSILON, _MOST_EPSILON = 1e-7, 1e-6, 1e5


@dataclasses.dataclass(frozen=True, kw_only=True)
class BallsInBins(SecretSampling):
    """Every client is put into one of b groups, once and in secret, and takes part whenever its group does.

    Formal guarantee:
        Adjacency: zero-out of all contributions of one client, each of L2 norm at most the clip norm. They may be
        chosen adaptively, from everything that was released before.
        Participation: a trusted server puts the client into one of b groups, each with probability 1/b, once for the
        whole run, independently of everything else and in secret; it takes part in the rounds j, j + b, j + 2b, … of
        its group j and no others. The groups of others may be anything that is independent of it. Shuffled epochs with
        groups of equal size, cohorts of a fixed size and a log of the cohorts that is released are not covered.
        Sensitivity: C is `mechanism.cast_to_float32()`; its rounding errors are included. Entries below 0 count as if
        they were above 0.
        Released: all `rounds` noised sums, possibly divided by a constant, but not by the size of a cohort, and nothing
        else that depends on the group, such as counts of adaptive clipping.
        Arithmetic: with a grid, the release is the integers that are computed, and what they cost is included, by the
        chain of `grid_charge.epsilon_of_chain`, if the groups of all clients are drawn independently.
        Certainty: where `Level.bound` is "certified", the result holds except with probability `failure` ≤ δ/1000 over
        the random numbers drawn for it, which δ includes. They come from the system; numbers of NumPy's generator are
        taken for random.
        Proof: docs/proofs.md.

    Attributes:
        groups: Number of groups b, at most n.
        clients_per_round: Expected size of a cohort; only a grid needs it.

    Source: Choquette-Choo et al. (2024), "Near exact privacy amplification for matrix mechanisms", for the pair of
    distributions; docs/proofs.md for the rest.

    Example:
        >>> from tff_mf import BLT, guarantee
        >>> mechanism = BLT(theta=[0.9], omega=[0.1])
        >>> level = guarantee(mechanism, 60, BallsInBins(groups=20), noise_multiplier=4.0).at(delta=1e-6)
        >>> level.theorem, level.bound, 0.7 < level.epsilon < 0.8
        ('moments', 'proved', True)
    """

    groups: int
    clients_per_round: float | None = None

    def schema(self, rounds: int) -> Participation:
        """Returns that a client comes at one place of epochs of b rounds."""
        return FixedEpoch(min_sep=self.groups, max_participations=-(-rounds // self.groups))

    def draw(self, clients: int, rounds: int, size: float | None, draws: Draws) -> Cohorts:
        """Returns cohorts of all clients, or of ⌊b·`clients_per_round`⌋, which are chosen first."""
        most = clients if size is None else size * self.groups
        if most > clients:
            raise InputValueError(
                f"clients={clients} are too few: these cohorts need {math.floor(most)} clients. Take a smaller "
                "clients_per_round."
            )
        chosen = draws.order(clients)[: math.floor(most)]
        group_of = draws.places(chosen, self.groups)
        members = [chosen[group_of == group] for group in range(self.groups)]
        return [members[t % self.groups] for t in range(rounds)]

    def run(self, question: Question) -> "BallsInBinsRun":
        """Returns a run of any mechanism."""
        if self.groups > question.mechanism.check(question.rounds):
            raise InputValueError(f"groups={self.groups} must be at most the number of rounds, {question.rounds}.")
        gram = balls_in_bins_gram(question.mechanism, question.rounds, bins=self.groups)
        if not np.max(gram) < math.inf:
            raise InputValueError("mechanism has entries of C whose squares overflow: scale it, and σ with it.")
        charge_of = question.charge_of(question.schema.max_participations, needs_bands=False)
        error, samples = gram_error(question.rounds), question.samples
        return BallsInBinsRun(gram=gram, error=error, samples=samples, charge_of=charge_of)


def balls_in_bins_gram(mechanism: Mechanism, rounds: int, *, bins: int) -> np.ndarray:
    """Returns G with G_ij = ⟨|C|x_i, |C|x_j⟩, where x_j is 1 in the rounds j, j + b, j + 2b, … and 0 elsewhere.

    Everything that balls-in-bins sampling leads to depends on C through G alone. C is that of
    `mechanism.cast_to_float32()`. Each entry has a relative error of at most `gram_error(rounds)`.

    Args:
        mechanism: The mechanism.
        rounds: Number of rounds n.
        bins: Number of groups b, at most n.

    Returns:
        G, float64 `[bins, bins]`.

    Source: Choquette-Choo et al. (2024), "Near exact privacy amplification for matrix mechanisms", section 3.

    Example:
        >>> from tff_mf import BandedToeplitz
        >>> balls_in_bins_gram(BandedToeplitz(column=[1.0, 0.5]), 4, bins=2)
        array([[2.5 , 1.5 ],
               [1.5 , 2.25]])

    Raises:
        InputValueError: If C has an entry that is not finite.
    """
    validation.instance("mechanism", mechanism, Mechanism, "pass a mechanism such as tff_mf.BLT or tff_mf.Identity")
    rounds = mechanism.check(rounds)
    bins = validation.whole("bins", bins)
    if bins > min(rounds, _MOST_BINS):
        raise InputValueError(f"bins={bins} must be at most {min(rounds, _MOST_BINS)} for {rounds} rounds.")
    if rounds * bins > _MOST_ENTRIES:
        raise InputValueError(
            f"rounds={rounds} times bins={bins} exceeds the {_MOST_ENTRIES:,} entries that are computed with: take "
            "fewer rounds or bins."
        )
    columns = _columns(magnitudes_of(mechanism, rounds), rounds, bins)
    return columns.T @ columns


def gram_error(rounds: int) -> float:
    """Returns a bound on the relative error of each entry of G.

    Sums of n products of numbers of at least 0 have a relative error of at most n·2⁻⁵³ each, in any order; 2⁻⁴⁰ is
    what the package allows for the entries of C.
    """
    return 3 * 2.0**-40 + 4 * (rounds + 64) * 2.0**-53


def _columns(diagonals: np.ndarray, rounds: int, bins: int) -> np.ndarray:
    """Returns the vectors Cx_j as columns, float64 `[rounds, bins]`."""
    if diagonals.shape[1] == 1:
        periods = -(-rounds // bins)
        column = np.pad(diagonals[:, 0], (0, periods * bins - len(diagonals)))
        sums = np.cumsum(column.reshape(periods, bins), axis=0).ravel()[:rounds]
        windows = np.lib.stride_tricks.sliding_window_view(np.concatenate([np.zeros(bins - 1), sums]), bins)
        return windows[:, ::-1].copy()
    columns = np.zeros((rounds, bins))
    for offset, diagonal in enumerate(diagonals):
        steps = np.arange(rounds - offset)
        columns[steps + offset, steps % bins] += diagonal[: rounds - offset]
    return columns


@dataclasses.dataclass(frozen=True, kw_only=True)
class BallsInBinsRun(SecretRun):
    """G with its error, and what a grid costs."""

    gram: np.ndarray
    error: float
    samples: int

    certified = True

    def unamplified_mu(self, gram: np.ndarray, sigma: float) -> float:
        """Returns μ of a client whose group is known; conditioning on the group never makes ε smaller."""
        return gaussian.mu_of(math.sqrt(float(np.max(np.diagonal(gram))) * (1 + self.error)), sigma)

    def pair(self, gram: np.ndarray, sigma: float) -> Pair:
        """Returns a pair of distributions that dominates."""
        return dominating_pair(gram / sigma**2, relative_error=self.error + 2.0**-50)

    def rough_epsilon(self, sigma: float, delta: float) -> float:
        return gaussian.epsilon_from_delta(delta, self.unamplified_mu(self.gram, sigma))

    def ideal(self, sigma: float, delta: float, *, change: float, failure_share: float) -> Level:
        failure = FAILURE * delta * failure_share
        remove, add = self.directions(widened(self.gram, change), sigma, delta, failure / 2)
        return level_of(remove, add, delta=delta, failure=failure)

    def directions(
        self, gram: np.ndarray, sigma: float, delta: float, failure: float
    ) -> tuple[DirectionBound, DirectionBound]:
        """Returns ε for the run with the client against the run without it, and for the opposite.

        It is the smallest of an unamplified, a deterministic and a Monte Carlo bound; either may fail with `failure`.
        """
        most = gaussian.epsilon_from_delta(delta, self.unamplified_mu(gram, sigma))
        plain = DirectionBound(value=most, estimate=most, bound="unamplified")
        if not 0 < most < math.inf or len(gram) == 1:
            return plain, plain
        pair = self.pair(gram, sigma)
        if float(np.max(pair.variances)) > LARGEST_VARIANCE:
            return plain, plain
        estimated = BallsInBinsEstimator(gram).epsilon(noise_multiplier=sigma, delta=delta)
        moments, generator, bounds = Moments.of(pair), np.random.default_rng(), []
        for remove, estimate in ((True, estimated.remove), (False, estimated.add)):
            best = dataclasses.replace(plain, estimate=estimate)
            if moments is not None:
                proved = moment_epsilon(pair, moments, delta, remove=remove, most=most)
                best = dataclasses.replace(best, value=proved, bound="moments") if proved < best.value else best
            # Only the larger of both decides.
            least = 0.0 if remove else bounds[0].value
            if best.value > max(estimate * (1 + _CLOSE), least):
                aim = max(estimate, least * (1 - _CLOSE), best.value * FINEST)
                direction = remove_direction(pair, aim, generator) if remove else add_direction(pair, aim)
                drawn = {"samples": self.samples, "failure": failure, "generator": generator}
                best = certified_epsilon(best, direction, aim, delta, **drawn)
            bounds.append(best)
        return bounds[0], bounds[1]

    def search(self, epsilon: float, delta: float, *, unamplified: float) -> tuple[float, Level] | None:
        del unamplified
        first = BallsInBinsEstimator(self.gram).noise_multiplier(epsilon=epsilon, delta=delta)
        return self.best_of_attempts(epsilon, delta, first=gaussian.rounded_sigma(first))


def widened(gram: np.ndarray, change: float) -> np.ndarray:
    """Returns a matrix that is at least C̃'s G in every entry, where every ‖(C̃ − C)x_j‖ is at most `change`.

    By Cauchy and Schwarz, ⟨C̃x_i, C̃x_j⟩ is at most G_ij + change·(√G_ii + √G_jj) + change².

    Example:
        >>> widened(np.array([[1.0, 0.5], [0.5, 4.0]]), 0.5)
        array([[2.25, 2.25],
               [2.25, 6.25]])
    """
    if not change:
        return gram
    norms = np.sqrt(np.diagonal(gram))
    return gram + change * (norms[:, np.newaxis] + norms) + change**2


@dataclasses.dataclass(frozen=True, kw_only=True)
class Tilts:
    """A mixture of proposals, of densities that are at least a function of L′ alone.

    Under q, a is Gaussian with mean 0 and covariance K′, Z = (1/b) Σ_j exp(a_j − K′_jj/2), L′ = log Z. *Powers* r have
    the density q·Z^r / E_q[Z^r]: a mixture over r indices, of which each set has weight exp(Σ K′ over its pairs) and
    mean Σ K′e_j. The *tilt* θ ≥ 1 has the density q·T_θ / E_q[T_θ] with T_θ = (1/b) Σ_j exp(θ(a_j − K′_jj/2)) ≥ Z^θ: a
    mixture over one index with weight exp(θ(θ − 1)K′_jj/2) and mean θ·K′e_j.

    Attributes:
        powers: The share of each power 1, …, 4, float64 `[4]`; the first is above 0.
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

    def log_density(self, loss: np.ndarray, tilts: Tilts, log_tilted: np.ndarray) -> np.ndarray:
        """Returns log of the density of the mixture divided by q.

        Args:
            loss: L′.
            tilts: The mixture.
            log_tilted: log T_θ of the same samples; θ·L′ in its place gives a lower bound.
        """
        parts = [
            np.log(proportion) + power * loss - self.log_moments[power - 1]
            for power, proportion in enumerate(tilts.powers, 1)
            if proportion
        ]
        rest = tilts.shares[-1]
        if rest:
            log_moment = log_mean_exp(tilts.tilt * (tilts.tilt - 1) / 2 * self.pair.variances)
            parts.append(np.log(rest) + log_tilted - log_moment)
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
    """The run with the client against the run without it: δ(ε) = E[Z′·δ_G(ε − L′)], with μ² = k in δ_G."""

    sampler: Sampler
    tilts: Tilts

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
        densities = self.sampler.log_density(ends, self.tilts, self.tilts.tilt * ends)
        inverse = np.concatenate([[1 / self.tilts.powers[0]], np.exp(ends - densities)])
        return float(np.max(rises * inverse)) * (1 + 4 * DELTA_SLACK)

    def sample(self, count: int, generator: np.random.Generator) -> Sample:
        """Returns a sample; which proposal a value comes from is drawn for each independently."""
        counts = generator.multinomial(count, self.tilts.shares)
        parts = list(self.sampler.samples(self.tilts, counts, generator))
        loss, tilted = (np.concatenate(chunks) for chunks in zip(*parts, strict=True))
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
    """Returns proposals near the best for δ(ε), by a pilot."""
    sampler, piloted = Sampler(pair), []
    for powers in _POWERS:
        if powers[3] and not sampler.has_fourth:
            continue
        tried = [Remove(sampler=sampler, tilts=Tilts(powers=powers, tilt=tilt)) for tilt in _TILTS]
        for proposal in sorted(tried, key=lambda remove: remove.most(epsilon))[: 3 if powers is _POWERS[0] else 1]:
            grown = growth(proposal.sample(_PILOT, generator).values(epsilon), proposal.most(epsilon))
            piloted.append((grown, len(piloted), proposal))
    return max(piloted)[-1]


def add_direction(pair: Pair, epsilon: float) -> Add:
    """Returns the proposal with the smallest range."""
    return min((Add(pair=pair, shift=shift) for shift in _SHIFTS), key=lambda add: add.most(epsilon))


@dataclasses.dataclass(frozen=True, kw_only=True)
class EstimatedEpsilon:
    """An estimate of ε; not a guarantee.

    Attributes:
        epsilon: The larger of both directions.
        remove: ε for the run with the client against the run without it.
        add: ε for the run without the client against the run with it.
    """

    epsilon: float
    remove: float
    add: float


class BallsInBinsEstimator:
    """Estimates ε and σ of balls-in-bins sampling for one G, always with the same random numbers.

    A result is off by about 0.3 % of ε, almost the same for similar G, so that differences between similar mechanisms
    are much more accurate. It is no guarantee: `tff_mf.guarantee` with `tff_mf.BallsInBins` gives one.

    Args:
        gram: G as `balls_in_bins_gram` returns it, float64 `[bins, bins]`.

    Example:
        >>> from tff_mf import BLT, balls_in_bins_gram
        >>> gram = balls_in_bins_gram(BLT(theta=[0.9], omega=[0.1]), 60, bins=20)
        >>> estimator = BallsInBinsEstimator(gram)
        >>> sigma = estimator.noise_multiplier(epsilon=2.0, delta=1e-6)
        >>> abs(estimator.epsilon(noise_multiplier=sigma, delta=1e-6).epsilon - 2) < 1e-3
        True

    Raises:
        InputValueError: If G is not a square matrix of finite numbers.
    """

    def __init__(self, gram: np.ndarray):
        gram = np.asarray(gram, dtype=np.float64)
        if gram.ndim != 2 or gram.shape[0] != gram.shape[1] or not len(gram) or not np.all(np.isfinite(gram)):
            raise InputValueError(
                f"gram has the shape {gram.shape}: pass the matrix of tff_mf.accounting.balls_in_bins_gram."
            )
        self._pair: Pair = dominating_pair(gram, relative_error=0.0)
        self._largest = float(np.max(np.diagonal(gram)))
        normals, self._groups = _random_numbers(len(gram))
        self._normal = normals @ self._pair.root

    def epsilon(self, *, noise_multiplier: float, delta: float) -> EstimatedEpsilon:
        """Returns an estimate of ε at δ for the noise multiplier σ."""
        sigma, delta = validation.positive("noise_multiplier", noise_multiplier), validation.open_unit("delta", delta)
        remove, add = self._epsilons(sigma, delta)
        return EstimatedEpsilon(epsilon=max(remove, add), remove=remove, add=add)

    def noise_multiplier(self, *, epsilon: float, delta: float) -> float:
        """Returns an estimate of the σ that leads to ε at δ.

        Raises:
            InputValueError: If ε is not from 1e-6 to 1e5, or δ is not between 0 and 1.
        """
        target, delta = validation.positive("epsilon", epsilon), validation.open_unit("delta", delta)
        if not _LEAST_EPSILON <= target <= _MOST_EPSILON:
            raise InputValueError(
                f"epsilon={target!r} must be from {_LEAST_EPSILON} to {_MOST_EPSILON} for an estimate of the noise."
            )
        # Imported here: it would double the time of `import tff_mf`.
        from scipy.optimize import brentq

        def excess(log_sigma: float) -> float:
            sigma = math.exp(log_sigma)
            return math.log(max(*self._epsilons(sigma, delta), 1e-9 * target) / target)

        # The excess decreases, and is at most 0 without amplification.
        high = math.log(math.sqrt(self._largest) / gaussian.mu_from(target, delta))
        low = high - 1
        while excess(low) < 0:
            low -= 1
        # pyrefly: ignore[bad-argument-type]: it is a float.
        return math.exp(brentq(excess, low, high + 1e-6, xtol=_TOLERANCE))

    def _epsilons(self, sigma: float, delta: float) -> tuple[float, float]:
        """Returns ε of both directions, from samples of L′."""
        tilts = np.resize(_ESTIMATED_TILTS, len(self._normal))
        shifts = tilts[:, np.newaxis] * self._pair.covariance[self._groups]
        # a_j − K′_jj/2 of the samples of the proposals.
        exponents = self._normal / sigma + (shifts - self._pair.variances / 2) / sigma**2
        variances, mu = self._pair.variances / sigma**2, math.sqrt(self._pair.common) / sigma
        removed = log_mean_exp(exponents)
        ratios = [log_mean_exp(t * exponents - t * (t - 1) / 2 * variances) for t in _ESTIMATED_TILTS]
        # Either factor alone can overflow.
        weights = np.exp(removed - log_mean_exp(np.transpose(ratios)))
        added = log_mean_exp(self._normal / sigma - variances / 2)
        most = gaussian.epsilon_from_delta(delta, math.sqrt(self._largest) / sigma)
        remove = _solve(lambda epsilon: np.mean(weights * gaussian_delta(epsilon - removed, mu)), delta, most)
        return remove, _solve(lambda epsilon: np.mean(gaussian_delta(epsilon + added, mu)), delta, most)


def _solve(delta_of, delta: float, most: float) -> float:
    """Returns ε between 0 and `most` with log δ(ε) = log δ."""
    from scipy.optimize import brentq

    def excess(epsilon: float) -> float:
        return math.log(max(float(delta_of(epsilon)), 1e-300) / delta)

    if excess(0.0) <= 0:
        return 0.0
    if excess(most) >= 0:
        return most
    return brentq(excess, 0.0, most, xtol=1e-9 * most, rtol=1e-12)  # pyrefly: ignore[bad-return]: it is a float.


@functools.lru_cache(maxsize=4)
def _random_numbers(bins: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns normals `[samples, bins]` and a group for each sample; the same for every call."""
    generator = np.random.default_rng(_SEED)
    half = generator.standard_normal((_ESTIMATED, bins))
    groups = np.resize(generator.permutation(bins), _ESTIMATED // len(_ESTIMATED_TILTS))
    return half, np.repeat(groups, len(_ESTIMATED_TILTS))
