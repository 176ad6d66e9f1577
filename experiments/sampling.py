"""Who takes part in which round: cohorts that keep a participation schema, planned before training.

The plan is NumPy alone, so that a population that cannot fill the cohorts is refused at once;
`MinSepDataSource`, which hands the data of a plan's cohorts to a training program, needs TFF and is
imported when it is first asked for.
"""

import dataclasses
import functools
import hashlib
import json
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

import tff_mf
from tff_mf import _validate
from tff_mf.errors import InputTypeError, InputValueError

if TYPE_CHECKING:
    from ._min_sep_source import MinSepDataSource as MinSepDataSource


def __getattr__(name: str) -> object:
    if name == "MinSepDataSource":
        from ._min_sep_source import MinSepDataSource

        return MinSepDataSource
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


# Schemas that say no more than how often, and how far apart.
_COUNTED = (tff_mf.MinSep, tff_mf.SingleParticipation)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ObservedParticipation:
    """How often, and how far apart, clients did take part.

    Attributes:
        min_sep: Smallest difference r₂ − r₁ of two rounds that some client took part in; None if
            no client took part twice.
        max_participations: Largest number of rounds that some client took part in.
    """

    min_sep: int | None
    max_participations: int

    def within(self, participation: tff_mf.Participation) -> bool:
        """Says whether a guarantee for `participation` covers what was observed.

        Formal guarantee: where the schema says more than these two numbers, as `FixedEpoch` does of the place in an
        epoch, the answer is yes only if no client took part twice.
        """
        if not isinstance(participation, _COUNTED):
            return self.max_participations <= 1
        apart = self.min_sep is None or self.min_sep >= participation.separation
        return apart and self.max_participations <= participation.limit


@dataclasses.dataclass(frozen=True, kw_only=True)
class CohortPlan:
    """The cohort of every round, checked against the participation schema.

    Made by `plan_cohorts`; made by hand from other cohorts it is checked just the same.

    Attributes:
        client_ids: The population, no id twice.
        participation: The schema that every client keeps.
        indices: int32 [rounds, clients_per_round], positions in `client_ids`; read-only.

    Raises:
        InputTypeError: If a field is of the wrong type.
        InputValueError: If `indices` has another shape, points outside the population, or breaks
            the schema.
    """

    client_ids: tuple[str, ...]
    participation: tff_mf.Participation
    indices: np.ndarray

    def __post_init__(self) -> None:
        object.__setattr__(self, "client_ids", _population(self.client_ids))
        _check_participation(self.participation)
        indices = np.array(self.indices)
        if indices.ndim != 2 or indices.size == 0 or not np.issubdtype(indices.dtype, np.integer):
            raise InputValueError(
                "indices must be whole numbers of shape [rounds, clients_per_round], both at least 1."
            )
        if indices.min() < 0 or indices.max() >= len(self.client_ids):
            raise InputValueError(
                f"indices go from {indices.min()} to {indices.max()}, but there are {len(self.client_ids)} client_ids."
            )
        indices = indices.astype(np.int32)
        indices.setflags(write=False)
        object.__setattr__(self, "indices", indices)
        observed = self.observed()
        if not observed.within(self.participation):
            raise InputValueError(
                f"indices have min_sep={observed.min_sep} and max_participations={observed.max_participations}, "
                f"which {self.participation} does not allow; use plan_cohorts."
            )

    @property
    def rounds(self) -> int:
        """Number of rounds planned."""
        return self.indices.shape[0]

    @property
    def clients_per_round(self) -> int:
        """Size of every cohort."""
        return self.indices.shape[1]

    def cohort(self, t: int) -> tuple[str, ...]:
        """Returns the ids of the clients of round `t`, counted from 0.

        Raises:
            InputValueError: If the plan has no round `t`.
        """
        t = _validate.whole("round", t, at_least=0)
        if t >= self.rounds:
            raise InputValueError(f"round={t} is not planned: the plan has rounds={self.rounds}, counted from 0.")
        return tuple(self.client_ids[index] for index in self.indices[t])

    def observed(self, rounds: int | None = None) -> ObservedParticipation:
        """Returns the participation in the first `rounds` cohorts as they are; None is all of them."""
        indices = self.indices if rounds is None else self.indices[: _validate.whole("rounds", rounds)]
        when = np.repeat(np.arange(indices.shape[0]), indices.shape[1])
        who = indices.reshape(-1)
        order = np.lexsort((when, who))
        when, who = when[order], who[order]
        again = who[1:] == who[:-1]
        apart = (when[1:] - when[:-1])[again]
        return ObservedParticipation(
            min_sep=int(apart.min()) if apart.size else None, max_participations=int(np.bincount(who).max())
        )

    @functools.cached_property
    def digest(self) -> str:
        """A hash of all that the plan says: equal for equal plans, in every process."""
        text = json.dumps([self.client_ids, repr(self.participation), self.indices.shape])
        return hashlib.sha256(text.encode() + self.indices.astype("<i4").tobytes()).hexdigest()

    def __eq__(self, other: object) -> bool:
        return self.digest == other.digest if isinstance(other, CohortPlan) else NotImplemented

    def __hash__(self) -> int:
        return hash(self.digest)


