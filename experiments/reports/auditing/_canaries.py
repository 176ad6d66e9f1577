"""A lower bound of ε from canaries: clients of which half take part, to be told apart by an attack."""

import dataclasses
import math

import numpy as np
from scipy import stats

import tff_mf

CONFIDENCE = 0.999
# Standard deviations by which the rates of a correct run may differ from their expectation.
_MARGIN = 6.0


@dataclasses.dataclass(frozen=True, kw_only=True)
class CanaryBound:
    """Lower bounds of ε and μ from an attack.

    Attributes:
        epsilon: Lower bound of ε for any mechanism.
        epsilon_gaussian: Lower bound of ε for a Gaussian release, from `mu`.
        mu: Lower bound of μ.
        confidence: Probability that the bounds hold.
        canaries: Number of canaries.
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

    Args:
        scores_with: Scores of canaries that took part.
        scores_without: Scores of as many canaries that did not.
        threshold: Above it, the attack says "took part".
        delta: δ.
        confidence: Confidence of the bounds.

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

    Args:
        claimed: The claimed guarantee.
        count: Number of canaries that take part, and of those that do not.
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
