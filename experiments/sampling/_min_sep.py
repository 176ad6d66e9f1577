"""Cohorts drawn at random from all clients that the schema allows: the default."""

import math
from collections.abc import Sequence

import numpy as np

import tff_mf
from tff_mf.errors import InputValueError

from ._plan import CohortPlan
from ._request import CohortRequest


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
      never fails, and n rounds hold at most ⌈n/s⌉ ≤ k rounds that are s apart. s is b unless k is the tighter bound.
    * Else P is short of s·m by rounding only, since P ≥ n·m/k: the cohorts go round a shuffled circle
      of all clients, m at a time. A client's turns are P places apart, hence at least ⌊P/m⌋ ≥ b
      rounds, and it has at most ⌈n·m/P⌉ ≤ k of them.

    The guarantee holds for every pattern of the schema and does not need the cohorts to be secret: a plain seeded
    generator is enough here, unlike for noise.

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
    asked = CohortRequest(
        client_ids=client_ids,
        clients_per_round=clients_per_round,
        rounds=rounds,
        participation=participation,
        seed=seed,
    )
    _check_capacity(asked)
    generator, population = asked.generator(), asked.population
    min_sep = min(max(participation.min_sep, math.ceil(rounds / participation.max_participations)), rounds)
    if population >= min_sep * clients_per_round:
        indices = drawn(asked, generator, min_sep)
    else:
        places = np.arange(rounds * clients_per_round) % population
        indices = generator.permutation(population)[places].reshape(rounds, clients_per_round)
    return asked.planned(indices)


def drawn(asked: CohortRequest, generator: np.random.Generator, min_sep: int) -> np.ndarray:
    """Returns cohorts, each drawn uniformly from the clients in none of the `min_sep` - 1 cohorts before."""
    clients_per_round = asked.clients_per_round
    indices = np.empty((asked.rounds, clients_per_round), np.int32)
    waiting = np.arange(asked.population, dtype=np.int32)
    for t in range(asked.rounds):
        if t >= min_sep:
            waiting = np.concatenate([waiting, indices[t - min_sep]])
        chosen = generator.choice(len(waiting), clients_per_round, replace=False)
        indices[t] = waiting[chosen]
        waiting = np.delete(waiting, chosen)
    return indices


def _check_capacity(asked: CohortRequest) -> None:
    """Raises unless cohorts exist, naming single changes that make them exist."""
    population, clients_per_round, rounds = asked.population, asked.clients_per_round, asked.rounds
    participation = asked.participation
    window = min(participation.min_sep, rounds)
    limit = participation.max_participations
    problems = []
    if population < window * clients_per_round:
        problems.append(
            f"min_sep={participation.min_sep} with clients_per_round={clients_per_round} needs "
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
