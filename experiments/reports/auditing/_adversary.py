"""Search for the worst client: a lower bound of the sensitivity, to compare with the claimed one."""

import itertools
import math
from collections.abc import Iterator

import numpy as np

import tff_mf

# Up to this number of patterns, all are tried.
_MOST_PATTERNS = 20_000
_STARTS = 12
_SWEEPS = 50


def reached_sensitivity(
    encoder: np.ndarray, participation: tff_mf.Participation, *, seed: int = 0
) -> tuple[float, tuple[int, ...]]:
    """Returns the largest ‖Cu‖ found over the clients of a schema, and the rounds of that client.

    If there are few patterns, all are tried. Otherwise each round of a pattern is moved to where it adds most, given
    the others, until no round moves, from several starts. Contributions are unit vectors, turned one at a time to where
    they add most. The result is attained by a client; the sensitivity may be larger.

    Args:
        encoder: C, float64 `[rounds, rounds]`.
        participation: The schema.
        seed: Seed of the random starts.

    Example:
        >>> reached_sensitivity(np.eye(5), tff_mf.MinSep(min_sep=2, max_participations=3))[0] ** 2
        2.9999999999999996
    """
    gram = encoder.T @ encoder
    rounds = len(gram)
    if _count(rounds, participation) <= _MOST_PATTERNS:
        candidates: Iterator[tuple[int, ...]] = participation.patterns(rounds)
    else:
        candidates = _climbed(gram, participation, np.random.default_rng(seed))
    best, where = 0.0, ()
    for pattern in candidates:
        reached = _turned(gram[np.ix_(pattern, pattern)])
        if reached > best:
            best, where = reached, tuple(pattern)
    return math.sqrt(best), where


def _count(rounds: int, participation: tff_mf.Participation) -> int:
    """Returns an upper bound of the number of patterns."""
    return sum(
        math.comb(max(0, rounds - (size - 1) * (participation.min_sep - 1)), size)
        for size in range(participation.max_participations + 1)
    )


def _climbed(
    gram: np.ndarray, participation: tff_mf.Participation, generator: np.random.Generator
) -> Iterator[tuple[int, ...]]:
    rounds, b = len(gram), participation.min_sep
    size = min(participation.max_participations, -(-rounds // b))
    strength = np.abs(gram)
    steps = [b] if isinstance(participation, tff_mf.FixedEpoch) else [b, (rounds - 1) // max(1, size - 1)]
    for start in range(_STARTS):
        step = max(b, steps[start % len(steps)])
        slack = max(0, rounds - 1 - (size - 1) * step)
        # The earliest start, the latest, and random ones.
        offset = (0, slack)[start] if start < 2 else int(generator.integers(slack + 1))
        pattern = [offset + index * step for index in range(size)]
        if not isinstance(participation, tff_mf.FixedEpoch):
            _move(pattern, strength, b)
        yield tuple(sorted(pattern))


def _move(pattern: list[int], strength: np.ndarray, min_sep: int) -> None:
    for _ in range(_SWEEPS):
        before = list(pattern)
        for index in range(len(pattern)):
            others = [each for place, each in enumerate(pattern) if place != index]
            gain = np.diagonal(strength) + 2 * np.sum(strength[others], axis=0)
            gain = gain.copy()
            for each in others:
                gain[max(0, each - min_sep + 1) : each + min_sep] = -1.0
            pattern[index] = int(np.argmax(gain))
        if pattern == before:
            return


def _turned(gram: np.ndarray) -> float:
    """Returns the largest Σ X_st ⟨u_s, u_t⟩ found over unit vectors u."""
    size = len(gram)
    if size == 0:
        return 0.0
    if np.all(gram >= 0):
        return float(np.sum(gram))
    best = 0.0
    signs = itertools.islice(itertools.product((1.0, -1.0), repeat=size - 1), 64)
    for choice in signs:
        vectors = np.zeros((size, size))
        vectors[:, 0] = (1.0, *choice)
        vectors += 1e-3 * np.eye(size)
        for _ in range(_SWEEPS):
            for index in range(size):
                pull = gram[index] @ vectors - gram[index, index] * vectors[index]
                norm = np.linalg.norm(pull)
                vectors[index] = pull / norm if norm > 0 else vectors[index] / np.linalg.norm(vectors[index])
        best = max(best, float(np.sum(gram * (vectors @ vectors.T))))
    return best
