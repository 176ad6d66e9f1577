"""Random allocation: every client takes part in k rounds, chosen uniformly from all."""

from collections.abc import Sequence

import numpy as np

import tff_mf
from tff_mf.errors import InputValueError

from ._plan import NOBODY, CohortPlan
from ._request import CohortRequest


def plan_random_allocation(
    *,
    client_ids: Sequence[str],
    clients_per_round: int,
    rounds: int,
    participation: tff_mf.Participation,
    seed: int,
) -> CohortPlan:
    """Puts each client into k = max_participations of the rounds, chosen uniformly and independently of all others.

    ⌊clients_per_round · n / k⌋ clients take part, chosen at random, so that a cohort has `clients_per_round` of them on
    average, to rounding; the others never do.

    Formal guarantee: ε comes from `participation`, of k rounds that may follow each other. Amplified, for independent
    noise, it comes from `tff_mf.RandomAllocation`, where the rounds are secret; for one participation it is
    balls in bins with as many groups as rounds, and for more, no bound for correlated noise is proven in this package.
    Here rounds follow from `seed`, as suits a simulation: an amplified ε is then not a statement about its clients.

    Args:
        client_ids: The population; the plan depends on its order.
        clients_per_round: Size of a cohort on average.
        rounds: Number n of rounds.
        participation: The schema to keep: min-sep 1, and k participations.
        seed: The same arguments give the same plan.

    Example:
        >>> plan = plan_random_allocation(
        ...     client_ids=["a", "b", "c", "d"], clients_per_round=2, rounds=4,
        ...     participation=tff_mf.MinSep(min_sep=1, max_participations=2), seed=1)
        >>> sum(len(plan.cohort(t)) for t in range(4))
        8

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
    turns = min(participation.max_participations, rounds)
    if participation.min_sep > 1 and turns > 1:
        raise InputValueError(
            f"sampling='random_allocation' bounds clients by min_sep=1 and max_participations={turns} only; assume "
            f"that, not min_sep={participation.min_sep}."
        )
    clients = clients_per_round * rounds // turns
    if asked.population < clients:
        raise InputValueError(
            f"sampling='random_allocation' with clients_per_round={clients_per_round}, rounds={rounds} and "
            f"max_participations={turns} needs {clients} clients, but the population has {asked.population}."
        )
    generator = asked.generator()
    members: list[list[int]] = [[] for _ in range(rounds)]
    for client in generator.permutation(asked.population)[:clients]:
        for t in generator.choice(rounds, turns, replace=False):
            members[t].append(client)
    indices = np.full((rounds, max(1, *map(len, members))), NOBODY)
    for t, cohort in enumerate(members):
        indices[t, : len(cohort)] = cohort
    return asked.planned(indices)
