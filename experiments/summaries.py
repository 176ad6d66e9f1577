"""What a run's `summary.json` says of privacy: from its plan and its log alone, so that a check can say it again."""

from typing import Any

from . import amplified, sampling
from .privacy import PrivacyPlan

SUMMARY = "summary.json"


def privacy_claims(
    privacy: PrivacyPlan, observed: sampling.ObservedParticipation, in_secret: amplified.Amplified | None
) -> dict[str, Any]:
    """Returns the fields of a summary that state a guarantee, or what it follows from.

    Formal guarantee: no field holds an ε if participation was observed to exceed what was assumed.

    Args:
        privacy: The mechanism and its noise.
        observed: How often, and how far apart, clients took part.
        in_secret: What sampling would add, if cohorts were secret.
    """
    holds = observed.within(privacy.participation)
    claims = {
        **privacy.as_dict(),
        "observed_min_sep": observed.min_sep,
        "observed_max_participations": observed.max_participations,
        "participation_within_assumed": holds,
        "statement": privacy.statement(observed),
        "amplified_epsilon": in_secret and in_secret.epsilon,
        "amplified_statement": in_secret and in_secret.statement,
    }
    if not holds:
        claims["epsilon"] = claims["epsilon_as_run"] = claims["amplified_epsilon"] = None
    return claims
