"""Cohorts that go through the population epoch by epoch."""

import math
from collections.abc import Sequence

import numpy as np

import tff_mf
from tff_mf.errors import InputValueError

from . import _checks
from ._plan import CohortPlan
from ._request import CohortRequest


def plan_shuffled_epochs(
    *,
    client_ids: Sequence[str],
    clients_per_round: int,
    rounds: int,
    participation: tff_mf.Participation,
    seed: int,
) -> CohortPlan:
    """Shuffles the clients anew in every epoch, such that each still waits `min_sep` rounds from turn to turn.

    An epoch has E = ⌊population / clients_per_round⌋ rounds, and a client takes part at most once in it. Shuffled
    without regard, one that is last in an epoch could be first in the next. Here each cohort is drawn uniformly from
    the clients that are not yet in this epoch and were in none of the min_sep - 1 cohorts before. Those who cannot
    be drawn in round r of an epoch are at most max(r, min_sep - 1) cohorts, so that min_sep ≤ E always leaves enough.

    Formal guarantee: every client keeps `participation`; with n rounds it has at most ⌈n / E⌉ of them.

    Args:
        client_ids: The population; the plan depends on its order.
        clients_per_round: Size m of every cohort.
        rounds: Number n of rounds.
        participation: The schema to keep.
        seed: The same arguments give the same plan.

    Example:
        >>> plan = plan_shuffled_epochs(
        ...     client_ids=["a", "b", "c", "d"], clients_per_round=1, rounds=8,
        ...     participation=tff_mf.MinSep(min_sep=2, max_participations=2), seed=1)
        >>> sorted(plan.cohort(t)[0] for t in range(4))
        ['a', 'b', 'c', 'd']

    Raises:
        InputTypeError: If an argument is of the wrong type.
        InputValueError: If the population is too small.
    """
    asked = CohortRequest(
        client_ids=client_ids,
        clients_per_round=clients_per_round,
        rounds=rounds,
        participation=participation,
        seed=seed,
    )
    epoch = asked.population // clients_per_round
    min_sep = min(participation.min_sep, rounds)
    epochs = math.ceil(rounds / epoch) if epoch else 0
    if not epoch or min_sep > epoch or epochs > participation.max_participations:
        raise InputValueError(
            f"sampling='shuffled_epochs' with clients_per_round={clients_per_round} and {asked.population} clients has "
            f"epochs of {epoch} rounds, but min_sep={participation.min_sep} and "
            f"max_participations={participation.max_participations} in rounds={rounds} need at least "
            f"{max(min_sep, math.ceil(rounds / participation.max_participations))}; take fewer clients_per_round."
        )
    generator = asked.generator()
    last = np.full(asked.population, -min_sep)
    begun = np.zeros(asked.population, np.int64)
    indices = np.empty((rounds, clients_per_round), np.int32)
    for t in range(rounds):
        free = np.flatnonzero((begun <= t // epoch) & (last <= t - min_sep))
        indices[t] = generator.choice(free, clients_per_round, replace=False)
        last[indices[t]] = t
        begun[indices[t]] = t // epoch + 1
    return asked.planned(indices)


def plan_fixed_epochs(
    *,
    client_ids: Sequence[str],
    clients_per_round: int,
    rounds: int,
    participation: tff_mf.Participation,
    seed: int,
) -> CohortPlan:
    """Shuffles the clients once; each then comes every `min_sep` rounds, always with the same others.

    The (k, b)-participation of Choquette-Choo et al. (2023). min_sep·clients_per_round clients take part, the
    others never do.

    Formal guarantee: the rounds of a client are a pattern of `tff_mf.FixedEpoch` with the same two numbers, and so of
    `participation`.

    Args:
        client_ids: The population; the plan depends on its order.
        clients_per_round: Size m of every cohort.
        rounds: Number n of rounds.
        participation: The schema to keep: a `FixedEpoch`, or a `MinSep` of the same numbers, for which noise is larger.
        seed: The same arguments give the same plan.

    Example:
        >>> plan = plan_fixed_epochs(
        ...     client_ids=["a", "b", "c", "d"], clients_per_round=2, rounds=4,
        ...     participation=tff_mf.MinSep(min_sep=2, max_participations=2), seed=1)
        >>> plan.cohort(0) == plan.cohort(2)
        True

    Raises:
        InputTypeError: If an argument is of the wrong type.
        InputValueError: If the population is too small, or the rounds are too many.
    """
    asked = CohortRequest(
        client_ids=client_ids,
        clients_per_round=clients_per_round,
        rounds=rounds,
        participation=participation,
        seed=seed,
        schemas=_checks.PLANNED,
    )
    epoch = min(participation.min_sep, rounds)
    if asked.population < epoch * clients_per_round or math.ceil(rounds / epoch) > participation.max_participations:
        raise InputValueError(
            f"sampling='fixed_epochs' with min_sep={participation.min_sep} and "
            f"clients_per_round={clients_per_round} needs {epoch * clients_per_round} clients and "
            f"max_participations={math.ceil(rounds / epoch)}, but the population has {asked.population} and "
            f"max_participations={participation.max_participations}."
        )
    order = asked.generator().permutation(asked.population)[: epoch * clients_per_round]
    return asked.planned(order.reshape(epoch, clients_per_round)[np.arange(rounds) % epoch])
