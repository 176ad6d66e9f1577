"""Settings of client sampling, checked without TensorFlow."""

from collections.abc import Mapping

import msgspec

import tff_mf
from tff_mf.base import validation
from tff_mf.base.errors import InputValueError

_CLASSES: Mapping[str, type[tff_mf.Sampling]] = {
    "min_sep": tff_mf.MinSep,
    "spaced_epochs": tff_mf.SpacedEpochs,
    "fixed_epochs": tff_mf.FixedEpoch,
    "timer": tff_mf.Timer,
    "poisson": tff_mf.Poisson,
    "cyclic_poisson": tff_mf.CyclicPoisson,
    "balls_in_bins": tff_mf.BallsInBins,
    "b_min_sep": tff_mf.BMinSep,
    "random_allocation": tff_mf.RandomAllocation,
}
SAMPLING_KINDS = tuple(_CLASSES)

# Kinds whose clients keep one place in all epochs: the rounds of each are a pattern of `tff_mf.FixedEpoch`.
FIXED_EPOCH_KINDS = ("fixed_epochs", "cyclic_poisson", "balls_in_bins")
# Names of the schemas that a run's guarantee can be for.
SCHEMAS = ("min_sep", "fixed_epoch")


class SamplingSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How cohorts are drawn; `docs/experiments.md` says what each kind guarantees.

    Attributes:
        kind: One of `SAMPLING_KINDS`.
        timer_hours: For `timer`: hours that a device waits after taking part; None waits `min_sep` rounds.
        round_minutes: For `timer` with hours: minutes that a round takes on average.
    """

    kind: str = "min_sep"
    timer_hours: float | None = None
    round_minutes: float | None = None

    def __post_init__(self) -> None:
        validation.one_of("sampling", self.kind, SAMPLING_KINDS)
        clock = {"timer_hours": self.timer_hours, "round_minutes": self.round_minutes}
        given = {name: value for name, value in clock.items() if value is not None}
        if given and self.kind != "timer":
            raise InputValueError(f"{' and '.join(given)} go with sampling='timer', not with sampling={self.kind!r}.")
        if len(given) == 1:
            missing = next(name for name in clock if name not in given)
            raise InputValueError(f"{next(iter(given))} needs {missing} too: a timer of hours needs to know rounds.")
        for name, value in given.items():
            validation.positive(name, value)


def sampler_name(kind: str) -> str:
    """Returns the public name of the sampling of a kind, for a report.

    Example:
        >>> sampler_name("timer")
        'tff_mf.Timer'

    Raises:
        InputError: If there is no such kind.
    """
    return f"tff_mf.{_CLASSES[validation.one_of('sampling', kind, SAMPLING_KINDS)].__name__}"


def sampling_of(
    settings: SamplingSettings, *, min_sep: int, max_participations: int, population: int, clients_per_round: int
) -> tff_mf.Sampling:
    """Returns the sampling that settings name: the one object that draws the cohorts and is accounted for.

    Args:
        settings: The kind, and the clock of a timer.
        min_sep: b, which is also the number of groups that take turns.
        max_participations: k.
        population: Number of clients.
        clients_per_round: Size of a cohort, for some kinds on average.

    Example:
        >>> numbers = {"min_sep": 4, "max_participations": 3, "population": 100, "clients_per_round": 5}
        >>> sampling_of(SamplingSettings(kind="cyclic_poisson"), **numbers)
        CyclicPoisson(groups=4, population=100, clients_per_round=5)

    Raises:
        InputTypeError: If an argument is of the wrong type.
        InputValueError: If an argument is out of range, or the population cannot fill the cohorts.
    """
    kind, cohorts = settings.kind, {"population": population, "clients_per_round": clients_per_round}
    schema = {"min_sep": min_sep, "max_participations": max_participations}
    if kind == "min_sep":
        return tff_mf.MinSep(**schema)
    if kind == "spaced_epochs":
        return tff_mf.SpacedEpochs(**schema)
    if kind == "fixed_epochs":
        return tff_mf.FixedEpoch(**schema)
    if kind == "timer":
        if settings.timer_hours is None:
            return tff_mf.Timer(min_sep=min_sep)
        return tff_mf.Timer(hours=settings.timer_hours, round_minutes=settings.round_minutes)
    if kind == "cyclic_poisson":
        return tff_mf.CyclicPoisson(groups=min_sep, **cohorts)
    if kind == "balls_in_bins":
        return tff_mf.BallsInBins(groups=min_sep, clients_per_round=clients_per_round)
    if kind == "random_allocation":
        return tff_mf.RandomAllocation(participations=max_participations, clients_per_round=clients_per_round)
    if kind == "b_min_sep":
        return tff_mf.BMinSep.of_population(min_sep=min_sep, **cohorts)
    return tff_mf.Poisson(**cohorts)
