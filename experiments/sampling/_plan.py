"""The cohort of every round, planned before training and checked against a participation schema."""

import dataclasses
import functools
import hashlib
import json

import numpy as np

import tff_mf
from tff_mf import validation
from tff_mf.errors import InputValueError

from . import _checks

NOBODY = -1


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

    def within(self, participation: tff_mf.Participation) -> bool:
        """Returns whether a guarantee for `participation` covers what was observed.

        Formal guarantee: if the result is True, the rounds of every client are a pattern of the schema. For `MinSep`,
        `SingleParticipation` and, if `common_step` and `span` are known, `FixedEpoch`, it is True for all such rounds.
        For any other schema, it is True only if no client took part twice.

        Example:
            >>> schema = tff_mf.FixedEpoch(min_sep=4, max_participations=3)
            >>> seen = ObservedParticipation(min_sep=4, max_participations=2, common_step=4, span=8)
            >>> seen.within(schema), dataclasses.replace(seen, common_step=1).within(schema)
            (True, False)
        """
        if self.max_participations <= 1 and self.min_sep is None:
            return True
        apart = self.min_sep is None or self.min_sep >= participation.min_sep
        counted = apart and self.max_participations <= participation.max_participations
        if type(participation) is tff_mf.FixedEpoch:
            return counted and self._in_place(participation)
        return counted and type(participation) in _checks.COUNTED

    def _in_place(self, participation: tff_mf.FixedEpoch) -> bool:
        """Returns whether clients kept their place in an epoch, and came within the epochs of the schema."""
        if self.common_step is None or self.span is None:
            return False
        reach = (participation.max_participations - 1) * participation.min_sep
        return self.common_step % participation.min_sep == 0 and self.span <= reach


@dataclasses.dataclass(frozen=True, kw_only=True)
class CohortPlan:
    """The cohort of every round, checked against the participation schema.

    Samplers make it; one made by hand from other cohorts is checked in the same way.

    Attributes:
        client_ids: The population, no id twice.
        participation: The schema that every client keeps.
        indices: int32 [rounds, clients_per_round], positions in `client_ids`, and -1 for a place of a cohort that
            nobody takes; read-only.

    Raises:
        InputTypeError: If a field is of the wrong type.
        InputValueError: If `indices` has another shape, points outside the population, or breaks
            the schema.
    """

    client_ids: tuple[str, ...]
    participation: tff_mf.Participation
    indices: np.ndarray

    def __post_init__(self) -> None:
        object.__setattr__(self, "client_ids", _checks.population(self.client_ids))
        _checks.check_participation(self.participation, _checks.PLANNED)
        indices = np.array(self.indices)
        if indices.ndim != 2 or indices.size == 0 or not np.issubdtype(indices.dtype, np.integer):
            raise InputValueError(
                "indices must be whole numbers of shape [rounds, clients_per_round], both at least 1."
            )
        if indices.min() < NOBODY or indices.max() >= len(self.client_ids):
            raise InputValueError(
                f"indices go from {indices.min()} to {indices.max()}, but there are {len(self.client_ids)} client_ids."
            )
        indices = indices.astype(np.int32)
        indices.setflags(write=False)
        object.__setattr__(self, "indices", indices)
        observed = self.observed()
        if not observed.within(self.participation):
            raise InputValueError(
                f"indices have min_sep={observed.min_sep} and max_participations={observed.max_participations}"
                f"{_in_epochs(observed, self.participation)}, which {self.participation} does not allow; use "
                f"{_planner(self.participation)}."
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
        """Returns the ids of the clients of round `t`, counted from 0.

        Raises:
            InputValueError: If the plan has no round `t`.
        """
        t = validation.whole("round", t, at_least=0)
        if t >= self.rounds:
            raise InputValueError(f"round={t} is not planned: the plan has rounds={self.rounds}, counted from 0.")
        return tuple(self.client_ids[index] for index in self.indices[t] if index != NOBODY)

    def observed(self, rounds: int | None = None) -> ObservedParticipation:
        """Returns the participation in the first `rounds` cohorts as they are; None is all of them."""
        indices = self.indices if rounds is None else self.indices[: validation.whole("rounds", rounds)]
        when = np.repeat(np.arange(indices.shape[0]), indices.shape[1])
        who = indices.reshape(-1)
        when, who = when[who != NOBODY], who[who != NOBODY]
        order = np.lexsort((when, who))
        when, who = when[order], who[order]
        again = who[1:] == who[:-1]
        apart = (when[1:] - when[:-1])[again]
        most = int(np.bincount(who).max(initial=0))
        if not apart.size:
            return ObservedParticipation(min_sep=None, max_participations=most)
        first, last = np.append(True, ~again), np.append(~again, True)
        return ObservedParticipation(
            min_sep=int(apart.min()),
            max_participations=most,
            common_step=int(np.gcd.reduce(apart)),
            span=int((when[last] - when[first]).max()),
        )

    @functools.cached_property
    def digest(self) -> str:
        """A hash of the whole plan: equal for equal plans, in every process."""
        text = json.dumps([self.client_ids, repr(self.participation), self.indices.shape])
        return hashlib.sha256(text.encode() + self.indices.astype("<i4").tobytes()).hexdigest()

    def __eq__(self, other: object) -> bool:
        return self.digest == other.digest if isinstance(other, CohortPlan) else NotImplemented

    def __hash__(self) -> int:
        return hash(self.digest)


def _in_epochs(observed: ObservedParticipation, participation: tff_mf.Participation) -> str:
    if not isinstance(participation, tff_mf.FixedEpoch):
        return ""
    return f", with rounds of a client {observed.common_step} or a multiple of it apart and {observed.span} at most"


def _planner(participation: tff_mf.Participation) -> str:
    return "plan_fixed_epochs" if isinstance(participation, tff_mf.FixedEpoch) else "plan_cohorts"
