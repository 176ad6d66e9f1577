"""Refusals of a training that no ε could be stated for, before it begins."""

import tff_mf
from tff_mf.base.errors import InputValueError

from ..sampling import ObservedParticipation
from .initial_model import InitialModel
from .statements import NO_EPSILON, REFUSED, TEST_ONLY, bound_to, line, of_plan, seen


def check_asked(*, noise_multiplier: float | None, insecure_seed: int | None) -> None:
    """Raises if there is no noise, or repeatable noise: this is known before a mechanism is optimized.

    A `noise_multiplier` of `None` is one that is calibrated.
    """
    if insecure_seed is not None:
        raise _untrained(f"insecure_seed={insecure_seed}", f"{TEST_ONLY}: leave it out")
    if noise_multiplier == 0:
        raise _untrained(f"noise_multiplier={noise_multiplier!r}", f"{NO_EPSILON}, there is no noise: give a σ above 0")


def check_statable(
    privacy: tff_mf.Plan,
    initial_model: InitialModel | None = None,
    *,
    population: int | None = None,
    observed: ObservedParticipation | None = None,
) -> None:
    """Raises if no ε can be stated for a run, whatever happens while it trains.

    Formal guarantee: it raises wherever the claim of the plan is refused.

    Args:
        privacy: The mechanism and its noise.
        initial_model: The model that training starts from.
        population: Number of clients that the report will compare δ with, once the data are known.
        observed: Participation in the cohorts that were planned, once they are.
    """
    check_asked(noise_multiplier=privacy.noise_multiplier, insecure_seed=privacy.insecure_seed)
    if initial_model and initial_model.same_data:
        raise _untrained(
            f"initial_model={initial_model.file!r}",
            f"{NO_EPSILON} of this run alone: it is the model of a run on the same data set, and the two "
            "guarantees compose; start from a model of other data",
        )
    if observed is not None and not observed.within(privacy.participation):
        assumed = bound_to(privacy.participation, privacy.restart_every)
        came = f"assumed {assumed}, {seen(observed.min_sep, observed.max_participations)}"
        text = f"{NO_EPSILON}: participation: clients took part more than was accounted for: {came}"
        most = privacy.participation.max_participations
        raise _untrained(f"max_participations={most}", f"{text}; allow what is drawn")
    claim = of_plan(privacy, population=population)
    if claim.state != REFUSED:
        return
    text = line(claim)
    if population is not None and privacy.delta >= 1 / population:
        raise _untrained(f"delta={privacy.delta!r}", f"{text}; take a delta below 1/{population}")
    raise _untrained(f"noise_multiplier={privacy.noise_multiplier!r}", f"{text.rstrip('.')}; give a larger σ")


def _untrained(field: str, text: str) -> InputValueError:
    return InputValueError(f"{field}: {text}, or train with without_epsilon.")
