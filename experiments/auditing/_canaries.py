"""A lower bound of ε from clients that are told apart: canaries, of which half take part."""

import dataclasses
import math

import numpy as np
from scipy import stats

import tff_mf

CONFIDENCE = 0.999
# Standard deviations by which rates of a sound audit may be off.
_MARGIN = 6.0


@dataclasses.dataclass(frozen=True, kw_only=True)
class CanaryBound:
    """What an attack shows.

    Attributes:
        epsilon: ε is at least this, with `confidence`, whatever the mechanism.
        epsilon_gaussian: The same, if the release is Gaussian, as it claims to be: from a lower bound of μ.
        mu: That lower bound of μ.
        confidence: Probability that both hold.
        canaries: Number of canaries.
        true_positives: Part of the canaries that took part and were said to.
        false_positives: Part of those that did not and were said to.
        at_most: The largest `epsilon_gaussian` that so many canaries can show.
    """

    epsilon: float
    epsilon_gaussian: float
    mu: float
    confidence: float
    canaries: int
    true_positives: float
    false_positives: float
    at_most: float


def canary_bound(
    scores_with: np.ndarray,
    scores_without: np.ndarray,
    *,
    threshold: float,
    delta: float,
    confidence: float = CONFIDENCE,
) -> CanaryBound:
    """Returns how private a release is at most, from the scores of an attack.

    An attack that says "took part" above a threshold, with true positive rate t and false positive rate f, shows that
    ε ≥ log((t − δ) / f), and, if the release is μ-GDP, that μ ≥ Φ⁻¹(t) − Φ⁻¹(f). Rates are bounded by Clopper and
    Pearson, each with half of the chance of error. The threshold must have been fixed before the scores were seen.

    Args:
        scores_with: Scores of canaries that took part.
        scores_without: Scores of those that did not, as many.
        threshold: Above it, the attack says "took part".
        delta: δ.
        confidence: Of the bounds.

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
    """Returns whether so many canaries show more than what is claimed, once the noise is cut in half.

    Half of the noise is 2μ-GDP, of which the best attack hits Φ(μ) and has alarms of 1 − Φ(μ). With few canaries,
    or a small ε, no more than the claim follows from such rates, and a control that stays below it means nothing.

    Args:
        claimed: What is claimed.
        count: Canaries that take part, and as many that do not.
        delta: δ.

    Example:
        >>> [can_tell_half(tff_mf.Guarantee(mu=mu), count=16384, delta=1e-6) for mu in (0.01, 0.5)]
        [False, True]
    """
    rate = float(stats.norm.cdf(claimed.mu))
    wrong = min(count, math.ceil(count * (1 - rate) + _MARGIN * math.sqrt(count * rate * (1 - rate))))
    bound = bound_of_rates(
        hits=count - wrong, alarms=wrong, count=count, others=count, delta=delta, confidence=CONFIDENCE
    )
    return max(bound.epsilon, bound.epsilon_gaussian) > claimed.epsilon(delta)


def bound_of_rates(*, hits: int, alarms: int, count: int, others: int, delta: float, confidence: float) -> CanaryBound:
    """Returns what so many hits of `count` canaries that took part, and alarms of `others` that did not, show."""
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
