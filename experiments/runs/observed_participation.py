"""How often, and how far apart, clients took part, by a participation log."""

import itertools
import math
import pathlib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ..sampling import ObservedParticipation
from .participation_log import read_entries


def read_observed(path: pathlib.Path) -> ObservedParticipation:
    """Returns how often, and how far apart, clients took part according to a log.

    Formal guarantee: as for `rounds_by_client`.

    Raises:
        InputValueError: If the file is not a participation log, or its rounds are not in order.
    """
    attempts: dict[tuple[int, int], list[str]] = {}
    for entry in read_entries(path):
        attempts.setdefault((entry.round_number, entry.attempt), []).append(entry.client)
    return observed(rounds_by_client(attempts).values())


def rounds_by_client(attempts: Mapping[tuple[int, Any], Iterable[str]]) -> dict[str, list[int]]:
    """Returns the rounds of each client, counted from 1, in order.

    Formal guarantee: a client in several attempts of a round took part in it once, since at most one attempt is
    released. A client in an abandoned attempt took part in its round all the same. If a client is listed twice in one
    attempt, its round is listed twice.

    Args:
        attempts: The clients of each attempt, by round and attempt.

    Example:
        >>> rounds_by_client({(1, 1): ["ann"], (1, 2): ["ann"], (3, 1): ["ann", "bob"]})
        {'ann': [1, 3], 'bob': [3]}
    """
    found: dict[str, dict[int, int]] = {}
    for (number, _), clients in sorted(attempts.items(), key=lambda each: each[0][0]):
        for client, times in Counter(clients).items():
            of_client = found.setdefault(client, {})
            of_client[number] = max(times, of_client.get(number, 0))
    return {
        client: [number for number, times in rounds.items() for _ in range(times)] for client, rounds in found.items()
    }


def observed(patterns: Iterable[Sequence[int]]) -> ObservedParticipation:
    """Returns how often, how far apart and in which steps clients took part.

    Args:
        patterns: The rounds of each client, in order.

    Example:
        >>> observed([[1, 3], [3]])
        ObservedParticipation(min_sep=2, max_participations=2)
    """
    patterns = [rounds for rounds in patterns if rounds]
    apart = {b - a for rounds in patterns for a, b in itertools.pairwise(rounds)}
    most = max(map(len, patterns), default=0)
    if not apart:
        return ObservedParticipation(min_sep=None, max_participations=most)
    return ObservedParticipation(
        min_sep=min(apart),
        max_participations=most,
        common_step=math.gcd(*apart),
        span=max(rounds[-1] - rounds[0] for rounds in patterns),
    )
