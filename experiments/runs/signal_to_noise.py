"""Whether noise will drown what a run could learn, and the server's rate that fits it, before anything is trained.

The noise of the mechanism adds up in the model as its prefix sums: after n rounds it has a norm of about
RmsError·σ·ζ·√d / cohort, where n updates of norm ζ that all point the same way come to n·ζ. Their ratio depends neither
on the clip norm nor on the server's rate, which scale both.

Where runs learn and where they do not was measured, on one data set: docs/experiments.md. None of this is
privacy-critical: nothing private is read, and no guarantee depends on it.
"""

import dataclasses
import math

import tff_mf
from tff_mf.base import validation
from tff_mf.numerics import digits
from tff_mf.sensitivities.losses import restart_errors

# Noise over signal: up to the first every run learned, with a rate that fits, and from the second on none.
LEARNS = 0.1
DROWNS = 1.0
# The line on which the banded MF paper found the best rates: log η = slope·log L_e + intercept, rounded to powers.
_SLOPE, _INTERCEPT, _RATES_APART = -0.95, -4.64, 1.7


def rmse_of_plan(privacy: tff_mf.Plan) -> float:
    """Returns L_e, the root mean squared error of the prefix sums of averaged updates, for clip norm 1.

    Equation 10 of the paper: error of the mechanism times σ / cohort, both of C as stored, for the cohort that a round
    stands for.

    Example:
        >>> plan = tff_mf.plan(mechanism=tff_mf.Identity(), rounds=3, sampling=tff_mf.SingleParticipation(),
        ...                    noise_multiplier=10.0, delta=1e-6, clients_per_round=10)
        >>> round(rmse_of_plan(plan), 6)
        1.414214
    """
    every = privacy.rounds if privacy.restart_every is None else privacy.restart_every
    error = restart_errors(privacy.mechanism, privacy.rounds, restart_every=every).rms
    return error * privacy.noise_multiplier / privacy.cohort


def proposed_rate(privacy: tff_mf.Plan) -> float:
    """Returns the rate of the grid 1.7^i next to the one that the banded MF paper found best for the noise of a plan.

    Both updates and noise scale with the clip norm, as long as most updates are clipped, so the rate is divided by it.
    """
    error = validation.positive("effective_rmse", rmse_of_plan(privacy))
    rate = math.exp(_SLOPE * math.log(error) + _INTERCEPT) / privacy.clip_norm
    return _RATES_APART ** round(math.log(rate, _RATES_APART))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Signal:
    """Noise and signal of a run, and what would bring them together.

    Attributes:
        dimension: Number of model parameters d.
        noise_to_signal: Accumulated noise over the largest signal that all rounds can add up to.
        cohort_needed: Cohort at which the ratio is `LEARNS`, at the same noise multiplier; `None` if no cohort is.
        population_needed: Clients that this takes, at the same min-sep and participations; likewise.
        hopeless: Whether no rate of the server can make the run learn.
    """

    dimension: int
    noise_to_signal: float
    cohort_needed: int | None
    population_needed: int | None
    hopeless: bool


def of_plan(plan: tff_mf.Plan, dimension: int) -> Signal:
    """Returns the estimate of a run: for the large cohort if a smaller one simulates it.

    Args:
        plan: Mechanism, noise and cohort.
        dimension: Number of model parameters d.

    Example:
        >>> import tff_mf
        >>> plan = tff_mf.Plan(mechanism=tff_mf.Identity(), rounds=199, sampling=tff_mf.SingleParticipation(),
        ...                    noise_multiplier=1.0, delta=1e-6, clients_per_round=20, cohort=20)
        >>> found = of_plan(plan, 10**6)
        >>> f"{found.noise_to_signal:.2f} {found.hopeless} {found.cohort_needed}"
        '2.51 True 503'
    """
    noise = rmse_of_plan(plan) * math.sqrt(validation.whole("dimension", dimension))
    ratio, schema = noise / plan.rounds, plan.participation
    cohort = math.ceil(plan.cohort * ratio / LEARNS) if math.isfinite(ratio) else None
    apart = max(schema.min_sep, -(-plan.rounds // schema.max_participations))
    return Signal(
        dimension=dimension,
        noise_to_signal=ratio,
        cohort_needed=cohort,
        population_needed=None if cohort is None else cohort * apart,
        hopeless=ratio > DROWNS,
    )


def warning(signal: Signal) -> str:
    """Returns the estimate in one line: the ratio, or that a run will not learn, and what would help.

    Example:
        >>> warning(Signal(dimension=500, noise_to_signal=0.05, cohort_needed=3, population_needed=9, hopeless=False))
        'noise / signal = 0.050 with 500 parameters (runs learned up to 0.1, and none from 1 on)'
    """
    ratio = f"noise / signal = {digits.nearest(signal.noise_to_signal, 2)} with {signal.dimension:,} parameters"
    if signal.noise_to_signal <= LEARNS:
        return f"{ratio} (runs learned up to {LEARNS}, and none from {DROWNS:g} on)"
    advice = "no cohort is large enough"
    if signal.cohort_needed is not None:
        advice = f"it takes a cohort of {signal.cohort_needed:,} ({signal.population_needed:,} clients)"
    if not signal.hopeless:
        return f"{ratio}: this run may learn little, and needs a server rate that fits; to be below {LEARNS}, {advice}"
    return f"WARNING: this run will not learn: {ratio} (needs < {LEARNS}); {advice}"
