"""Whether noise will drown what a run could learn, from its settings alone, before anything is trained.

The noise of the mechanism adds up in the model as its prefix sums: after n rounds it has a norm of about
RmsError·σ·ζ·√d / cohort, where n updates of norm ζ that all point the same way come to n·ζ. Their ratio depends neither
on the clip norm nor on the server's rate, which scale both. The rate and the momentum decide how much noise is then in
each parameter; a model with too much noise predicts nothing, whatever it has learned.

Where runs learn and where they do not was measured, on one data set: `benchmarks/signal_to_noise.py`. None of this is
privacy-critical: nothing private is read, and no guarantee depends on it.
"""

import dataclasses
import math
from typing import Any

import tff_mf
from tff_mf.base import validation
from tff_mf.numerics import digits
from tff_mf.planning.compare import Option

from ..runs import derived
from ..runs.settings import ADAPTIVE_OPTIMIZERS, RunSettings
from .deployment import Deployment

# Noise over signal: up to the first every run learned, with a rate that fits, and from the second on none.
LEARNS = 0.1
DROWNS = 1.0
# Standard deviation of the noise in a parameter: the papers' rates come to 0.04 to 0.31, and with 1.5 no run learned.
MOST_PER_PARAMETER = 0.5


@dataclasses.dataclass(frozen=True, kw_only=True)
class Signal:
    """Noise and signal of a run, and what would bring them together.

    Attributes:
        dimension: Number of model parameters d.
        noise_to_signal: Accumulated noise over the largest signal that all rounds can add up to.
        per_parameter: Standard deviation of the noise in a parameter at the end, at the server's rate and momentum;
            None if they are not known, or the server's optimizer is adaptive.
        cohort_needed: Cohort at which `noise_to_signal` is `LEARNS`, at the same noise multiplier.
        population_needed: Clients that this takes, at the same min-sep and participations.
        rate_needed: The server's rate at which `per_parameter` is `MOST_PER_PARAMETER`; None if it is not known.
    """

    dimension: int
    noise_to_signal: float
    per_parameter: float | None = None
    cohort_needed: int | None = None
    population_needed: int | None = None
    rate_needed: float | None = None

    @property
    def drowned(self) -> bool:
        """Whether no rate of the server can make a run learn."""
        return self.noise_to_signal > DROWNS

    @property
    def too_fast(self) -> bool:
        """Whether the server's rate puts more noise into the model than a run survived."""
        return self.per_parameter is not None and self.per_parameter > MOST_PER_PARAMETER

    @property
    def hopeless(self) -> bool:
        """Whether there is something to warn of."""
        return self.drowned or self.too_fast

    def as_dict(self) -> dict[str, Any]:
        """Returns the figures for JSON: what is unbounded is None."""
        figures = dataclasses.asdict(self)
        finite = {
            name: None if isinstance(each, float) and math.isinf(each) else each for name, each in figures.items()
        }
        return finite | {"hopeless": self.hopeless}


def of_run(privacy: tff_mf.Plan, settings: RunSettings) -> Signal:
    """Returns the estimate of a run: for the large cohort if a smaller one simulates it, and the first clip norm."""
    found = of_plan(privacy, settings.dimension)
    if settings.server_optimizer in ADAPTIVE_OPTIMIZERS:
        return found
    error = found.noise_to_signal * privacy.rounds / math.sqrt(found.dimension)
    rate = settings.chosen_rate(privacy)
    per_parameter = rate / (1 - settings.server_momentum) * settings.clip_norm * error
    too_fast = per_parameter > MOST_PER_PARAMETER
    return dataclasses.replace(
        found,
        per_parameter=per_parameter,
        rate_needed=rate * MOST_PER_PARAMETER / per_parameter if too_fast else None,
    )


