"""Balls in bins: every client is put into one of b groups, once, and takes part whenever its group does."""

import math
from collections.abc import Sequence

import numpy as np

import tff_mf
from tff_mf.errors import InputValueError

from . import _checks
from ._plan import NOBODY, CohortPlan
from ._request import CohortRequest
from ._secret_groups import SecretGroups


def plan_balls_in_bins(
    *,
    client_ids: Sequence[str],
    clients_per_round: int,
    rounds: int,
    participation: tff_mf.Participation,
    seed: int | None = None,
    secret: SecretGroups | None = None,
) -> CohortPlan:
    """Puts each client into one of b = `min_sep` groups, independently and uniformly; group t mod b has round t.

    clients_per_round · min_sep clients take part, chosen at random, so that a cohort has `clients_per_round` of them on
    average; the others never do. Divide sums by that constant, and do not release the sizes of cohorts: they depend on
    who is in which group.

    Formal guarantee: without amplification, the rounds of a client are a pattern of `tff_mf.FixedEpoch`, and so of
    `participation`. Amplified, for C without entries below 0, it comes from `tff_mf.BallsInBins`, on two
    conditions: groups are drawn as with `secret`, for this run alone, and nobody who sees the
    released sums ever learns a cohort, nor the `digest` or the `clients_per_round` of the plan. With a `seed` the
    cohorts follow from it, as suits a simulation: an amplified ε is then not a statement about its clients.

    Args:
        client_ids: The population; the plan depends on its order.
        clients_per_round: Size of a cohort on average.
        rounds: Number n of rounds.
        participation: The schema to keep, a `FixedEpoch` or a `MinSep`; its min-sep b is the number of groups.
        seed: The same arguments give the same plan.
        secret: Groups drawn from the system's randomness, in place of a seed; a resumed run needs the same.

    Example:
        >>> plan = plan_balls_in_bins(
        ...     client_ids=["a", "b", "c", "d"], clients_per_round=2, rounds=4,
        ...     participation=tff_mf.MinSep(min_sep=2, max_participations=2), secret=SecretGroups.drawn(2))
        >>> plan.cohort(0) == plan.cohort(2), len(plan.cohort(0)) + len(plan.cohort(1))
        (True, 4)

    Raises:
        InputTypeError: If an argument is of the wrong type.
        InputValueError: If an argument is out of range, or not exactly one of `seed` and `secret` is given.
    """
    if (seed is None) == (secret is None):
        raise InputValueError("Give either seed=…, for a simulation, or secret=SecretGroups.drawn(min_sep), not both.")
    asked = CohortRequest(
        client_ids=client_ids,
        clients_per_round=clients_per_round,
        rounds=rounds,
        participation=participation,
        seed=0 if seed is None else seed,
        schemas=_checks.PLANNED,
    )
    groups, clients = participation.min_sep, participation.min_sep * clients_per_round
    turns = math.ceil(rounds / groups)
    if participation.max_participations < turns:
        raise InputValueError(
            f"sampling='balls_in_bins' lets a client take part in max_participations={turns} of rounds={rounds}, once "
            f"in {groups} of them; assume that, not max_participations={participation.max_participations}."
        )
    if asked.population < clients:
        raise InputValueError(
            f"sampling='balls_in_bins' with clients_per_round={clients_per_round} and {groups} groups needs {clients} "
            f"clients, but the population has {asked.population}."
        )
    if secret is None:
        generator = asked.generator()
        chosen = generator.permutation(asked.population)[:clients]
        group_of = generator.integers(groups, size=clients)
    elif secret.groups != groups:
        raise InputValueError(f"secret has {secret.groups} groups, but min_sep={groups}: draw as many.")
    else:
        chosen = np.array(secret.chosen(asked.client_ids, clients))
        group_of = np.array([secret.group_of(asked.client_ids[index]) for index in chosen])
    members = [chosen[group_of == group] for group in range(groups)]
    indices = np.full((rounds, max(1, *map(len, members))), NOBODY)
    for t in range(rounds):
        cohort = members[t % groups]
        indices[t, : len(cohort)] = cohort
    return asked.planned(indices)
