"""What some client attains: lower bounds of sensitivity, from concrete patterns and contributions of 1 and −1."""

import functools
import itertools
from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from tff_mf._sensitivity import toeplitz
from tff_mf.mechanisms import Mechanism, ToeplitzMechanism
from tff_mf.participation import FixedEpoch, Participation

# Whole matrices are searched up to here: seconds.
_MOST_WHOLE_ROUNDS = 2**12
# Rounds that a search for a pattern begins at.
_STARTS = 4
# Participations whose signs are chosen; all of a longer pattern are equal.
_MOST_SIGNS = 2**6
_SWEEPS = 20


def attained(mechanism: Mechanism, rounds: int, participation: Participation) -> float:
    """Returns ‖Cu‖ for the worst found of contributions ±1 in the rounds of a pattern: the sensitivity is no less.

    Patterns are the earliest, the latest and those that a greedy search finds. Of a Toeplitz matrix over more than
    4096 rounds only the earliest is looked at.
    """
    if rounds > _MOST_WHOLE_ROUNDS and isinstance(mechanism, ToeplitzMechanism):
        column = mechanism.coefficients(rounds)
        earliest = range(0, rounds, participation.min_sep)[: participation.max_participations]
        if not participation.allows(earliest):
            return float(np.linalg.norm(column))
        return float(np.linalg.norm(toeplitz.earliest_pattern(column, participation)))
    matrix = mechanism.encoder(rounds)
    return max(_norm(matrix[:, list(pattern)]) for pattern in _patterns(matrix, participation))


def attained_by_any(matrix: np.ndarray, participation: Participation) -> float:
    """Returns the largest ‖Cu‖ over all patterns and all contributions ±1: exponential, for few rounds.

    Args:
        matrix: C, float64 `[rounds, rounds]`.
        participation: The participation schema.
    """
    return _by_any(matrix.tobytes(), len(matrix), participation)


@functools.lru_cache(maxsize=2**12)
def _by_any(entries: bytes, rounds: int, participation: Participation) -> float:
    matrix = np.frombuffer(entries).reshape(rounds, rounds)
    largest = 0.0
    for pattern in participation.patterns(rounds):
        largest = max(largest, float(np.max(np.linalg.norm(_signs(len(pattern)) @ matrix[:, list(pattern)].T, axis=1))))
    return largest


@functools.cache
def _signs(count: int) -> np.ndarray:
    """Returns all signs of `count` contributions, but for a common one, float64 `[2^(count − 1), count]`."""
    return np.array([(1.0, *rest)[:count] for rest in itertools.product((1.0, -1.0), repeat=max(count - 1, 0))])


def _norm(columns: np.ndarray) -> float:
    """Returns the norm of the sum of the columns with the best signs that single changes lead to."""
    equal = float(np.linalg.norm(np.sum(columns, axis=1)))
    if columns.shape[1] > _MOST_SIGNS:
        return equal
    gram = columns.T @ columns
    signs = np.sign(np.linalg.eigh(gram)[1][:, -1] + 1e-300)
    for _ in range(_SWEEPS):
        gains = -signs * (gram @ signs - np.diagonal(gram) * signs)
        best = int(np.argmax(gains))
        if gains[best] <= 0:
            break
        signs[best] = -signs[best]
    return max(equal, float(np.linalg.norm(columns @ signs)))


def _patterns(matrix: np.ndarray, participation: Participation) -> Iterator[Sequence[int]]:
    """Yields some patterns of a schema, whatever class it is of."""
    rounds, min_sep, most = len(matrix), participation.min_sep, participation.max_participations
    earliest = range(0, rounds, min_sep)[:most]
    squares = np.sum(np.square(matrix), axis=0)
    starts = np.argsort(squares)[::-1][:_STARTS].tolist()
    candidates: Iterable[Sequence[int]] = [[starts[0]], earliest, sorted(rounds - 1 - each for each in earliest)]
    if isinstance(participation, FixedEpoch):
        places = [range(place, rounds, min_sep)[:most] for place in range(min(min_sep, rounds))]
        totals = [float(np.sum(squares[place.start :: min_sep][:most])) for place in places]
        more = [places[index] for index in np.argsort(totals)[::-1][:_STARTS]]
    else:
        more = [_greedy(matrix, squares, start, min_sep, most) for start in starts]
    yield from (pattern for pattern in [*candidates, *more] if participation.allows(pattern))


def _greedy(matrix: np.ndarray, squares: np.ndarray, start: int, min_sep: int, most: int) -> list[int]:
    """Returns the pattern that takes, one after another, the round which adds the most."""
    pattern, total = [start], matrix[:, start].copy()
    free = np.ones(len(matrix), bool)
    free[max(0, start - min_sep + 1) : start + min_sep] = False
    while len(pattern) < most and np.any(free):
        products = matrix.T @ total
        place = int(np.argmax(np.where(free, squares + 2 * np.abs(products), -np.inf)))
        total += matrix[:, place] if products[place] >= 0 else -matrix[:, place]
        free[max(0, place - min_sep + 1) : place + min_sep] = False
        pattern.append(place)
    return sorted(pattern)
