"""What is known of a deployment before a run, and how it may turn out to be wrong."""

import dataclasses

import tff_mf
from tff_mf import _validate
from tff_mf.errors import InputValueError


@dataclasses.dataclass(frozen=True, kw_only=True)
class Deployment:
    """What is known before a run.

    Attributes:
        population: Clients N that can take part.
        clients_per_round: Clients of a round.
        rounds: Number of rounds n.
        delta: δ.
        min_sep: b, as far apart as a population of N allows: ⌊N / clients_per_round⌋, unless given.
        max_participations: k, as many as fit, unless given.

    Example:
        >>> Deployment(population=342_477, clients_per_round=1000, rounds=2052, delta=1e-6).participation
        MinSep(min_sep=342, max_participations=6)

    Raises:
        InputTypeError: If a field is of the wrong type.
        InputValueError: If a field is out of range, or the clients do not suffice for the separation.
    """

    population: int
    clients_per_round: int
    rounds: int
    delta: float
    min_sep: int | None = None
    max_participations: int | None = None

    def __post_init__(self) -> None:
        for name in ("population", "clients_per_round", "rounds"):
            _validate.whole(name, getattr(self, name))
        _validate.open_unit("delta", self.delta)
        widest = self.population // self.clients_per_round
        if widest < 1:
            raise InputValueError(
                f"clients_per_round={self.clients_per_round} is more than population={self.population}: take fewer."
            )
        min_sep = widest if self.min_sep is None else _validate.whole("min_sep", self.min_sep)
        if min_sep > widest:
            raise InputValueError(
                f"min_sep={min_sep} needs {min_sep * self.clients_per_round} clients, but population="
                f"{self.population}; at most min_sep={widest} fits."
            )
        object.__setattr__(self, "min_sep", min(min_sep, self.rounds))
        most = participations(self.rounds, self.separation)
        limit = most if self.max_participations is None else self.max_participations
        object.__setattr__(self, "max_participations", min(_validate.whole("max_participations", limit), most))

    @property
    def separation(self) -> int:
        """The separation b."""
        assert self.min_sep is not None
        return self.min_sep

    @property
    def participation(self) -> tff_mf.Participation:
        """The participation schema that the estimates come to."""
        assert self.max_participations is not None
        return schema(self.separation, self.max_participations)


def participations(rounds: int, min_sep: int) -> int:
    """Returns how often somebody can take part who does so whenever it is allowed."""
    return -(-rounds // min_sep)


def schema(min_sep: int, limit: int) -> tff_mf.Participation:
    """Returns the schema of so many participations so far apart."""
    if limit == 1:
        return tff_mf.SingleParticipation()
    return tff_mf.MinSep(min_sep=min_sep, max_participations=limit)


def cases(deployment: Deployment) -> dict[str, tuple[int, tff_mf.Participation]]:
    """Returns, for each way in which the estimates may be wrong, the rounds and the participation that come of it."""
    rounds, separation = deployment.rounds, deployment.separation
    longer = rounds + rounds // 2
    several = {
        "half_min_sep": (rounds, max(1, separation // 2)),
        "twice_min_sep": (rounds, min(2 * separation, rounds)),
        "half_as_many_rounds_again": (longer, separation),
    }
    return {name: (n, schema(b, participations(n, b))) for name, (n, b) in several.items()}
