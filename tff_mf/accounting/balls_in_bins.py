"""Balls in bins: ε, δ and σ, of real numbers or of the integers of a grid.

Everything depends on C through G alone, the inner products of what a client adds to the released sums in each of its
possible groups. Theorem 1, the pair of distributions, its Gaussian part and the proposals of the samples are in
docs/proofs.md.
"""

import dataclasses
import functools
import math

import numpy as np

from tff_mf.accounting._bins_moments import Moments, Pair, dominating_pair, gaussian_delta, moment_epsilon
from tff_mf.accounting.betting import FINEST, certified, log_mean_exp, remove_direction
from tff_mf.accounting.entries import magnitudes_of
from tff_mf.accounting.guarantee import Level
from tff_mf.accounting.question import Question, SecretSampling
from tff_mf.accounting.secret import FAILURE, SecretRun, larger, least
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
# Of a search for σ by certificates: attempts, and by how much ε may be below its target.
_ATTEMPTS, _WANTED = 8, 0.004
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
    if bins > min(mechanism.check(rounds), _MOST_BINS):
        raise InputValueError(
            f"groups={bins} must be at most the number of rounds, {rounds}, and at most {_MOST_BINS}."
        )
    if rounds * bins > _MOST_ENTRIES:
        raise InputValueError(
            f"rounds={rounds} times groups={bins} exceeds the {_MOST_ENTRIES:,} entries that are computed with: take "
            "fewer rounds or groups."
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
    """G with its error, and what a grid costs; a certificate by sampling may fail with `failure_share` of δ/1000."""

    gram: np.ndarray
    error: float
    samples: int
    failure_share: float = 1.0

    certified = True

    def unamplified_mu(self, gram: np.ndarray, sigma: float) -> float:
        """Returns μ of a client whose group is known; conditioning on the group never makes ε smaller."""
        return gaussian.mu_of(math.sqrt(float(np.max(np.diagonal(gram))) * (1 + self.error)), sigma)

    def pair(self, gram: np.ndarray, sigma: float) -> Pair:
        """Returns a pair of distributions that dominates."""
        return dominating_pair(gram / sigma**2, relative_error=self.error + 2.0**-50)

    def rough_epsilon(self, sigma: float, delta: float) -> float:
        return gaussian.epsilon_from_delta(delta, self.unamplified_mu(self.gram, sigma))

    def ideal(self, sigma: float, delta: float, *, change: float) -> Level:
        """Returns the smallest of an unamplified, two deterministic and a Monte Carlo bound."""
        gram = widened(self.gram, change)
        most = gaussian.epsilon_from_delta(delta, self.unamplified_mu(gram, sigma))
        plain = (most, "unamplified")
        if not 0 < most < math.inf or len(gram) == 1:
            return least("both", delta, [plain])
        pair = self.pair(gram, sigma)
        if float(np.max(pair.variances)) > LARGEST_VARIANCE:
            return least("both", delta, [plain])
        remove, add = [plain], [plain, (pair.by_jensen(delta), "Jensen")]
        moments = Moments.of(pair)
        if moments is not None:
            remove.append((moment_epsilon(pair, moments, delta, remove=True, most=most), "moments"))
            add.append((moment_epsilon(pair, moments, delta, remove=False, most=most), "moments"))
        estimate, _ = Estimator(gram).epsilons(sigma, delta)
        to_remove, to_add = least("remove", delta, remove, estimate), least("add", delta, add)
        # Only the larger of both decides.
        if to_remove.epsilon > max(estimate * (1 + _CLOSE), to_add.epsilon):
            aim, generator = max(estimate, to_add.epsilon, to_remove.epsilon * FINEST), np.random.default_rng()
            failure, direction = FAILURE * delta * self.failure_share, remove_direction(pair, aim, generator)
            drawn = {"samples": self.samples, "failure": failure, "generator": generator}
            to_remove = certified(to_remove, direction, aim, **drawn)
        return larger(to_remove, to_add)

    def search(self, epsilon: float, delta: float, *, unamplified: float) -> tuple[float, Level] | None:
        """Returns the best of a few certificates.

        Attempt t for one σ may fail with δ/1000·2^(−t), so that all of them together fail with at most δ/1000.
        """
        del unamplified
        sigma, low, best = gaussian.rounded_sigma(Estimator(self.gram).noise_multiplier(epsilon, delta)), 0.0, None
        for attempt in range(1, _ATTEMPTS + 1):
            level = dataclasses.replace(self, failure_share=2.0**-attempt).level(sigma, delta)
            if level.epsilon <= epsilon:
                best = sigma, level
                if level.epsilon >= epsilon * (1 - _WANTED):
                    break
            else:
                low = sigma
            # Of an amplified run ε is about as 1/σ, or falls faster.
            aimed = sigma * min(max(level.epsilon / epsilon, 0.5), 2.0) * (1 + _WANTED / 3)
            if best is not None and not low < aimed < best[0]:
                aimed = math.sqrt(low * best[0]) if low else best[0] / 1.5
            sigma = gaussian.rounded_sigma(aimed)
        return best


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


class Estimator:
    """Estimates ε and σ for one G, always with the same random numbers: no guarantee.

    A result is off by about 0.3 % of ε, almost the same for similar G, so that differences between similar mechanisms
    are much more accurate.

    Args:
        gram: G as `balls_in_bins_gram` returns it, float64 `[bins, bins]`.

    Example:
        >>> from tff_mf import BLT
        >>> estimator = Estimator(balls_in_bins_gram(BLT(theta=[0.9], omega=[0.1]), 60, bins=20))
        >>> abs(max(estimator.epsilons(estimator.noise_multiplier(2.0, 1e-6), 1e-6)) - 2) < 1e-3
        True
    """

    def __init__(self, gram: np.ndarray):
        self._pair: Pair = dominating_pair(gram, relative_error=0.0)
        self._largest = float(np.max(np.diagonal(gram)))
        normals, self._groups = _random_numbers(len(gram))
        self._normal = normals @ self._pair.root

    def noise_multiplier(self, target: float, delta: float) -> float:
        """Returns an estimate of the σ that leads to ε at δ.

        Raises:
            InputValueError: If ε is not from 1e-6 to 1e5.
        """
        if not _LEAST_EPSILON <= target <= _MOST_EPSILON:
            raise InputValueError(
                f"epsilon={target!r} must be from {_LEAST_EPSILON} to {_MOST_EPSILON} for an estimate of the noise."
            )
        # Imported here: it would double the time of `import tff_mf`.
        from scipy.optimize import brentq

        def excess(log_sigma: float) -> float:
            sigma = math.exp(log_sigma)
            return math.log(max(*self.epsilons(sigma, delta), 1e-9 * target) / target)

        # The excess decreases, and is at most 0 without amplification.
        high = math.log(math.sqrt(self._largest) / gaussian.mu_from(target, delta))
        low = high - 1
        while excess(low) < 0:
            low -= 1
        # pyrefly: ignore[bad-argument-type]: it is a float.
        return math.exp(brentq(excess, low, high + 1e-6, xtol=_TOLERANCE))

    def epsilons(self, sigma: float, delta: float) -> tuple[float, float]:
        """Returns estimates of ε for the run with the client against the run without it, and for the opposite."""
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
