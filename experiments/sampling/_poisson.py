"""Cohorts that every client joins by a coin of its own: what amplification by sampling is proved for."""

import math
from collections.abc import Sequence

import numpy as np

import tff_mf
from tff_mf import _validate
from tff_mf.errors import InputValueError

from . import _checks
from ._plan import NOBODY, CohortPlan


def plan_poisson(
    *,
    client_ids: Sequence[str],
    clients_per_round: int,
    rounds: int,
    participation: tff_mf.Participation,
    seed: int,
) -> CohortPlan:
    """Puts each client into each cohort with probability clients_per_round / population, independently.

    Formal guarantee: without amplification, that of clients who come in every round, which `participation` must
    allow. Amplification by sampling (corollary E.1 of Choquette-Choo et al. (2023) with b = 1) holds only against
    who does not know the cohorts. Here they follow from `seed` and are logged, as suits a simulation: no amplified ε
    is a statement about the clients of such a run, only about a deployment that draws its cohorts in secret.

    Args:
        client_ids: The population; the plan depends on its order.
        clients_per_round: Size of a cohort on average.
        rounds: Number n of rounds.
        participation: The schema to keep: it must allow every round.
        seed: The same arguments give the same plan.

    Example:
        >>> plan = plan_poisson(
        ...     client_ids=["a", "b", "c", "d"], clients_per_round=2, rounds=3,
        ...     participation=tff_mf.MinSep(min_sep=1, max_participations=3), seed=1)
        >>> [len(plan.cohort(t)) for t in range(3)]
        [1, 1, 2]

    Raises:
        InputTypeError: If an argument is of the wrong type.
        InputValueError: If an argument is out of range.
    """
    return _plan("poisson", client_ids, clients_per_round, rounds, participation, seed, groups=1)


def plan_cyclic_poisson(
    *,
    client_ids: Sequence[str],
    clients_per_round: int,
    rounds: int,
    participation: tff_mf.Participation,
    seed: int,
) -> CohortPlan:
    """Splits the clients into `min_sep` groups that take turns; each client of a round's group tosses a coin.

    Algorithm 5 of Choquette-Choo et al. (2023) with the sampling of corollary E.1: in round t each client of group
    t mod b takes part with probability clients_per_round / ⌊population / b⌋, for b = min_sep. Groups have
    ⌊population / b⌋ clients each, chosen at random beforehand; those that are left over never take part.

    Formal guarantee: without amplification, the rounds of a client are a pattern of `tff_mf.FixedEpoch`, and so of
    `participation`. Amplified, for mechanisms with at most b bands, it is that of `plan_poisson`, with the
    same condition: whoever knows the cohorts is not covered.

    Args:
        client_ids: The population; the plan depends on its order.
        clients_per_round: Size of a cohort on average.
        rounds: Number n of rounds.
        participation: The schema to keep; its separation b is the number of groups.
        seed: The same arguments give the same plan.

    Example:
        >>> plan = plan_cyclic_poisson(
        ...     client_ids=["a", "b", "c", "d"], clients_per_round=1, rounds=4,
        ...     participation=tff_mf.MinSep(min_sep=2, max_participations=2), seed=1)
        >>> set(plan.cohort(0)).isdisjoint(plan.cohort(1))
        True

    Raises:
        InputTypeError: If an argument is of the wrong type.
        InputValueError: If an argument is out of range.
    """
    _checks.check_participation(participation)
    return _plan(
        "cyclic_poisson", client_ids, clients_per_round, rounds, participation, seed, groups=participation.min_sep
    )


def _plan(
    kind: str,
    client_ids: Sequence[str],
    clients_per_round: int,
    rounds: int,
    participation: tff_mf.Participation,
    seed: int,
    *,
    groups: int,
) -> CohortPlan:
    client_ids = _checks.population(client_ids)
    clients_per_round = _validate.whole("clients_per_round", clients_per_round)
    rounds = _validate.whole("rounds", rounds)
    _checks.check_participation(participation)
    turns = math.ceil(rounds / groups)
    if participation.min_sep > groups or participation.max_participations < turns:
        raise InputValueError(
            f"sampling={kind!r} bounds clients by min_sep={groups} and max_participations={turns} only; assume that, "
            f"not min_sep={participation.min_sep} and max_participations={participation.max_participations}."
        )
    size = len(client_ids) // groups
    if size < clients_per_round:
        raise InputValueError(
            f"sampling={kind!r} with clients_per_round={clients_per_round} and {groups} groups needs "
            f"{groups * clients_per_round} clients, but the population has {len(client_ids)}."
        )
    generator = _checks.generator(seed)
    order = generator.permutation(len(client_ids))[: groups * size]
    cohorts = []
    for t in range(rounds):
        group = order[t % groups :: groups]
        # A coin for each is a binomial number of them, any as likely as any other.
        count = generator.binomial(len(group), clients_per_round / size)
        cohorts.append(generator.choice(group, count, replace=False))
    width = max(1, *map(len, cohorts))
    indices = np.full((rounds, width), NOBODY)
    for t, cohort in enumerate(cohorts):
        indices[t, : len(cohort)] = cohort
    return CohortPlan(client_ids=client_ids, participation=participation, indices=indices)
