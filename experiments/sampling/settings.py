"""Every sampling by its word, with its parameters: the one table of commands, TOML files, `run.json` and reports."""

import inspect
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

import tff_mf
from tff_mf.accounting import SecretSampling
from tff_mf.base import validation
from tff_mf.base.errors import InputValueError

_SCHEMA = ("min_sep", "max_participations")
_KINDS: Mapping[str, type[tff_mf.Sampling]] = {
    "min-sep": tff_mf.MinSep,
    "single": tff_mf.SingleParticipation,
    "fixed-epochs": tff_mf.FixedEpoch,
    "poisson": tff_mf.Poisson,
    "cyclic-poisson": tff_mf.CyclicPoisson,
    "balls-in-bins": tff_mf.BallsInBins,
    "b-min-sep": tff_mf.BMinSep,
}
SAMPLINGS = tuple(_KINDS)
# Those that amplify where cohorts are secret.
SECRET = tuple(word for word, kind in _KINDS.items() if issubclass(kind, SecretSampling))
DEFAULT = "min-sep"


class SamplingSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """A sampling by its word, and its parameters, each called like the field of the sampling.

    Attributes:
        sampling: One of `SAMPLINGS`.
        min_sep: b.
        max_participations: k.
        groups: Number of groups of clients.

    Example:
        >>> chosen = SamplingSettings(sampling="cyclic-poisson", groups=4)
        >>> chosen.drawn_by(population=100, clients_per_round=5)
        CyclicPoisson(groups=4, population=100, clients_per_round=5)
        >>> chosen.schema(rounds=10)
        FixedEpoch(min_sep=4, max_participations=3)
    """

    sampling: str
    min_sep: int | None = None
    max_participations: int | None = None
    groups: int | None = None

    def __post_init__(self) -> None:
        given, taken = self.parameters, parameters_of(self.sampling)
        for name, value in given.items():
            if name not in taken:
                others = ", ".join(repr(word) for word in SAMPLINGS if name in parameters_of(word))
                raise InputValueError(
                    f"{name}={value!r} does not go with sampling={self.sampling!r}: leave it out, or take another "
                    f"sampling: {others}."
                )
        missing = [name for name in taken if name not in given]
        if missing:
            often = ": say how often a client may take part, or take sampling='single' for at most once"
            raise InputValueError(
                f"{' and '.join(missing)} missing, which sampling={self.sampling!r} needs"
                f"{often if {*_SCHEMA} == {*taken} else ''}."
            )
        # Checks the values.
        _ = self._of_few

    @classmethod
    def of(cls, sampling: tff_mf.Sampling) -> "SamplingSettings":
        """Returns the word and the parameters of a sampling.

        Example:
            >>> SamplingSettings.of(tff_mf.BallsInBins(groups=4, clients_per_round=5)).parameters
            {'groups': 4}
        """
        for word, kind in _KINDS.items():
            if type(sampling) is kind:
                return cls(sampling=word, **{name: getattr(sampling, name) for name in parameters_of(word)})
        raise InputValueError(f"sampling={sampling!r} has no word: take one of {', '.join(SAMPLINGS)}.")

    @property
    def parameters(self) -> dict[str, Any]:
        """The parameters that are given."""
        values = {name: getattr(self, name) for name in PARAMETERS}
        return {name: value for name, value in values.items() if value is not None}

    @property
    def sampler(self) -> str:
        """The public name of what draws the cohorts, for a report."""
        return f"tff_mf.{_KINDS[self.sampling].__name__}"

    @property
    def is_secret(self) -> bool:
        """Whether the sampling amplifies where cohorts are secret."""
        return self.sampling in SECRET

    def drawn_by(self, *, population: int | None, clients_per_round: float | None) -> tff_mf.Sampling:
        """Returns the sampling: the one object that draws the cohorts and is accounted for.

        Args:
            population: Number of clients; `None` if it is not known, which some samplings need not.
            clients_per_round: Size of a cohort, for some samplings on average; `None` likewise.
        """
        kind = _KINDS[self.sampling]
        make = kind.of_population if kind is tff_mf.BMinSep else kind
        values: dict[str, Any] = {"population": population, "clients_per_round": clients_per_round, **self.parameters}
        fields = inspect.signature(make).parameters
        missing = [name for name in fields if fields[name].default is inspect.Parameter.empty and values[name] is None]
        if missing:
            raise InputValueError(f"{' and '.join(missing)} missing, which sampling={self.sampling!r} needs.")
        return make(**{name: value for name, value in values.items() if name in fields})

    def schema(self, rounds: int) -> tff_mf.Participation:
        """Returns the schema that holds for whoever knows the cohorts.

        Args:
            rounds: Number of rounds n.
        """
        return self._of_few.schema(validation.whole("rounds", rounds))

    @property
    def _of_few(self) -> tff_mf.Sampling:
        """The sampling of one client a round, whose schema is the same."""
        return self.drawn_by(population=max(self.groups or 1, self.min_sep or 1), clients_per_round=1)


PARAMETERS = tuple(field.name for field in msgspec.structs.fields(SamplingSettings) if field.name != "sampling")


def parameters_of(sampling: str) -> Sequence[str]:
    """Returns the parameters that a sampling needs.

    Example:
        >>> parameters_of("cyclic-poisson")
        ['groups']
    """
    kind = _KINDS[validation.one_of("sampling", sampling, SAMPLINGS)]
    return [name for name in PARAMETERS if name in inspect.signature(kind).parameters]