def plan_cohorts(
    *,
    client_ids: Sequence[str],
    clients_per_round: int,
    rounds: int,
    participation: tff_mf.Participation,
    seed: int,
) -> CohortPlan:
    """Draws the cohorts of all rounds at random, such that every client keeps `participation`.

    With b = min_sep, k = max_participations, n rounds and m clients a round, cohorts exist if and
    only if the population P has P ≥ m·min(b, n) (the clients of b consecutive rounds are distinct)
    and P·k ≥ n·m (the participations suffice). Both are necessary by counting. They are sufficient:

    * Let s = min(max(b, ⌈n/k⌉), n). If P ≥ s·m, each cohort is drawn uniformly among the clients
      that were in none of the s − 1 cohorts before. Those are at least P − (s − 1)·m ≥ m, so a draw
      never fails, and n rounds hold at most ⌈n/s⌉ ≤ k rounds that are s apart. s is b unless k is what limits.
    * Else P is short of s·m by rounding only, since P ≥ n·m/k: the cohorts go round a shuffled circle
      of all clients, m at a time. A client's turns are P places apart, hence at least ⌊P/m⌋ ≥ b
      rounds, and it has at most ⌈n·m/P⌉ ≤ k of them.

    Which clients take part is no secret of the guarantee (it holds for every pattern of the
    schema), so a plain seeded generator will do here, unlike for noise.

    Args:
        client_ids: The population; the plan depends on its order.
        clients_per_round: Size m of every cohort.
        rounds: Number n of rounds.
        participation: The schema to keep.
        seed: Of NumPy's PCG64; the same arguments give the same plan.

    Returns:
        The plan; `plan.observed()` may be better than `participation`, never worse.

    Example:
        >>> plan = plan_cohorts(
        ...     client_ids=["a", "b", "c", "d"], clients_per_round=1, rounds=8,
        ...     participation=tff_mf.MinSep(min_sep=3, max_participations=3), seed=1)
        >>> plan.observed().min_sep
        3

    Raises:
        InputTypeError: If an argument is of the wrong type.
        InputValueError: If the population cannot fill the cohorts; the message says what would fit.
    """
    client_ids = _population(client_ids)
    clients_per_round = _validate.whole("clients_per_round", clients_per_round)
    rounds = _validate.whole("rounds", rounds)
    _check_participation(participation)
    generator = np.random.Generator(np.random.PCG64(_validate.whole("seed", seed, at_least=0)))
    population = len(client_ids)
    _check_capacity(population, clients_per_round, rounds, participation)
    separation = min(max(participation.separation, math.ceil(rounds / participation.limit)), rounds)
    if population >= separation * clients_per_round:
        indices = _drawn(generator, population, clients_per_round, rounds, separation)
    else:
        places = np.arange(rounds * clients_per_round) % population
        indices = generator.permutation(population)[places].reshape(rounds, clients_per_round)
    return CohortPlan(client_ids=client_ids, participation=participation, indices=indices)


def _drawn(
    generator: np.random.Generator, population: int, clients_per_round: int, rounds: int, separation: int
) -> np.ndarray:
    indices = np.empty((rounds, clients_per_round), np.int32)
    waiting = np.arange(population, dtype=np.int32)
    for t in range(rounds):
        if t >= separation:
            waiting = np.concatenate([waiting, indices[t - separation]])
        chosen = generator.choice(len(waiting), clients_per_round, replace=False)
        indices[t] = waiting[chosen]
        waiting = np.delete(waiting, chosen)
    return indices


def _population(client_ids: Sequence[str]) -> tuple[str, ...]:
    if isinstance(client_ids, str) or not isinstance(client_ids, Sequence):
        raise InputTypeError(f"client_ids={client_ids!r:.80} must be a sequence of strings.")
    strange = next((client_id for client_id in client_ids if not isinstance(client_id, str)), None)
    if strange is not None:
        raise InputTypeError(f"client_ids has {strange!r}; every id must be a string.")
    if not client_ids:
        raise InputValueError("client_ids=[] is an empty population; pass at least one client.")
    if len(set(client_ids)) < len(client_ids):
        raise InputValueError(f"client_ids has {len(client_ids)} ids, only {len(set(client_ids))} of them different.")
    return tuple(client_ids)


def _check_participation(participation: tff_mf.Participation) -> None:
    if not isinstance(participation, _COUNTED):
        raise InputTypeError(
            f"participation={participation!r} must be a MinSep or a SingleParticipation: cohorts are planned and "
            "checked by how often, and how far apart, clients take part; pass "
            "tff_mf.MinSep(min_sep=..., max_participations=...)."
        )


def _check_capacity(population: int, clients_per_round: int, rounds: int, participation: tff_mf.Participation) -> None:
    """Raises unless cohorts exist, naming single changes that make them exist."""
    window = min(participation.separation, rounds)
    limit = participation.limit
    problems = []
    if population < window * clients_per_round:
        problems.append(
            f"min_sep={participation.separation} with clients_per_round={clients_per_round} needs "
            f"{window * clients_per_round} clients"
        )
    if population * limit < rounds * clients_per_round:
        problems.append(
            f"rounds={rounds} with clients_per_round={clients_per_round} and max_participations={limit} needs "
            f"{math.ceil(rounds * clients_per_round / limit)} clients"
        )
    if not problems:
        return
    fits = []
    fewer = min(population // window, population * limit // rounds)
    if fewer:
        fits.append(f"clients_per_round={fewer}")
    if population >= clients_per_round:
        changes = []
        if population < window * clients_per_round:
            changes.append(f"min_sep={population // clients_per_round}")
        if population * limit < rounds * clients_per_round:
            changes.append(f"max_participations={math.ceil(rounds * clients_per_round / population)}")
        fits.append(" with ".join(changes))
    remedy = f"{' or '.join(fits)} would fit" if fits else "no cohort fits so few clients for so many rounds"
    raise InputValueError(f"{', and '.join(problems)}, but the population has {population}; {remedy}.")
