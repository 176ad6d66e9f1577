"""The estimates a deployment is planned with, and cases in which they are wrong."""

import dataclasses
from typing import Any

import tff_mf
from tff_mf.base import validation
from tff_mf.base.errors import InputValueError
from tff_mf.planning import options as compared
from tff_mf.planning.options import Option, participations, schema, widest
from tff_mf.planning.setting import MechanismSetting

from ..output import progress
from ..runs import statements


@dataclasses.dataclass(frozen=True, kw_only=True)
class Deployment:
    """The estimates that a deployment is planned with.

    Attributes:
        population: Clients N that can take part.
        clients_per_round: Clients of a round.
        rounds: Number of rounds n.
        delta: δ.
        min_sep: b, as far apart as a population of N allows: ⌊N / clients_per_round⌋, unless given.
        max_participations: k, as many as fit, unless given.
        kind: `tff_mf.MinSep`, or `tff_mf.FixedEpoch` if clients come in the same place of every epoch of b rounds.
        restart_every: Rounds after which noise starts anew, or `None`.
        adjacency: "zero-out" or "replace-one".
        workload: What losses are for; `None` is the prefix sum.
        objective: The loss that mechanisms are compared by, "rms" or "max".

    Example:
        >>> Deployment(population=342_477, clients_per_round=1000, rounds=2052, delta=1e-6).participation
        MinSep(min_sep=342, max_participations=6)

    Raises:
        InputTypeError: If a field is of the wrong type.
        InputValueError: If a field is out of range, or there are too few clients for the min-sep.
    """

    population: int
    clients_per_round: int
    rounds: int
    delta: float
    min_sep: int | None = None
    max_participations: int | None = None
    kind: type[tff_mf.MinSep] | type[tff_mf.FixedEpoch] = tff_mf.MinSep
    restart_every: int | None = None
    adjacency: str = "zero-out"
    workload: tff_mf.Workload | None = None
    objective: str = "rms"

    def __post_init__(self) -> None:
        widest(self.population, clients_per_round=self.clients_per_round, rounds=self.rounds)
        validation.open_unit("delta", self.delta)
        most_apart = self.population // self.clients_per_round
        min_sep = most_apart if self.min_sep is None else validation.whole("min_sep", self.min_sep)
        if min_sep > most_apart:
            raise InputValueError(
                f"min_sep={min_sep} needs {min_sep * self.clients_per_round} clients, but population="
                f"{self.population}; at most min_sep={most_apart} fits."
            )
        object.__setattr__(self, "min_sep", min(min_sep, self.rounds))
        most = participations(self.rounds, self.resolved_min_sep)
        limit = most if self.max_participations is None else self.max_participations
        object.__setattr__(self, "max_participations", min(validation.whole("max_participations", limit), most))
        validation.one_of("objective", self.objective, ("rms", "max"))
        # Checks the remaining fields.
        _ = self.setting

    @property
    def resolved_min_sep(self) -> int:
        """The min-sep b, given or as large as the population allows."""
        assert self.min_sep is not None
        return self.min_sep

    @property
    def participation(self) -> tff_mf.Participation:
        """The participation schema that follows from the estimates."""
        assert self.max_participations is not None
        return schema(self.resolved_min_sep, self.max_participations, kind=self.kind)

    @property
    def setting(self) -> MechanismSetting:
        """The setting that mechanisms are compared in."""
        return MechanismSetting(
            rounds=self.rounds,
            participation=self.participation,
            restart_every=self.restart_every,
            adjacency=self.adjacency,
            workload=self.workload,
        )


def options(deployment: Deployment, **more: Any) -> list[Option]:
    """Returns every mechanism at the numbers of a deployment, the one with the least loss first.

    Args:
        deployment: The estimates.
        more: Other arguments of `tff_mf.planning.options.options`.
    """
    with progress.bar("plan", None) as advance:
        return compared.options(
            deployment.setting,
            delta=deployment.delta,
            objective=deployment.objective,
            progress=lambda name: advance(1, name),
            **more,
        )


def claim(deployment: Deployment, option: Option) -> statements.Claim:
    """Returns the content of the one-line statement of a mechanism at the numbers of a deployment.

    Raises:
        InputValueError: If the mechanism was not optimized.
    """
    if option.mechanism is None:
        raise InputValueError(f"option={option.name!r} was not optimized: {option.note}.")
    setting = deployment.setting
    sigma = option.figures["noise_multiplier"]
    found = tff_mf.Guarantee.of_gaussian(option.figures["sensitivity"], sigma).under(setting.adjacency)
    return statements.of_setting(setting, found, delta=deployment.delta, population=deployment.population)
