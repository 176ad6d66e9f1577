"""Devices with a timer: the papers' production setting, where min-sep in rounds is known only afterwards."""

import math
from collections.abc import Sequence

import numpy as np

import tff_mf
from tff_mf import validation
from tff_mf.errors import InputValueError

from ._min_sep import drawn
from ._plan import CohortPlan
from ._request import CohortRequest

_DAY_HOURS = 24.0
# Devices are idle and charging at night, so that rounds then take half as long as they do on average, and half
# as long again by day; how long one takes varies as the sum of four waiting times.
_SWING = 0.5
_SHAPE = 4


def plan_timer(
    *,
    client_ids: Sequence[str],
    clients_per_round: int,
    rounds: int,
    participation: tff_mf.Participation,
    seed: int,
    timer_hours: float | None = None,
    round_minutes: float | None = None,
) -> CohortPlan:
    """Draws each cohort uniformly from the devices whose timer has run out.

    Without `timer_hours` the timer counts rounds: a device may come again `min_sep` rounds after it came. With it,
    the timer counts hours on a simulated clock, on which rounds are quick by night and slow by day and wait for enough
    devices. How many rounds passed between two participations is then known only afterwards.

    Formal guarantee: with a timer of rounds, any two rounds of a client are at least `min_sep` apart, and nothing but
    that bounds how many there are: ⌈n / min_sep⌉. With a timer of hours nothing is bounded beforehand; `participation`
    of the result is what came out. The guarantee of a run follows from the observed participation, which does not
    depend on anybody's data: cohorts are drawn from timers and chance alone.

    Args:
        client_ids: The population; the plan depends on its order.
        clients_per_round: Size m of every cohort.
        rounds: Number n of rounds.
        participation: What is assumed of clients; its min-sep is the timer if that counts rounds.
        seed: Of cohorts and clock; the same arguments give the same plan.
        timer_hours: Hours that a device waits after taking part.
        round_minutes: Minutes that a round takes on average.

    Example:
        >>> plan = plan_timer(
        ...     client_ids=[str(i) for i in range(40)], clients_per_round=2, rounds=30,
        ...     participation=tff_mf.MinSep(min_sep=10, max_participations=3), seed=1,
        ...     timer_hours=10.0, round_minutes=60.0)
        >>> plan.participation.min_sep == plan.observed().min_sep
        True

    Raises:
        InputTypeError: If an argument is of the wrong type.
        InputValueError: If there are too few clients.
    """
    asked = CohortRequest(
        client_ids=client_ids,
        clients_per_round=clients_per_round,
        rounds=rounds,
        participation=participation,
        seed=seed,
    )
    generator = asked.generator()
    min_sep = min(participation.min_sep, rounds) if timer_hours is None else 1
    if asked.population < min_sep * clients_per_round:
        raise InputValueError(
            f"sampling='timer' with clients_per_round={clients_per_round} and a timer of {min_sep} rounds needs "
            f"{min_sep * clients_per_round} clients, but the population has {asked.population}."
        )
    if timer_hours is None:
        indices = drawn(asked, generator, min_sep)
        kept = tff_mf.MinSep(min_sep=min_sep, max_participations=math.ceil(rounds / min_sep))
        return asked.planned(indices, kept)
    minutes = validation.positive("round_minutes", round_minutes)
    wait = validation.positive("timer_hours", timer_hours)
    indices = _by_clock(asked, generator, wait, minutes / 60)
    everything = tff_mf.MinSep(min_sep=1, max_participations=rounds)
    observed = asked.planned(indices, everything).observed()
    kept = tff_mf.MinSep(min_sep=observed.min_sep or rounds, max_participations=observed.max_participations)
    return asked.planned(indices, kept)


def _by_clock(asked: CohortRequest, generator: np.random.Generator, wait: float, hours: float) -> np.ndarray:
    clients_per_round = asked.clients_per_round
    indices = np.empty((asked.rounds, clients_per_round), np.int32)
    ready = np.zeros(asked.population)
    now = 0.0
    for t in range(asked.rounds):
        now = max(now, np.partition(ready, clients_per_round - 1)[clients_per_round - 1])
        indices[t] = generator.choice(np.flatnonzero(ready <= now), clients_per_round, replace=False)
        ready[indices[t]] = now + wait
        by_day = 1 - _SWING * math.cos(2 * math.pi * now / _DAY_HOURS)
        now += hours * by_day * generator.gamma(_SHAPE) / _SHAPE
    return indices
