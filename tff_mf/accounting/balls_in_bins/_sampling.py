"""Balls in bins: ε, δ and σ, of real numbers or of the integers of a grid."""

import dataclasses
import math

import numpy as np

from tff_mf.accounting._result import Level
from tff_mf.accounting._sampling import Question
from tff_mf.accounting._secret_run import FAILURE, SecretRun, SecretSampling, taking_part
from tff_mf.accounting.balls_in_bins._bounds import Problem, delta_bound, epsilon_bound
from tff_mf.accounting.balls_in_bins._estimate import BallsInBinsEstimator
from tff_mf.accounting.balls_in_bins._gram import balls_in_bins_gram, gram_error
from tff_mf.base import validation
from tff_mf.base.errors import InputValueError
from tff_mf.numerics import gaussian
from tff_mf.problem.draws import Cohorts, Draws
from tff_mf.problem.participation import FixedEpoch, Participation


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
        chain of `grids.epsilon_of_chain`, if the groups of all clients are drawn independently.
        Certainty: where `Level.bound` is "certified", the result holds except with probability `failure` ≤ δ/1000 over
        the random numbers drawn for it, which δ includes. They come from the system; numbers of NumPy's generator are
        taken for random.
        Proof: docs/amplification.md.

    Attributes:
        groups: Number of groups b, at most n.
        clients_per_round: Expected size of a cohort; only a grid needs it.

    Source: Choquette-Choo et al. (2024), "Near exact privacy amplification for matrix mechanisms", for the pair of
    distributions; docs/amplification.md for the rest.

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

    def __post_init__(self) -> None:
        object.__setattr__(self, "groups", validation.whole("groups", self.groups))
        if self.clients_per_round is not None:
            validation.positive("clients_per_round", self.clients_per_round)

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

    def problem(self, sigma: float, change: float = 0.0) -> Problem:
        """Returns the problem of real numbers at σ, where every ‖Cx_j‖ may be larger by `change`."""
        gram = widened(self.gram, change)
        return Problem(
            gram=gram, error=self.error, sigma=sigma, samples=self.samples, generator=np.random.default_rng()
        )

    def ideal(self, sigma: float, delta: float, *, change: float, share: float) -> Level:
        return epsilon_bound(self.problem(sigma, change), delta, failure=FAILURE * delta * share)

    def about(self, sigma: float, delta: float) -> float:
        return gaussian.epsilon_from_delta(delta, self.problem(sigma).mu())

    def level_at(self, sigma: float, epsilon: float) -> Level:
        if self.charge_of is not None:
            raise InputValueError("epsilon: no δ is certified at a given ε on a grid. Ask for epsilon(delta).")
        return delta_bound(self.problem(sigma), epsilon)

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
