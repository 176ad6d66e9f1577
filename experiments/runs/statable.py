"""Refusals of a training that no ε could be stated for, before it begins."""

import msgspec

import tff_mf
from tff_mf.base.errors import InputValueError

from ..sampling import ObservedParticipation
from .initial_model import InitialModel
from .statements import NO_EPSILON, TEST_ONLY, bound_of, of_plan, refusal
from .words import Reason


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

    Formal guarantee: it raises wherever `refusal` has a reason against the claim of the plan, open questions
    aside.

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
        seen = {"observed_min_sep": observed.min_sep, "observed_max_participations": observed.max_participations}
        bound = msgspec.structs.replace(bound_of(privacy), **seen)
        values = {"participation": msgspec.to_builtins(bound)}
        came = Reason(field="participation", code="came_too_often", values=values)
        text = refusal(of_plan(privacy, population=population, reasons=[came]))
        most = privacy.participation.max_participations
        raise _untrained(f"max_participations={most}", f"{text}; allow what is drawn")
    text = refusal(of_plan(privacy, population=population))
    if not text:
        return
    if population is not None and privacy.delta >= 1 / population:
        raise _untrained(f"delta={privacy.delta!r}", f"{text}; take a delta below 1/{population}")
    raise _untrained(f"noise_multiplier={privacy.noise_multiplier!r}", f"{text.rstrip('.')}; give a larger σ")


def _untrained(field: str, text: str) -> InputValueError:
    return InputValueError(f"{field}: {text}, or train with without_epsilon.")
