"""Poisson sampling with a minimum separation: every client that may take part tosses a coin of its own."""

import math
from collections.abc import Sequence

import numpy as np

import tff_mf
from tff_mf.errors import InputValueError

from ._plan import NOBODY, CohortPlan
from ._request import CohortRequest


def plan_min_sep_poisson(
    *,
    client_ids: Sequence[str],
    clients_per_round: int,
    rounds: int,
    participation: tff_mf.Participation,
    seed: int,
) -> CohortPlan:
    """Puts each client that was in none of the last min_sep − 1 cohorts into a cohort with probability p.

    With b = min_sep, m = clients_per_round and a population of P, p = m / (P − m·(b − 1)), and clients are drawn
    independently. Before the first round they are as after many: available with probability 1 / (1 + p·(b − 1)), and
    otherwise after 1 to b − 1 rounds, each equally likely. So every cohort has m clients on average.

    Formal guarantee: any two rounds of a client are at least b apart, and it has at most ⌈n / b⌉ of them; ε comes from
    `participation`. Amplified, for mechanisms of at most b bands without entries below 0, it comes from
    `tff_mf.BMinSep`, where the coins are secret. Here they follow from `seed`, as suits a simulation:
    an amplified ε is then not a statement about its clients.

    Args:
        client_ids: The population; the plan depends on its order.
        clients_per_round: Size of a cohort on average.
        rounds: Number n of rounds.
        participation: The schema to keep; its min-sep is b.
        seed: The same arguments give the same plan.

    Example:
        >>> plan = plan_min_sep_poisson(
        ...     client_ids=[str(i) for i in range(40)], clients_per_round=2, rounds=30,
        ...     participation=tff_mf.MinSep(min_sep=10, max_participations=3), seed=1)
        >>> plan.observed().min_sep >= 10
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
    )
    apart, population = participation.min_sep, asked.population
    turns = math.ceil(rounds / apart)
    if participation.max_participations < turns:
        raise InputValueError(
            f"sampling='min_sep_poisson' bounds clients by min_sep={apart} and max_participations={turns} only; assume "
            f"that, not max_participations={participation.max_participations}."
        )
    if population < apart * clients_per_round:
        raise InputValueError(
            f"sampling='min_sep_poisson' with clients_per_round={clients_per_round} and min_sep={apart} needs "
            f"{apart * clients_per_round} clients, but the population has {population}."
        )
    probability = clients_per_round / (population - clients_per_round * (apart - 1))
    generator = asked.generator()
    waits = generator.integers(1, max(apart, 2), size=population)
    available_from = np.where(generator.random(population) * (1 + probability * (apart - 1)) < 1, 0, waits)
    cohorts = []
    for t in range(rounds):
        free = np.flatnonzero(available_from <= t)
        # Independent coins give a binomial number of clients, each set of that size equally likely.
        cohorts.append(generator.choice(free, generator.binomial(len(free), probability), replace=False))
        available_from[cohorts[-1]] = t + apart
    indices = np.full((rounds, max(1, *map(len, cohorts))), NOBODY)
    for t, cohort in enumerate(cohorts):
        indices[t, : len(cohort)] = cohort
    return asked.planned(indices)
