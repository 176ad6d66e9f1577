"""Random allocation: every client takes part in k of the n rounds, by a deterministic bound."""

import dataclasses
import functools
import math

import numpy as np

from tff_mf.accounting._result import Guarantee, Level
from tff_mf.accounting._sampling import Question
from tff_mf.accounting._secret_run import SecretRun, SecretSampling, taking_part, worst
from tff_mf.accounting.allocation import one_of_many
from tff_mf.accounting.entries import bands_and_norm
from tff_mf.base.errors import InputValueError
from tff_mf.numerics import composed_losses
from tff_mf.problem.draws import Cohorts, Draws
from tff_mf.problem.participation import MinSep, Participation

_THEOREM = "random allocation"


@dataclasses.dataclass(frozen=True, kw_only=True)
class RandomAllocation(SecretSampling):
    """Every client takes part in k rounds, chosen uniformly from all.

    For one participation ε exceeds the smallest by about 0.05 %. For more, what is bounded is a run whose k blocks of
    rounds are known.

    Formal guarantee:
        Adjacency: zero-out of all contributions of one client, each of L2 norm at most the clip norm. They may be
        chosen adaptively, from everything that was released before.
        Participation: a trusted server draws the k rounds of the client, each set of k of the n rounds with the same
        probability, once for the whole run, independently of everything else and in secret. Rounds of others may be
        anything that is independent of it; so cohorts of a fixed size are not covered.
        Sensitivity: C is `mechanism.cast_to_float32()` and diagonal: noise is independent in every round. For other
        matrices and k > 1 no bound is proven here; for k = 1 take `BallsInBins` with as many groups as rounds.
        Released: all `rounds` noised sums, possibly divided by a constant, but not by the size of a cohort, and nothing
        else that depends on the rounds of the client.
        Arithmetic: with a grid, the release is the integers that are computed, and what they cost is included, by the
        chain of `grid_chain.epsilon_of_chain`, if the rounds of all clients are drawn independently.
        Certainty: no random numbers are used; rounding errors are included.
        Proof: docs/proofs/amplification.md.

    Attributes:
        participations: Number k of rounds of a client.
        clients_per_round: Expected size of a cohort; only a grid needs it.

    Source: Feldman and Shenfeld (2025), "Privacy amplification by random allocation", for the blocks.

    Example:
        >>> from tff_mf import Identity, epsilon
        >>> round(epsilon(Identity(), 100, RandomAllocation(participations=2), noise_multiplier=1.0, delta=1e-6), 2)
        1.56

    Raises:
        InputTypeError: If a field is of the wrong type.
        InputValueError: If a field is out of range.
    """

    participations: int
    clients_per_round: float | None = None

    def schema(self, rounds: int) -> Participation:
        """Returns that a client comes in any k rounds."""
        return MinSep(min_sep=1, max_participations=min(self.participations, rounds))

    def draw(self, clients: int, rounds: int, size: float | None, draws: Draws) -> Cohorts:
        """Returns cohorts of all clients, or of ⌊`clients_per_round`·n / k⌋, which are chosen first."""
        turns = min(self.participations, rounds)
        chosen = draws.order(clients)[: taking_part(clients, size and size * rounds / turns)]
        members: list[list[int]] = [[] for _ in range(rounds)]
        for client in chosen:
            for t in draws.chosen(rounds, turns):
                members[t].append(client)
        return [np.array(cohort, np.int64) for cohort in members]

    def run(self, question: Question) -> SecretRun:
        """Returns a run of a mechanism whose C is diagonal."""
        mechanism, rounds, turns = question.mechanism, question.rounds, self.participations
        bands, norm = bands_and_norm(mechanism, rounds)
        if bands > 1:
            raise InputValueError(
                f"mechanism has {bands} bands, and no theorem here amplifies it by random allocation: take "
                "tff_mf.Identity(), or tff_mf.BallsInBins for clients with a secret group."
            )
        if turns > rounds:
            raise InputValueError(f"participations={turns} must be at most rounds={rounds}.")
        charge_of = question.charge_of(turns, self.clients_per_round, needs_bands=True)
        return _AllocatedRun(releases=rounds // turns, turns=turns, norm=norm, charge_of=charge_of)


@dataclasses.dataclass(frozen=True, kw_only=True)
class _AllocatedRun(SecretRun):
    """k independent choices of one release of ⌊n/k⌋ each."""

    releases: int
    turns: int
    norm: float

    def ideal(self, sigma: float, delta: float, *, change: float, share: float) -> Level:
        del share
        mu = Guarantee.of_gaussian(self.norm + change, sigma).mu
        return worst(delta, _THEOREM, *_epsilons(self.releases, self.turns, mu, delta))


@functools.lru_cache(maxsize=256)
def _epsilons(releases: int, turns: int, mu: float, delta: float) -> tuple[float, float]:
    """Returns ε for the run with the client against the run without it, and for the opposite."""
    plain = Guarantee(mu=mu * math.sqrt(turns) * (1 + 2.0**-50)).epsilon(delta)
    if releases == 1 or plain in (0.0, math.inf):
        return plain, plain
    atoms = one_of_many(releases, mu, delta)
    if atoms is None:
        return plain, plain
    found = composed_losses.epsilon([atoms.losses(remove=True)], turns, delta, most=plain)
    add = composed_losses.epsilon([atoms.losses(remove=False)], turns, delta, most=plain, least=found)
    return found, add
