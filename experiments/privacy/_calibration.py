"""The noise of a run for a given ε, of its sums and of the counts of adaptive clipping together."""

import dataclasses
import math
import sys
from typing import TYPE_CHECKING

import tff_mf
from tff_mf.errors import InputValueError

from ..output.digits import rounded_up

if TYPE_CHECKING:
    from .plan import PrivacyPlan


def calibrated(plan: "PrivacyPlan", epsilon: float) -> float:
    """Returns the smallest σ, to rounding and never below, at which a plan has an ε of at most `epsilon`.

    The μ² of sums and counts add up: the counts take their part of the μ that `epsilon` allows.

    Formal guarantee: that of `PrivacyPlan.guarantee`, whose ε is computed for the result, and is at most `epsilon`.

    Args:
        plan: The plan; its own noise multiplier is not used.
        epsilon: ε that the whole run may reach.

    Raises:
        InputValueError: If the counts alone exceed `epsilon`, or no finite noise is enough.
    """
    sigma = tff_mf.calibrate_noise_multiplier(
        plan.mechanism,
        plan.rounds,
        plan.participation,
        epsilon=epsilon,
        delta=plan.delta,
        restart_every=plan.restart_every,
    )
    if plan.adaptive_count_stddev is None:
        return sigma
    secure = dataclasses.replace(plan, insecure_seed=None, noise_multiplier=sigma)
    allowed = dataclasses.replace(secure, adaptive_count_stddev=None).guarantee.mu
    counts = tff_mf.adaptive_clipping_guarantee(
        plan.rounds, plan.participation, count_stddev=plan.adaptive_count_stddev
    )
    if counts.mu >= allowed:
        raise InputValueError(
            f"adaptive_count_stddev={plan.adaptive_count_stddev!r} alone costs an ε of "
            f"{rounded_up(counts.epsilon(plan.delta))}, and epsilon={epsilon!r} is allowed: give the counts more "
            f"noise, above {rounded_up(math.sqrt(plan.participation.max_participations) / allowed)}."
        )
    sigma *= allowed / math.sqrt((allowed - counts.mu) * (allowed + counts.mu))
    step = 2.0**-52
    while sigma < math.inf and dataclasses.replace(secure, noise_multiplier=sigma).epsilon > epsilon:
        sigma, step = max(sigma, sys.float_info.min) * (1 + step), 2 * step
    if sigma == math.inf:
        raise InputValueError(f"epsilon={epsilon!r} at delta={plan.delta!r} needs more noise than float64 can hold.")
    return sigma
