"""Cohorts: every sampling by its word, and who is in which round, planned before training and checked."""

import collections
import dataclasses
import functools
import hashlib
import inspect
import itertools
import json
import math
import pathlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec
import numpy as np

import tff_mf
from tff_mf.accounting import SecretSampling
from tff_mf.base import validation
from tff_mf.base.errors import InputTypeError, InputValueError
from tff_mf.problem.cohort_secret import CohortSecret
from tff_mf.problem.draws import NOBODY, SeededDraws

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


@dataclasses.dataclass(frozen=True, kw_only=True)
class ObservedParticipation:
    """How often, and how far apart, clients took part.

    Attributes:
        min_sep: Smallest difference r₂ − r₁ of two rounds that some client took part in; None if
            no client took part twice.
        max_participations: Largest number of rounds that some client took part in.
        common_step: Largest number that divides the difference of any two rounds of one client; None if no client took
            part twice, or if it is not known.
        span: Largest difference of two rounds of one client; None in the same cases.
    """

    min_sep: int | None
    max_participations: int
    common_step: int | None = dataclasses.field(default=None, compare=False, repr=False)
    span: int | None = dataclasses.field(default=None, compare=False, repr=False)

    @classmethod
    def of(cls, patterns: Iterable[Sequence[int]]) -> "ObservedParticipation":
        """Returns the participation of clients, given the rounds of each in their order.

        Example:
            >>> ObservedParticipation.of([[1, 3], [3]])
            ObservedParticipation(min_sep=2, max_participations=2)
        """
        patterns = [rounds for rounds in patterns if rounds]
        apart = {later - sooner for rounds in patterns for sooner, later in itertools.pairwise(rounds)}
        most = max(map(len, patterns), default=0)
        if not apart:
            return cls(min_sep=None, max_participations=most)
        span = max(rounds[-1] - rounds[0] for rounds in patterns)
        return cls(min_sep=min(apart), max_participations=most, common_step=math.gcd(*apart), span=span)


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class CohortPlan:
    """The cohort of every round, checked against the participation schema.

    Attributes:
        client_ids: The population, no id twice.
        participation: The schema that every client keeps.
        indices: int32 [rounds, clients_per_round], positions in `client_ids`, and -1 for a place of a cohort that
            nobody takes; read-only.

    Raises:
        InputValueError: If a client would take part in rounds that the schema does not allow.
    """

    client_ids: tuple[str, ...]
    participation: tff_mf.Participation
    indices: np.ndarray

    def __post_init__(self) -> None:
        object.__setattr__(self, "client_ids", _population(self.client_ids))
        indices = np.array(self.indices)
        indices = indices.astype(np.int32)
        indices.setflags(write=False)
        object.__setattr__(self, "indices", indices)
        for pattern in self._patterns():
            if not self.participation.allows(pattern):
                raise InputValueError(
                    f"indices have a client in rounds {', '.join(map(str, pattern))}, counted from 0, which "
                    f"{self.participation} does not allow; use plan_cohorts."
                )

    @property
    def rounds(self) -> int:
        """Number of rounds planned."""
        return self.indices.shape[0]

    @property
    def clients_per_round(self) -> int:
        """Size of the largest cohort."""
        return self.indices.shape[1]

    def cohort(self, t: int) -> tuple[str, ...]:
        """Returns the ids of the clients of round `t`, counted from 0."""
        t = validation.whole("round", t, at_least=0)
        if t >= self.rounds:
            raise InputValueError(f"round={t} is not planned: the plan has rounds={self.rounds}, counted from 0.")
        return tuple(self.client_ids[index] for index in self.indices[t] if index != NOBODY)

    def _patterns(self) -> set[tuple[int, ...]]:
        """Returns the rounds of the clients in order; of clients with the same rounds, once."""
        rounds: dict[int, list[int]] = collections.defaultdict(list)
        for t, cohort in enumerate(self.indices.tolist()):
            for client in cohort:
                rounds[client].append(t)
        rounds.pop(NOBODY, None)
        return set(map(tuple, rounds.values()))

    @functools.cached_property
    def digest(self) -> str:
        """A hash of the whole plan: equal for equal plans, in every process."""
        text = json.dumps([self.client_ids, repr(self.participation), self.indices.shape])
        return hashlib.sha256(text.encode() + self.indices.astype("<i4").tobytes()).hexdigest()


