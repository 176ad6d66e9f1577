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
    """

    min_sep: int | None
    max_participations: int

    def within(self, participation: tff_mf.Participation) -> bool:
        """Returns whether a guarantee for `participation` covers what was observed.

        Formal guarantee: for a schema with further conditions, as `FixedEpoch` has one on the place in an epoch, the
        result is True only if no client took part twice.
        """
        if not isinstance(participation, _checks.COUNTED):
            return self.max_participations <= 1
        apart = self.min_sep is None or self.min_sep >= participation.min_sep
        return apart and self.max_participations <= participation.max_participations


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
        _checks.check_participation(self.participation)
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
                f"indices have min_sep={observed.min_sep} and max_participations={observed.max_participations}, "
                f"which {self.participation} does not allow; use plan_cohorts."
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
        return ObservedParticipation(
            min_sep=int(apart.min()) if apart.size else None, max_participations=int(np.bincount(who).max(initial=0))
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
