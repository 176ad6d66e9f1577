"""The cohort of every round, planned before training and checked against a participation schema."""

import collections
import dataclasses
import functools
import hashlib
import json
import pathlib
from collections.abc import Sequence
from typing import Any

import numpy as np

import tff_mf
from tff_mf.base import validation
from tff_mf.base.errors import InputTypeError, InputValueError
from tff_mf.problem.cohort_secret import CohortSecret
from tff_mf.problem.draws import NOBODY, SeededDraws

# Schemas of nothing but how often, and how far apart, a client takes part.
_COUNTED = (tff_mf.MinSep, tff_mf.SingleParticipation)
# Those that cohorts can be planned for, and checked in a log.
_PLANNED = (*_COUNTED, tff_mf.FixedEpoch)


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
        return counted and type(participation) in _COUNTED

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
        object.__setattr__(self, "client_ids", _population(self.client_ids))
        _check_participation(self.participation)
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
                "plan_cohorts."
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

    Formal guarantee: clients keep `sampling.schema(rounds)`, or, with a timer of hours, the schema that they turn out
    to keep. The amplified ε of the sampling holds on two conditions: cohorts follow from a `secret`, drawn for this
    run alone, and nobody who sees the released sums ever learns a cohort, nor the `digest` or the `clients_per_round`
    of the plan. With a `seed` the cohorts follow from it, as suits a simulation: an amplified ε is then not a statement
    about its clients.

    Args:
        client_ids: The population; the plan depends on its order.
        rounds: Number n of rounds.
        sampling: How cohorts are drawn, such as `tff_mf.MinSep(...)` or `tff_mf.BallsInBins(...)`.
        clients_per_round: Size of a cohort, for some samplings on average, where the sampling does not have it.
        seed: The same arguments give the same plan.
        secret: A secret from the randomness of the system, in place of a seed; a resumed run needs the same.

    Returns:
        The plan; `plan.observed()` may be better than its participation, never worse.

    Example:
        >>> plan = plan_cohorts(
        ...     client_ids=["a", "b", "c", "d"], clients_per_round=1, rounds=8,
        ...     sampling=tff_mf.MinSep(min_sep=3, max_participations=3), seed=1)
        >>> plan.observed().min_sep
        3

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
    plan = CohortPlan(client_ids=clients, participation=sampling.schema(rounds), indices=indices)
    if not isinstance(sampling, tff_mf.Timer) or sampling.hours is None:
        return plan
    # What came out of a clock is all that is known.
    observed = plan.observed()
    kept = tff_mf.MinSep(min_sep=observed.min_sep or rounds, max_participations=observed.max_participations)
    return dataclasses.replace(plan, participation=kept)


def secret_cohorts(
    path: pathlib.Path, *, run: str | None, begun: bool, **setting: Any
) -> tuple[CohortPlan, CohortSecret]:
    """Returns the cohorts of a run by the secret in a file, or by a new one, which the caller saves there.

    Formal guarantee: once a round was begun, the cohorts are those that the run began with.

    Args:
        path: The file.
        run: The identifier of the run; `None` if it has none yet.
        begun: Whether a round of the run may have begun.
        setting: Arguments of `plan_cohorts` without `seed` and `secret`.
    """
    if run is not None and path.is_file():
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
    return plan, dataclasses.replace(secret, cohorts=cohorts)


def keep_secret(path: pathlib.Path, secret: CohortSecret) -> None:
    """Saves the secret of a run of which no round was begun, in place of one that is left of a stopped start."""
    path.unlink(missing_ok=True)
    secret.save(path)


def without_dropped(plan: CohortPlan, dropout: float, *, seed: int) -> CohortPlan:
    """Returns the plan without the clients that drop out, each with probability `dropout`, independently.

    Train on the result and log `plan`. A client whose update did not arrive added nothing to the round's sum, and
    the guarantee would hold without counting it. But a server cannot always tell an update that was never sent from
    one that was lost later, and the device's timer has started either way. So it is counted: the observed
    participation is then never better than the true one. The noise, and the number that the sum is divided by,
    stay what they are.

    Args:
        plan: Who is in which cohort.
        dropout: Probability to drop out, at least 0 and below 1.
        seed: The same arguments give the same result.

    Example:
        >>> plan = CohortPlan(client_ids=("a", "b", "c"), indices=np.array([[0, 1], [2, 0]]),
        ...                   participation=tff_mf.MinSep(min_sep=1, max_participations=2))
        >>> [without_dropped(plan, 0.5, seed=2).cohort(t) for t in range(2)]
        [('a',), ('c', 'a')]
    """
    if not 0 <= validation.real("dropout", dropout) < 1:
        raise InputValueError(f"dropout={dropout!r} must lie in [0, 1).")
    if dropout == 0:
        return plan
    gone = SeededDraws(seed, stream=1).generator.random(plan.indices.shape) < dropout
    return dataclasses.replace(plan, indices=np.where(gone, NOBODY, plan.indices))


def _population(client_ids: Sequence[str]) -> tuple[str, ...]:
    """Returns the ids of a population, no id twice."""
    if isinstance(client_ids, str) or not isinstance(client_ids, Sequence):
        raise InputTypeError(f"client_ids={client_ids!r:.80} must be a sequence of strings.")
    strange = next((client_id for client_id in client_ids if not isinstance(client_id, str)), None)
    if strange is not None:
        raise InputTypeError(f"client_ids has {strange!r}; every id must be a string.")
    if not client_ids:
        raise InputValueError("client_ids=[] is an empty population; pass at least one client.")
    if len(set(client_ids)) < len(client_ids):
        twice = next(client_id for client_id, times in collections.Counter(client_ids).items() if times > 1)
        raise InputValueError(f"client_ids has {twice!r} twice: list each client once.")
    return tuple(client_ids)


def _check_participation(participation: tff_mf.Participation) -> None:
    """Raises unless the schema is of one of these classes, and of no class derived from them."""
    if type(participation) not in _PLANNED:
        names = " or ".join(each.__name__ for each in _PLANNED)
        raise InputTypeError(
            f"participation={participation!r} must be of the class {names}: these cohorts keep no other schema; pass "
            "tff_mf.MinSep(min_sep=..., max_participations=...)."
        )
