"""A guard for pipelines that others wrote: refuses cohorts that the schema forbids, and keeps the files of a run.

A pipeline with a sampler and a loop of its own asks the guard before it hands out data. What comes of it is a folder as
`tff-mf train` writes it, of which `tff-mf report` states and checks the guarantee. See docs/own-pipeline.md.
"""

import contextlib
import pathlib
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import tff_mf
from tff_mf import _validate
from tff_mf.errors import InputTypeError, InputValueError

from . import _locks, ledger, reporting, reports, run_log
from .privacy import PrivacyPlan

if TYPE_CHECKING:
    from ..aggregators import MFAggregationFactory


class RefusedCohortError(InputValueError):
    """A cohort that the participation schema forbids. Nothing was written, and no data may be handed out.

    Attributes:
        clients: Those that may not take part.
    """

    def __init__(self, message: str, clients: Sequence[str]) -> None:
        super().__init__(message)
        self.clients = list(clients)


class RunGuard:
    """Stands between a sampler and the data of its clients. Made by `open_guard`.

    Formal guarantee: before `begin` returns, who takes part is on disk, and nobody of them exceeds the schema, by all
    that was ever begun in the folder: a process that was killed forgets nobody. A round that was released is not begun
    again, and one that was not begun is not released.
    """

    def __init__(self, folder: pathlib.Path, configuration: reports.Configuration, log: run_log.RunLog) -> None:
        self._folder, self._configuration, self._log = folder, configuration, log
        # What an earlier process began may or may not be in a checkpoint: only the pipeline knows.
        self._last = None if log.past or log.last_released else 0

    @property
    def folder(self) -> pathlib.Path:
        """The run's folder."""
        return self._folder

    @property
    def knows_its_round(self) -> bool:
        """Whether it is known which round is next: a run that was stopped needs `goes_on_after` first."""
        return self._last is not None

    @property
    def next_round(self) -> int:
        """The round, counted from 1, that is begun next.

        Raises:
            InputValueError: If the run goes on, and nobody said yet after which round.
        """
        if self._last is None:
            raise InputValueError(
                f"out={str(self._folder)!r} holds a run that was stopped: call goes_on_after with the round of its "
                "newest checkpoint, 0 if there is none."
            )
        return self._last + 1

    def goes_on_after(self, round_number: int) -> int:
        """Says of which round the state is that training goes on from, and returns it.

        Args:
            round_number: Version of the newest checkpoint; 0 for a start anew.

        Raises:
            InputValueError: If a later round was released, so that rounds would be released twice, or the round was
                never begun.
        """
        number = _validate.whole("round_number", round_number, at_least=0)
        if number < self._log.last_released:
            raise InputValueError(
                f"round_number={number}: round {self._log.last_released} of the run in out={str(self._folder)!r} was "
                "released, and its newest checkpoint is older: put the newest one back, or end the run here."
            )
        # What is in a checkpoint can be seen: the process may have been stopped before it said so.
        self._log.released_until(number)
        self._last = number
        return number

    def goes_back_to(self, round_number: int) -> None:
        """Says that a round which was begun in this process is begun again: what was computed of it is thrown away.

        Raises:
            InputValueError: If it was released, or not begun.
        """
        number = _validate.whole("round_number", round_number)
        if not self._log.last_released < number <= self.next_round:
            raise InputValueError(
                f"round_number={number}: {self._log.last_released} was released, and {self.next_round} is next."
            )
        self._last = number - 1

    def allowed(self, clients: Iterable[str]) -> list[str]:
        """Returns those of the clients that may take part in the next round."""
        return [client for client in clients if not self._refusal(client)]

    def begin(self, clients: Sequence[str], *, clip_norm: float | None = None) -> int:
        """Writes down who takes part in the next round, and returns the round, counted from 1.

        Args:
            clients: Ids of all clients that are chosen, also of those that may never report. May be empty.
            clip_norm: Clip norm of this round, if it adapts; that of the configuration if not given.

        Raises:
            RefusedCohortError: If the schema forbids it to one of them.
            InputTypeError: If an id is no string.
            InputValueError: If one of them is there twice, or all rounds were begun.
        """
        number, clients = self.next_round, _checked(clients)
        if number > self._configuration.rounds:
            raise InputValueError(
                f"round={number} is one more than the rounds={self._configuration.rounds} that were accounted for."
            )
        refused = {client: reason for client in clients if (reason := self._refusal(client))}
        if refused:
            client, reason = next(iter(refused.items()))
            raise RefusedCohortError(
                f"clients={len(clients)} of round {number}: {len(refused)} may not take part, {client!r} for one, "
                f"which {reason}. Draw from allowed(...).",
                list(refused),
            )
        configuration = self._configuration
        every = configuration.restart_every or 0
        self._log.begin(
            number,
            clients,
            divisor=configuration.divisor or configuration.clients_per_round,
            clip_norm=configuration.clip_norm if clip_norm is None else _validate.positive("clip_norm", clip_norm),
            restarts=bool(every) and number > 1 and (number - 1) % every == 0,
        )
        self._last = number
        return number

    def cohorts(self, cohorts: Iterable[Sequence[str]]) -> Iterator[tuple[int, list[str]]]:
        """Yields round and clients of each cohort, once it is written down, up to the last round.

        Args:
            cohorts: Any iterable of cohorts, from the next round on; it is asked for one when its round comes.

        Raises:
            RefusedCohortError: If the schema forbids a cohort.
        """
        rounds = iter(cohorts)
        while self.next_round <= self._configuration.rounds:
            clients = next(rounds, None)
            if clients is None:
                return
            yield self.begin(clients), list(clients)

    def released(self, round_number: int) -> None:
        """Writes down that all rounds to this one may be seen. Call it when the checkpoint is on disk, then release.

        Raises:
            InputValueError: If the round was not begun, by this process or before its checkpoint.
        """
        number = _validate.whole("round_number", round_number)
        if number > (self._last or 0):
            raise InputValueError(f"round_number={number} was never begun: the last was {self._last or 0}.")
        self._log.released_until(number)

    def end(self) -> dict[str, Any]:
        """Writes down that no round will follow, writes the report, and returns it."""
        self._log.ended()
        return reporting.realise(self._folder)

    def _refusal(self, client: str) -> str:
        return refusal(self._configuration.schema, self._log.past.get(client, ()), self.next_round)