def of_plan(privacy: tff_mf.Plan, dimension: int, *, rms_error: float | None = None) -> Signal:
    """Returns the estimate without the server's rate.

    Args:
        privacy: Mechanism, noise and cohort.
        dimension: Number of model parameters d.
        rms_error: RmsError of the mechanism, if it is known already.

    Example:
        >>> import tff_mf
        >>> plan = tff_mf.Plan(mechanism=tff_mf.Identity(), rounds=199, sampling=tff_mf.SingleParticipation(),
        ...                    noise_multiplier=1.0, delta=1e-6, clients_per_round=20, cohort=20)
        >>> found = of_plan(plan, 10**6)
        >>> f"{found.noise_to_signal:.2f} {found.drowned} {found.cohort_needed}"
        '2.51 True 503'
    """
    validation.whole("dimension", dimension)
    error = _error(privacy, rms_error)
    ratio = error * math.sqrt(dimension) / privacy.rounds
    found = Signal(dimension=dimension, noise_to_signal=ratio)
    if not found.drowned or math.isinf(ratio):
        return found
    cohort = math.ceil(privacy.cohort * ratio / LEARNS)
    schema = privacy.participation
    return dataclasses.replace(
        found,
        cohort_needed=cohort,
        population_needed=cohort * max(schema.min_sep, -(-privacy.rounds // schema.max_participations)),
    )


def largest_dimension(privacy: tff_mf.Plan, *, rms_error: float | None = None) -> int | None:
    """Returns the largest number of parameters that a run can learn with; None if there is no noise.

    Example:
        >>> import tff_mf
        >>> plan = tff_mf.Plan(mechanism=tff_mf.Identity(), rounds=199, sampling=tff_mf.SingleParticipation(),
        ...                    noise_multiplier=1.0, delta=1e-6, clients_per_round=20, cohort=20)
        >>> largest_dimension(plan)
        1584
    """
    error = _error(privacy, rms_error)
    return math.floor((LEARNS * privacy.rounds / error) ** 2) if error else None


def of_option(deployment: Deployment, option: Option, dimension: int | None) -> tuple[int | None, Signal | None]:
    """Returns the largest dimension that learns with a mechanism of `tff-mf plan`, `None` for any; and the estimate."""
    assert option.mechanism is not None
    privacy = tff_mf.Plan(
        mechanism=option.mechanism,
        rounds=deployment.setting.rounds,
        sampling=deployment.setting.participation,
        noise_multiplier=option.figures["noise_multiplier"],
        delta=deployment.delta,
        clients_per_round=deployment.clients_per_round,
        cohort=deployment.clients_per_round,
        restart_every=deployment.setting.restart_every if deployment.setting.is_restarted else None,
    )
    # The table has it already, times the sensitivity.
    rms_error = option.figures["rms_loss"] / option.figures["sensitivity"]
    largest = largest_dimension(privacy, rms_error=rms_error)
    return largest, None if dimension is None else of_plan(privacy, dimension, rms_error=rms_error)


def warning(found: Signal) -> str:
    """Returns the estimate in one line: the ratio, or that a run will not learn, and what would help.

    Example:
        >>> warning(Signal(dimension=500, noise_to_signal=0.05))
        'noise / signal = 0.050 with 500 parameters (runs learned up to 0.1, and none from 1 on)'
        >>> warning(Signal(dimension=500, noise_to_signal=24.0, cohort_needed=2426, population_needed=12130))[54:]
        'with 500 parameters (needs < 0.1); it takes a cohort of 2,426 (12,130 clients)'
    """
    ratio = f"noise / signal = {digits.nearest(found.noise_to_signal, 2)} with {found.dimension:,} parameters"
    if not found.hopeless:
        return f"{ratio} (runs learned up to {LEARNS}, and none from {DROWNS:g} on)"
    why = f"{ratio} (needs < {LEARNS})"
    if not found.drowned:
        why = f"noise in each parameter = {digits.nearest(found.per_parameter or 0, 2)} (at most {MOST_PER_PARAMETER})"
    said = [f"WARNING: this run will not learn: {why}"]
    if found.cohort_needed is not None:
        said.append(f"it takes a cohort of {found.cohort_needed:,} ({found.population_needed:,} clients)")
    if found.rate_needed is not None:
        rate = digits.downwards(found.rate_needed, 2)
        said.append(f"the learning rate is too high: --set server_learning_rate={rate} at most")
    return "; ".join(said)


def _error(privacy: tff_mf.Plan, rms_error: float | None) -> float:
    """Returns the accumulated noise of one parameter, relative to the clip norm."""
    if rms_error is not None:
        return rms_error * privacy.noise_multiplier / privacy.cohort
    return derived.rmse_of_plan(privacy)
