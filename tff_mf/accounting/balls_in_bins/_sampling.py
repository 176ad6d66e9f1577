"""Balls in bins: ε, δ and σ, of real numbers or of the integers of a grid."""

import dataclasses
import functools
import math

import numpy as np

from tff_mf.accounting._result import Level
from tff_mf.accounting._sampling import Question
from tff_mf.accounting._secret_run import FAILURE, SecretRun, SecretSampling, taking_part
from tff_mf.accounting.allocation import one_of_many
from tff_mf.accounting.balls_in_bins._estimate import BallsInBinsEstimator
from tff_mf.accounting.balls_in_bins._majorant import Moments, moment_delta, moment_epsilon
from tff_mf.accounting.balls_in_bins._pair import Pair, balls_in_bins_gram, dominating_pair, gram_error
from tff_mf.accounting.balls_in_bins._samples import LARGEST_VARIANCE, Add, Remove, add_direction, remove_direction
from tff_mf.accounting.betting import FINEST, Claim, DirectionBound, approach, certified_epsilon, decided, strongest
from tff_mf.base.errors import InputValueError
from tff_mf.numerics import gaussian
from tff_mf.problem.draws import Cohorts, Draws
from tff_mf.problem.participation import FixedEpoch, Participation

_ALLOCATION = "allocation"
# The deterministic bound is taken if it exceeds the estimate by less than this share.
_CLOSE = 0.004
# δ below them is not told from 0, and not looked for on a grid of ratios.
_LEAST_DELTA, _LEAST_NEAR = 1e-300, 1e-250


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
        chain of `grid_chain.epsilon_of_chain`, if the groups of all clients are drawn independently.
        Certainty: where `Level.bound` is "certified", the result holds except with probability `failure` ≤ δ/1000 over
        the random numbers drawn for it, which δ includes. They come from the system; numbers of NumPy's generator are
        taken for random.
        Proof: docs/proofs/amplification.md.

    Attributes:
        groups: Number of groups b, at most n.
        clients_per_round: Expected size of a cohort; only a grid needs it.

    Source: Choquette-Choo et al. (2024), "Near exact privacy amplification for matrix mechanisms", for the pair of
    distributions; docs/proofs/amplification.md for the rest.

    Example:
        >>> from tff_mf import BLT, guarantee
        >>> mechanism = BLT(theta=[0.9], omega=[0.1])
        >>> found = guarantee(mechanism, 60, BallsInBins(groups=20), noise_multiplier=4.0).at(delta=1e-6)
        >>> found.theorem, found.bound, 0.7 < found.epsilon < 0.8
        ('moments', 'proved', True)

    Raises:
        InputTypeError: If a field is of the wrong type.
        InputValueError: If a field is out of range.
    """

    groups: int
    clients_per_round: float | None = None

    def schema(self, rounds: int) -> Participation:
        """Returns that a client comes at one place of epochs of b rounds."""
        return FixedEpoch(min_sep=self.groups, max_participations=-(-rounds // self.groups))

    def draw(self, clients: int, rounds: int, size: float | None, draws: Draws) -> Cohorts:
        """Returns cohorts of all clients, or of ⌊b·`clients_per_round`⌋, which are chosen first."""
        chosen = draws.order(clients)[: taking_part(clients, size and size * self.groups)]
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
        charge_of = question.charge_of(-(-question.rounds // self.groups), self.clients_per_round, needs_bands=False)
        error, samples = gram_error(question.rounds), question.samples
        return BallsInBinsRun(gram=gram, error=error, samples=samples, charge_of=charge_of)


@dataclasses.dataclass(frozen=True, kw_only=True)
class BallsInBinsRun(SecretRun):
    """G with its error, and what a grid costs."""

    gram: np.ndarray
    error: float
    samples: int

    certified = True

    def problem(self, sigma: float, change: float = 0.0) -> "Problem":
        """Returns the problem of real numbers at σ, where every ‖Cx_j‖ may be larger by `change`."""
        return Problem(gram=widened(self.gram, change), error=self.error, sigma=sigma, samples=self.samples)

    def ideal(self, sigma: float, delta: float, *, change: float, share: float) -> Level:
        failure = FAILURE * delta * share
        return decided(*self.problem(sigma, change).epsilons(delta, failure=failure), delta=delta, failure=failure)

    def about(self, sigma: float, delta: float) -> float:
        return gaussian.epsilon_from_delta(delta, self.problem(sigma).mu)

    def level_at(self, sigma: float, epsilon: float) -> Level:
        if self.charge_of is not None:
            raise InputValueError("epsilon: no δ is certified at a given ε on a grid. Ask for epsilon(delta).")
        return self.problem(sigma).level_at(epsilon)

    def search(self, epsilon: float, delta: float, *, known: float) -> tuple[float, Level] | None:
        del known
        first = BallsInBinsEstimator(self.gram).noise_multiplier(epsilon=epsilon, delta=delta)
        return self.attempted(epsilon, delta, first=gaussian.rounded_sigma(first))


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
class Problem:
    """G with its error, for one σ: the smallest of an unamplified, two deterministic and a Monte Carlo bound."""

    gram: np.ndarray
    error: float
    sigma: float
    samples: int
    generator: np.random.Generator = dataclasses.field(default_factory=np.random.default_rng)

    @functools.cached_property
    def pair(self) -> Pair | None:
        """A pair of distributions that dominates, or `None` if nothing is computed with it."""
        if len(self.gram) == 1:
            return None
        pair = dominating_pair(self.gram / self.sigma**2, relative_error=self.error + 2.0**-50)
        return pair if float(np.max(pair.variances)) <= LARGEST_VARIANCE else None

    @property
    def mu(self) -> float:
        """μ of a client whose group is known; conditioning on the group never makes ε smaller."""
        return gaussian.mu_of(math.sqrt(float(np.max(np.diagonal(self.gram))) * (1 + self.error)), self.sigma)

    @property
    def is_independent(self) -> bool:
        """Whether G is diagonal. By Kahane's inequality, all terms may be taken for as large as the largest."""
        return np.count_nonzero(self.gram - np.diag(np.diagonal(self.gram))) == 0

    def epsilons(self, delta: float, *, failure: float) -> tuple[DirectionBound, DirectionBound]:
        """Returns ε for the run with the client against the run without it, and for the opposite.

        Half of `failure` is for either direction.
        """
        most = gaussian.epsilon_from_delta(delta, self.mu)
        plain = DirectionBound(value=most, estimate=most, bound="unamplified")
        if not 0 < most < math.inf:
            return plain, plain
        if self.is_independent:
            atoms = one_of_many(len(self.gram), self.mu, delta)
            remove, add = (
                plain.or_proved(atoms.epsilon(delta, most=most, remove=remove), _ALLOCATION) if atoms else plain
                for remove in (True, False)
            )
            return remove, add
        if self.pair is None:
            return plain, plain
        estimated = BallsInBinsEstimator(self.gram).epsilon(noise_multiplier=self.sigma, delta=delta)
        moments, found = Moments.of(self.pair), []
        for remove, estimate in ((True, estimated.remove), (False, estimated.add)):
            best = dataclasses.replace(plain, estimate=estimate)
            if moments is not None:
                best = _lower(best, moment_epsilon(self.pair, moments, delta, remove=remove, most=most))
            # Only the larger of both decides.
            least = 0.0 if remove else found[0].value
            if best.value > max(estimate * (1 + _CLOSE), least):
                aim = max(estimate, least * (1 - _CLOSE), best.value * FINEST)
                drawn = {"samples": self.samples, "failure": failure / 2, "generator": self.generator}
                best = certified_epsilon(best, self._direction(self.pair, aim, remove), aim, delta, **drawn)
            found.append(best)
        return found[0], found[1]

    def level_at(self, epsilon: float) -> Level:
        """Returns δ at ε; it includes what a certificate by sampling may fail with."""
        most = gaussian.delta_from_epsilon(epsilon, self.mu)
        plain = DirectionBound(value=most, estimate=most, bound="unamplified")
        bounds, failure = [plain, plain], 0.0
        if most <= _LEAST_DELTA:
            pass
        elif self.is_independent:
            bounds = [self._independent(plain, epsilon, remove) for remove in (True, False)]
        elif self.pair is not None:
            estimates = BallsInBinsEstimator(self.gram).deltas(noise_multiplier=self.sigma, epsilon=epsilon)
            failure = FAILURE / 2 * max(*estimates, _LEAST_DELTA)
            bounds = self._deltas(self.pair, plain, epsilon, estimates, failure)
        return decided(*bounds, epsilon=epsilon, failure=failure)

    def _deltas(
        self, pair: Pair, plain: DirectionBound, epsilon: float, estimates: tuple[float, float], failure: float
    ) -> list[DirectionBound]:
        """Returns δ of both directions, for the run with the client against the run without it first."""
        moments, found = Moments.of(pair), []
        for remove, estimate in zip((True, False), estimates, strict=True):
            best = dataclasses.replace(plain, estimate=estimate)
            if moments is not None and estimate > _LEAST_DELTA:
                best = _lower(best, moment_delta(pair, moments, epsilon, estimate, remove=remove))
            if best.value > max([estimate, *(each.value for each in found)]) * (1 + _CLOSE):
                # An estimate of a small δ may be 0.
                aim = max(estimate, best.value * FINEST)
                means = [mean for mean in approach(best.value, aim) if mean > 2 * failure]
                drawn = {"samples": self.samples, "failure": failure / 2, "generator": self.generator}
                claims = [Claim(epsilon=epsilon, mean=mean) for mean in means]
                count = strongest(self._direction(pair, epsilon, remove), claims, **drawn)
                best = dataclasses.replace(best, samples=self.samples)
                if count:
                    best = dataclasses.replace(best, value=means[count - 1] + failure, bound="Monte Carlo")
            found.append(dataclasses.replace(best, value=min(plain.value, best.value)))
        return found

    def _direction(self, pair: Pair, epsilon: float, remove: bool) -> Remove | Add:
        return remove_direction(pair, epsilon, self.generator) if remove else add_direction(pair, epsilon)

    def _independent(self, plain: DirectionBound, epsilon: float, remove: bool) -> DirectionBound:
        """Returns the smaller of `plain` and of δ for independent terms."""
        near = plain.value
        for _ in range(2):
            atoms = one_of_many(len(self.gram), self.mu, min(max(near, _LEAST_NEAR), 0.1))
            if atoms is None:
                return plain
            near = min(near, atoms.delta(epsilon, remove=remove))
        return plain.or_proved(near, _ALLOCATION)


def _lower(bound: DirectionBound, value: float) -> DirectionBound:
    """Returns the smaller of a bound and of the one by moments, with the estimate of the first."""
    return dataclasses.replace(bound, value=value, bound="moments") if value < bound.value else bound