@contextlib.contextmanager
def open_guard(
    folder: pathlib.Path | str,
    plan: PrivacyPlan,
    *,
    clip_norm: float,
    sampler: str,
    aggregator: "MFAggregationFactory | None" = None,
    **more: Any,
) -> Iterator[RunGuard]:
    """Yields the guard of a run: a new one, or one that was stopped and goes on.

    Writes what the guarantee follows from (`run.json`, `mechanism.safetensors`) and the planned report, before the
    first round. One process at a time can hold the folder.

    Args:
        folder: The run's folder; made if need be.
        plan: The mechanism, its noise and the participation schema: `plan_privacy(...)`.
        clip_norm: Clip norm ζ of the aggregator.
        sampler: What draws the cohorts, for the report.
        aggregator: The aggregator that the pipeline trains with: it is refused if its noise is another than the plan's.
            With `None` nothing checks that what is claimed is what runs.
        more: Further fields of `reports.Configuration`, such as `population`, `simulation` or `evaluation_columns`.

    Raises:
        InputTypeError: If an argument is of the wrong type.
        InputValueError: If the folder holds another run, one that has ended, or damaged files, another process is at
            work there, or the aggregator is not that of the plan.

    Example:
        >>> import tempfile
        >>> from tff_mf.experiments.privacy import plan_privacy
        >>> plan = plan_privacy(mechanism=tff_mf.Identity(), rounds=4, delta=1e-6, clients_per_round=2,
        ...                     participation=tff_mf.MinSep(min_sep=2, max_participations=2), noise_multiplier=8.0)
        >>> with tempfile.TemporaryDirectory() as out, open_guard(out, plan, clip_norm=1.0, sampler="by hand") as guard:
        ...     guard.begin(["ann", "bob"])
        ...     guard.allowed(["ann", "carol"])
        1
        ['carol']
    """
    _validate.instance("plan", plan, PrivacyPlan, "make one with plan_privacy")
    _validate.instance("sampler", sampler, str, "say in words what draws cohorts")
    folder = pathlib.Path(folder)
    if aggregator is not None:
        _check_same_noise(aggregator, plan, clip_norm, more.get("restart_every"))
    folder.mkdir(parents=True, exist_ok=True)
    with _locks.alone(folder):
        more.setdefault("versions", reporting.versions())
        configuration = reports.write_configuration(folder, plan, clip_norm=clip_norm, sampler=sampler, **more)
        if not (folder / ledger.LEDGER).exists():
            reports.write(folder, realised=False)
        with run_log.open_run_log(folder) as log:
            yield RunGuard(folder, configuration, log)


