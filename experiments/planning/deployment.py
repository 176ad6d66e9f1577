"""The estimates a deployment is planned with, and cases in which they are wrong."""

import dataclasses

import tff_mf
from tff_mf.base import validation
from tff_mf.base.errors import InputValueError

from ..runs.mechanism_names import MechanismSetting
from ..sampling.settings import DEFAULT, SamplingSettings


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
        sampling: "min-sep", or "fixed-epochs" if clients come in the same place of every epoch of b rounds.
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
    sampling: str = DEFAULT
    restart_every: int | None = None
    adjacency: str = "zero-out"
    workload: tff_mf.Workload | None = None
    objective: str = "rms"

    def __post_init__(self) -> None:
        for name in ("population", "clients_per_round", "rounds"):
            validation.whole(name, getattr(self, name))
        validation.open_unit("delta", self.delta)
        widest = self.population // self.clients_per_round
        if widest < 1:
            raise InputValueError(
                f"clients_per_round={self.clients_per_round} is more than population={self.population}: take fewer."
            )
        min_sep = widest if self.min_sep is None else validation.whole("min_sep", self.min_sep)
        if min_sep > widest:
            raise InputValueError(
                f"min_sep={min_sep} needs {min_sep * self.clients_per_round} clients, but population="
                f"{self.population}; at most min_sep={widest} fits."
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
        return schema(self.resolved_min_sep, self.max_participations, sampling=self.sampling)

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


def participations(rounds: int, min_sep: int) -> int:
    """Returns how often a client takes part that does so whenever it may: ⌈n / b⌉."""
    return -(-rounds // min_sep)


def schema(min_sep: int, max_participations: int, *, sampling: str = DEFAULT) -> tff_mf.Participation:
    """Returns the schema of these two numbers."""
    if max_participations == 1:
        return tff_mf.SingleParticipation()
    return SamplingSettings(sampling=sampling, min_sep=min_sep, max_participations=max_participations).schema(rounds=1)


def cases(deployment: Deployment) -> dict[str, MechanismSetting]:
    """Returns the settings of cases in which an estimate is wrong, by case."""
    rounds, min_sep = deployment.rounds, deployment.resolved_min_sep
    longer = rounds + rounds // 2
    several = {
        "half_min_sep": (rounds, max(1, min_sep // 2)),
        "twice_min_sep": (rounds, min(2 * min_sep, rounds)),
        "half_as_many_rounds_again": (longer, min_sep),
    }
    return {
        name: dataclasses.replace(
            deployment.setting,
            rounds=n,
            participation=schema(b, participations(n, b), sampling=deployment.sampling),
        )
        for name, (n, b) in several.items()
    }
