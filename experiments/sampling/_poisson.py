"""Poisson sampling: every client joins a cohort by a coin toss of its own, as amplification by sampling requires."""

import math
from collections.abc import Sequence

import numpy as np

import tff_mf
from tff_mf.errors import InputValueError

from . import _checks
from ._plan import NOBODY, CohortPlan
from ._request import CohortRequest


def plan_poisson(
    *,
    client_ids: Sequence[str],
    clients_per_round: int,
    rounds: int,
    participation: tff_mf.Participation,
    seed: int,
) -> CohortPlan:
    """Puts each client into each cohort with probability clients_per_round / population, independently.

    Formal guarantee: without amplification, as for clients who come in every round, which `participation` must
    allow. Amplification by sampling (corollary E.1 of Choquette-Choo et al. (2023) with b = 1) holds only against
    an observer who does not know the cohorts. Here they follow from `seed` and are logged, as suits a simulation: an
    amplified ε is not a statement about the clients of such a run, only about a deployment that draws its cohorts in
    secret.

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
    asked = CohortRequest(
        client_ids=client_ids,
        clients_per_round=clients_per_round,
        rounds=rounds,
        participation=participation,
        seed=seed,
    )
    return _plan("poisson", asked, groups=1)


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
    `participation`. Amplified, for mechanisms with at most b bands, it is as for `plan_poisson`, with the
    same condition: the observer does not know the cohorts.

    Args:
        client_ids: The population; the plan depends on its order.
        clients_per_round: Size of a cohort on average.
        rounds: Number n of rounds.
        participation: The schema to keep, a `FixedEpoch` or a `MinSep`; its min-sep b is the number of groups.
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
    asked = CohortRequest(
        client_ids=client_ids,
        clients_per_round=clients_per_round,
        rounds=rounds,
        participation=participation,
        seed=seed,
        schemas=_checks.PLANNED,
    )
    return _plan("cyclic_poisson", asked, groups=participation.min_sep)


def _plan(kind: str, asked: CohortRequest, *, groups: int) -> CohortPlan:
    clients_per_round, rounds, participation = asked.clients_per_round, asked.rounds, asked.participation
    turns = math.ceil(rounds / groups)
    if participation.min_sep > groups or participation.max_participations < turns:
        raise InputValueError(
            f"sampling={kind!r} bounds clients by min_sep={groups} and max_participations={turns} only; assume that, "
            f"not min_sep={participation.min_sep} and max_participations={participation.max_participations}."
        )
    size = asked.population // groups
    if size < clients_per_round:
        raise InputValueError(
            f"sampling={kind!r} with clients_per_round={clients_per_round} and {groups} groups needs "
            f"{groups * clients_per_round} clients, but the population has {asked.population}."
        )
    generator = asked.generator()
    order = generator.permutation(asked.population)[: groups * size]
    cohorts = []
    for t in range(rounds):
        group = order[t % groups :: groups]
        # Independent coins give a binomial number of clients, each set of that size equally likely.
        count = generator.binomial(len(group), clients_per_round / size)
        cohorts.append(generator.choice(group, count, replace=False))
    width = max(1, *map(len, cohorts))
    indices = np.full((rounds, width), NOBODY)
    for t, cohort in enumerate(cohorts):
        indices[t, : len(cohort)] = cohort
    return asked.planned(indices)