def refusal(schema: tff_mf.Participation, past: Sequence[int], round_number: int) -> str:
    """Returns why a client with past rounds may not take part in one more, or an empty text.

    Rounds of the past may lie ahead: those of attempts that were given up. A round itself does not count again.

    Args:
        schema: The participation schema.
        past: Rounds that the client was chosen for.
        round_number: The round.

    Example:
        >>> refusal(tff_mf.MinSep(min_sep=3, max_participations=2), [1], 3)
        'took part in round 1: min_sep=3'
        >>> refusal(tff_mf.FixedEpoch(min_sep=3, max_participations=3), [1], 8)
        'took part in round 1: with min_sep=3 it may come in rounds 4, 7 after it'
    """
    others = [number for number in past if number != round_number]
    if schema.allows([*others, round_number]):
        return ""
    if len(others) + 1 > schema.limit:
        return f"took part in {len(others)} rounds: max_participations={schema.limit}"
    near = [number for number in others if abs(round_number - number) < schema.separation]
    if near:
        return f"took part in round {near[0]}: min_sep={schema.separation}"
    if isinstance(schema, tff_mf.FixedEpoch):
        first, b = min(*others, round_number), schema.separation
        places = ", ".join(str(first + index * b) for index in range(1, schema.limit))
        return f"took part in round {others[0]}: with min_sep={b} it may come in rounds {places} after it"
    return f"took part in rounds {others}, which {schema!r} does not allow together with round {round_number}"


def _checked(clients: Sequence[str]) -> list[str]:
    if isinstance(clients, str) or not isinstance(clients, Sequence):
        raise InputTypeError(f"clients={clients!r:.80} must be a sequence of ids.")
    strange = next((client for client in clients if not isinstance(client, str)), None)
    if strange is not None:
        raise InputTypeError(f"clients has {strange!r}; every id must be a string.")
    return list(clients)


def _check_same_noise(
    aggregator: "MFAggregationFactory", plan: PrivacyPlan, clip_norm: float, restart_every: int | None
) -> None:
    """Raises unless an aggregator adds the noise that a plan accounts for."""
    from .. import aggregators

    _validate.instance(
        "aggregator", aggregator, aggregators.MFAggregationFactory, "pass what build_mf_aggregator returns"
    )
    # Where the cohort is what trains, the noise is the plan's own, whichever of two names was passed on.
    same = {plan.noise_multiplier_as_run} | (
        {plan.noise_multiplier} if plan.cohort == plan.clients_per_round else set()
    )
    of_plan = {
        aggregators.build_mf_aggregator(
            plan.mechanism,
            clip_norm=clip_norm,
            noise_multiplier=noise_multiplier,
            clients_per_round=plan.clients_per_round,
            restart_every=restart_every,
            insecure_seed=plan.insecure_seed,
        ).fingerprint
        for noise_multiplier in same
    }
    if aggregator.fingerprint not in of_plan:
        raise InputValueError(
            f"aggregator has another noise than the plan: build it with the plan's mechanism, clip_norm={clip_norm!r}, "
            f"noise_multiplier={plan.noise_multiplier_as_run!r}, restart_every={restart_every!r} and insecure_seed="
            f"{plan.insecure_seed!r}."
        )