def plan_cohorts(
    *,
    client_ids: Sequence[str],
    rounds: int,
    sampling: tff_mf.Sampling,
    clients_per_round: int | None = None,
    seed: int | None = None,
    secret: CohortSecret | None = None,
) -> CohortPlan:
    """Returns the cohorts of a run, drawn by `cohorts` of its sampling.

    Formal guarantee: clients keep `sampling.schema(rounds)`. The amplified ε of the sampling holds on two conditions:
    cohorts follow from a `secret`, drawn for this run alone, and nobody who sees the released sums ever learns a
    cohort, nor the `digest` or the `clients_per_round` of the plan. With a `seed` the cohorts follow from it, as suits
    a simulation: an amplified ε is then not a statement about its clients.

    Args:
        client_ids: The population; the plan depends on its order.
        rounds: Number n of rounds.
        sampling: How cohorts are drawn, such as `tff_mf.MinSep(...)` or `tff_mf.BallsInBins(...)`.
        clients_per_round: Size of a cohort, for some samplings on average, where the sampling does not have it.
        seed: The same arguments give the same plan.
        secret: A secret from the randomness of the system, in place of a seed; a resumed run needs the same.

    Returns:
        The plan.

    Example:
        >>> plan = plan_cohorts(
        ...     client_ids=["a", "b", "c", "d"], clients_per_round=1, rounds=8,
        ...     sampling=tff_mf.MinSep(min_sep=3, max_participations=3), seed=1)
        >>> plan.cohort(0) == plan.cohort(1)
        False

    Raises:
        InputTypeError: If an argument is of the wrong type.
        InputValueError: If the population cannot fill the cohorts, or not exactly one of `seed` and `secret` is given.
    """
    clients = _population(client_ids)
    validation.instance("sampling", sampling, tff_mf.Sampling, "pass MinSep, FixedEpoch, BallsInBins or another")
    if secret is not None and seed is None:
        draws = secret.draws(clients, sampling)
    elif secret is None and seed is not None:
        draws = SeededDraws(seed)
    else:
        raise InputValueError("Give either seed=…, for a simulation, or secret=CohortSecret.drawn(), not both.")
    indices = sampling.cohorts(len(clients), rounds, clients_per_round=clients_per_round, draws=draws)
    return CohortPlan(client_ids=clients, participation=sampling.schema(rounds), indices=indices)


def secret_cohorts(path: pathlib.Path, *, run: str, begun: bool, **setting: Any) -> CohortPlan:
    """Returns the cohorts of a run by the secret in a file, or by a new one, which is saved there.

    Formal guarantee: once a round was begun, the cohorts are those that the run began with.

    Args:
        path: The file.
        run: The identifier of the run.
        begun: Whether a round of the run may have begun.
        setting: Arguments of `plan_cohorts` without `seed` and `secret`.
    """
    if path.is_file():
        secret = CohortSecret.load(path, run=run)
    elif begun:
        raise InputValueError(
            f"path={str(path)!r} is lost, from which the cohorts of the run follow: put it back, or start another run "
            "in another folder."
        )
    else:
        secret = CohortSecret.drawn(run=run)
    plan = plan_cohorts(secret=secret, **setting)
    cohorts = secret.keyed(plan.digest)
    if begun and secret.cohorts != cohorts:
        raise InputValueError(
            "clients are not those that the run began with, or are sampled otherwise: pass the same, as a client in "
            "another cohort would take part in rounds of both."
        )
    if not begun:
        # In place of one that is left of a stopped start.
        path.unlink(missing_ok=True)
        dataclasses.replace(secret, cohorts=cohorts).save(path)
    return plan


def _population(client_ids: Sequence[str]) -> tuple[str, ...]:
    """Returns the ids of a population, no id twice."""
    clients = checked_ids(client_ids, "client_ids")
    if not clients:
        raise InputValueError("client_ids=[] is an empty population; pass at least one client.")
    twice = [client for client, times in collections.Counter(clients).items() if times > 1]
    if twice:
        raise InputValueError(f"client_ids has {twice[0]!r} twice: list each client once.")
    return tuple(clients)


def checked_ids(clients: Iterable[str], name: str = "clients") -> list[str]:
    """Returns the ids of clients, read once: what draws them as it is read could differ the next time."""
    if isinstance(clients, str) or not isinstance(clients, Iterable):
        raise InputTypeError(f"{name}={clients!r:.80} must be ids.")
    read = list(clients)
    for client in read:
        if not isinstance(client, str):
            raise InputTypeError(f"{name} has {client!r}; every id must be a string.")
        try:
            client.encode()
        except UnicodeEncodeError as error:
            raise InputValueError(
                f"{name} has {client!r}, which cannot be encoded in UTF-8: {error.reason}. Give the client another id."
            ) from error
    # The text itself, and not what a subclass of `str` returns for it.
    return [str.__str__(client) for client in read]


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
