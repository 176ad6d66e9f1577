"""The cohorts of a run, by the kind of sampling that its settings name."""

from collections.abc import Callable, Mapping, Sequence

import tff_mf
from tff_mf import validation

from ._balls_in_bins import plan_balls_in_bins
from ._epochs import plan_fixed_epochs, plan_shuffled_epochs
from ._min_sep import plan_cohorts
from ._min_sep_poisson import plan_min_sep_poisson
from ._plan import CohortPlan
from ._poisson import plan_cyclic_poisson, plan_poisson
from ._random_allocation import plan_random_allocation
from ._timer import plan_timer
from .settings import SAMPLING_KINDS, SamplingSettings

_PLANNERS: Mapping[str, Callable[..., CohortPlan]] = {
    "min_sep": plan_cohorts,
    "shuffled_epochs": plan_shuffled_epochs,
    "fixed_epochs": plan_fixed_epochs,
    "timer": plan_timer,
    "poisson": plan_poisson,
    "cyclic_poisson": plan_cyclic_poisson,
    "balls_in_bins": plan_balls_in_bins,
    "min_sep_poisson": plan_min_sep_poisson,
    "random_allocation": plan_random_allocation,
}


def planner_name(kind: str) -> str:
    """Returns the public name of the function that plans cohorts of a kind, for a report.

    Example:
        >>> planner_name("timer")
        'tff_mf.experiments.sampling.plan_timer'

    Raises:
        InputError: If there is no such kind.
    """
    return f"tff_mf.experiments.sampling.{_PLANNERS[validation.one_of('sampling', kind, SAMPLING_KINDS)].__name__}"


def plan(
    settings: SamplingSettings,
    *,
    client_ids: Sequence[str],
    clients_per_round: int,
    rounds: int,
    participation: tff_mf.Participation,
    seed: int,
) -> CohortPlan:
    """Returns the cohorts of a run; arguments and guarantee are as for the planner that `settings` names.

    Every kind but a timer keeps `participation`, or is refused; a timer may not, which the log then shows.

    Example:
        >>> made = plan(
        ...     SamplingSettings(kind="fixed_epochs"), client_ids=["a", "b"], clients_per_round=1, rounds=4,
        ...     participation=tff_mf.MinSep(min_sep=2, max_participations=2), seed=1)
        >>> made.observed().min_sep
        2

    Raises:
        InputTypeError: If an argument is of the wrong type.
        InputValueError: If the population cannot fill the cohorts.
    """
    kind = validation.one_of("sampling", settings.kind, SAMPLING_KINDS)
    clock = {"timer_hours": settings.timer_hours, "round_minutes": settings.round_minutes} if kind == "timer" else {}
    return _PLANNERS[kind](
        client_ids=client_ids,
        clients_per_round=clients_per_round,
        rounds=rounds,
        participation=participation,
        seed=seed,
        **clock,
    )
