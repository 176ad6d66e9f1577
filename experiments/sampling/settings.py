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
_CLOCK = ("hours", "round_minutes")
_COHORTS = ("population", "clients_per_round")


class _Word(msgspec.Struct, frozen=True, kw_only=True):
    """What a word names: the class of a sampling, and of its fields those that must or may be given."""

    kind: type[tff_mf.Sampling]
    needs: tuple[str, ...] = ()
    takes: tuple[str, ...] = ()
    cohorts: tuple[str, ...] = ()


_WORDS: Mapping[str, _Word] = {
    "min-sep": _Word(kind=tff_mf.MinSep, needs=_SCHEMA),
    "single": _Word(kind=tff_mf.SingleParticipation),
    "fixed-epochs": _Word(kind=tff_mf.FixedEpoch, needs=_SCHEMA),
    "spaced-epochs": _Word(kind=tff_mf.SpacedEpochs, needs=_SCHEMA),
    # What a timer leads to is assumed, by the schema of min-sep, and the log of a run shows whether it was so.
    "timer": _Word(kind=tff_mf.Timer, needs=_SCHEMA, takes=_CLOCK),
    "poisson": _Word(kind=tff_mf.Poisson, cohorts=_COHORTS),
    "cyclic-poisson": _Word(kind=tff_mf.CyclicPoisson, needs=("groups",), cohorts=_COHORTS),
    "balls-in-bins": _Word(kind=tff_mf.BallsInBins, needs=("groups",)),
    "b-min-sep": _Word(kind=tff_mf.BMinSep, needs=("min_sep",), cohorts=_COHORTS),
}
SAMPLINGS = tuple(_WORDS)
# Those that amplify where cohorts are secret.
SECRET = tuple(word for word, each in _WORDS.items() if issubclass(each.kind, SecretSampling))
DEFAULT = "min-sep"


class SamplingSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """A sampling by its word, and its parameters, each called like the field of the sampling.

    Attributes:
        sampling: One of `SAMPLINGS`.
        min_sep: b.
        max_participations: k.
        groups: Number of groups of clients.
        hours: Hours that a device waits after taking part; `None` waits `min_sep` rounds.
        round_minutes: With hours: minutes that a round takes on average.

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
    hours: float | None = None
    round_minutes: float | None = None

    def __post_init__(self) -> None:
        given, word = self.parameters, _WORDS[validation.one_of("sampling", self.sampling, SAMPLINGS)]
        for name, value in given.items():
            if name not in (*word.needs, *word.takes):
                others = ", ".join(repr(each) for each in SAMPLINGS if name in parameters_of(each))
                raise InputValueError(
                    f"{name}={value!r} does not go with sampling={self.sampling!r}: leave it out, or take another "
                    f"sampling: {others}."
                )
        missing = [name for name in word.needs if name not in given]
        if "hours" in given and "round_minutes" not in given:
            missing.append("round_minutes")
        if "round_minutes" in given and "hours" not in given:
            missing.append("hours")
        if missing:
            often = ": say how often a client may take part, or take sampling='single' for at most once"
            raise InputValueError(
                f"{' and '.join(missing)} missing, which sampling={self.sampling!r} needs"
                f"{often if word.needs == _SCHEMA else ''}."
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
        for word, each in _WORDS.items():
            if type(sampling) is each.kind and each.kind is not tff_mf.Timer:
                values = {name: getattr(sampling, name) for name in (*each.needs, *each.takes)}
                return cls(sampling=word, **values)
        raise InputValueError(f"sampling={sampling!r} has no word: take one of {', '.join(SAMPLINGS)}.")

    @property
    def parameters(self) -> dict[str, Any]:
        """The parameters that are given."""
        values = {name: getattr(self, name) for name in PARAMETERS}
        return {name: value for name, value in values.items() if value is not None}

    @property
    def sampler(self) -> str:
        """The public name of what draws the cohorts, for a report."""
        return f"tff_mf.{_WORDS[self.sampling].kind.__name__}"

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
        word, cohorts = _WORDS[self.sampling], {"population": population, "clients_per_round": clients_per_round}
        missing = [name for name in word.cohorts if cohorts[name] is None]
        if missing:
            raise InputValueError(f"{' and '.join(missing)} missing, which sampling={self.sampling!r} needs.")
        values: dict[str, Any] = {**cohorts, **self.parameters}
        if word.kind is tff_mf.BMinSep:
            return tff_mf.BMinSep.of_population(**values)
        if "hours" in values:
            # They replace the rounds of the timer.
            del values["min_sep"]
        fields = inspect.signature(word.kind).parameters
        return word.kind(**{name: value for name, value in values.items() if name in fields})

    def schema(self, rounds: int) -> tff_mf.Participation:
        """Returns the schema that holds for whoever knows the cohorts; for a timer, the one that is assumed.

        Args:
            rounds: Number of rounds n.
        """
        return self._of_few.schema(validation.whole("rounds", rounds))

    @property
    def _of_few(self) -> tff_mf.Sampling:
        """The sampling of one client a round, whose schema is the same."""
        if self.sampling == "timer":
            self.drawn_by(population=1, clients_per_round=1)
            return tff_mf.MinSep(**{name: self.parameters[name] for name in _SCHEMA})
        return self.drawn_by(population=max(self.groups or 1, self.min_sep or 1), clients_per_round=1)


PARAMETERS = tuple(field.name for field in msgspec.structs.fields(SamplingSettings) if field.name != "sampling")


def parameters_of(sampling: str) -> Sequence[str]:
    """Returns the parameters that a sampling needs or takes.

    Example:
        >>> parameters_of("cyclic-poisson")
        ('groups',)
    """
    word = _WORDS[validation.one_of("sampling", sampling, SAMPLINGS)]
    return (*word.needs, *word.takes)
