"""Canaries, the adversary that tells them apart, and the bound on ε that this shows."""

import dataclasses
import itertools
import math
from collections.abc import Iterator

import numpy as np
from scipy import stats

import tff_mf

CONFIDENCE = 0.999
# Standard deviations by which the rates of a correct run may differ from their expectation.
_MARGIN = 6.0


@dataclasses.dataclass(frozen=True, kw_only=True)
class CanaryBound:
    """Lower bounds of ε and μ from an attack, which hold with `confidence`.

    Attributes:
        epsilon: Lower bound of ε for any mechanism.
        epsilon_gaussian: Lower bound of ε for a Gaussian release, from `mu`.
        true_positives: Share of the participating canaries that the attack recognized.
        false_positives: Share of the other canaries that the attack took for participating ones.
        at_most: The largest `epsilon_gaussian` that this number of canaries can show.
    """

    epsilon: float
    epsilon_gaussian: float
    mu: float
    confidence: float
    canaries: int
    true_positives: float
    false_positives: float
    at_most: float

    @property
    def shown(self) -> float:
        """The larger lower bound of ε of a Gaussian release."""
        return max(self.epsilon, self.epsilon_gaussian)


def canary_bound(
    scores_with: np.ndarray,
    scores_without: np.ndarray,
    *,
    threshold: float,
    delta: float,
    confidence: float = CONFIDENCE,
) -> CanaryBound:
    """Returns lower bounds of ε and μ from the scores of an attack.

    An attack that says "took part" above a threshold, with true positive rate t and false positive rate f, shows that
    ε ≥ log((t − δ) / f), and, if the release is μ-GDP, that μ ≥ Φ⁻¹(t) − Φ⁻¹(f). Rates are bounded by Clopper and
    Pearson, each with half of the error probability. The threshold must be fixed before the scores are known.

    Source: Nasr et al. (2023), "Tight auditing of differentially private machine learning", section 4.

    Example:
        >>> scores = np.linspace(-1, 1, 1001)
        >>> canary_bound(scores + 1, scores, threshold=0.5, delta=1e-6).mu < 2 * 0.6745
        True
    """
    return bound_of_rates(
        hits=int(np.sum(scores_with > threshold)),
        alarms=int(np.sum(scores_without > threshold)),
        count=len(scores_with),
        others=len(scores_without),
        delta=delta,
        confidence=confidence,
    )


def can_tell_half(claimed: tff_mf.Guarantee, *, count: int, delta: float) -> bool:
    """Returns whether canaries show more than the claimed ε if the noise is cut in half.

    Half of the noise is 2μ-GDP; the best attack then has true positive rate Φ(μ) and false positive rate 1 − Φ(μ). With
    few canaries, or a small ε, such rates prove no more than the claim, and a control below it means nothing.

    Example:
        >>> [can_tell_half(tff_mf.Guarantee(mu=mu), count=16384, delta=1e-6) for mu in (0.01, 0.5)]
        [False, True]
    """
    rate = float(stats.norm.cdf(claimed.mu))
    wrong = min(count, math.ceil(count * (1 - rate) + _MARGIN * math.sqrt(count * rate * (1 - rate))))
    bound = bound_of_rates(
        hits=count - wrong, alarms=wrong, count=count, others=count, delta=delta, confidence=CONFIDENCE
    )
    return bound.shown > claimed.epsilon(delta)


def bound_of_rates(*, hits: int, alarms: int, count: int, others: int, delta: float, confidence: float) -> CanaryBound:
    """Returns the bounds from the hits among `count` participating canaries and the alarms among `others`."""
    error = (1 - confidence) / 2
    low = float(stats.beta.ppf(error, hits, count - hits + 1)) if hits else 0.0
    high = float(stats.beta.ppf(1 - error, alarms + 1, others - alarms)) if alarms < others else 1.0
    mu = max(0.0, float(stats.norm.ppf(low) - stats.norm.ppf(high))) if low > 0 and high < 1 else 0.0
    best = float(stats.norm.ppf(error ** (1 / count)) - stats.norm.ppf(1 - error ** (1 / others)))
    return CanaryBound(
        epsilon=max(0.0, math.log((low - delta) / high)) if low > delta else 0.0,
        epsilon_gaussian=tff_mf.Guarantee(mu=mu).epsilon(delta),
        mu=mu,
        confidence=confidence,
        canaries=count + others,
        true_positives=hits / count,
        false_positives=alarms / others,
        at_most=tff_mf.Guarantee(mu=best).epsilon(delta),
    )


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
