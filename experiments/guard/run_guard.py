"""A guard for other pipelines: refuses cohorts that the participation schema forbids, and keeps the files of a run.

A pipeline with its own sampler and loop calls the guard before it hands out data. The result is a folder as `tff-mf
train` writes it, whose guarantee `tff-mf report` states and checks. See docs/own-pipeline.md.
"""

import pathlib
import threading
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from tff_mf.base import validation
from tff_mf.base.errors import InputValueError

from .. import reports as run_reports
from ..run_folder import run_log
from ..run_folder.ledger import ReportCounts
from ..run_folder.run_record import RunRecord
from . import _checks
from ._checks import refusal as refusal


class RefusedCohortError(InputValueError):
    """A cohort that the participation schema forbids. Nothing was written, and no data may be handed out.

    Attributes:
        clients: The clients that may not take part.
    """

    def __init__(self, message: str, clients: Sequence[str]) -> None:
        super().__init__(message)
        self.clients = list(clients)


class RunGuard:
    """Stands between a sampler and the data of its clients. Made by `open_guard`.

    Formal guarantee: before `begin` returns, the clients of the round are on disk, and none of them exceeds the schema,
    counting all rounds that were ever begun in the folder, also by processes that were killed. A released round is not
    begun again, and a round that was not begun is not released. With an aggregator, a round is released only with a
    state whose noise is the aggregator's and was drawn exactly once for each round up to it, by the state's own count.
    After a state with other noise, nothing is begun or released until the run went back to the last released round.
    Threads may share a guard.
    """

    def __init__(
        self,
        folder: pathlib.Path,
        record: RunRecord,
        log: run_log.RunLog,
        noise: str | None = None,
    ) -> None:
        self._folder, self._record, self._log, self._noise = folder, record, log, noise
        self._lock = threading.RLock()
        # Whether a state was seen whose noise was drawn for other rounds than were begun.
        self._mixed = False
        # Only the pipeline knows whether the rounds of an earlier process are in a checkpoint.
        self._last = None if log.past or log.last_released else 0
        # The first round that this process began.
        self._first = self.last_round + 1

    @property
    def folder(self) -> pathlib.Path:
        """The run's folder."""
        return self._folder

    @property
    def run(self) -> str:
        """Random identifier of the run: keep it in the checkpoints, for `goes_on_after`."""
        return self._log.run

    @property
    def knows_its_round(self) -> bool:
        """Whether the next round is known: a resumed run needs `goes_on_after` first."""
        return self._last is not None

    @property
    def next_round(self) -> int:
        """The next round, counted from 1.

        Raises:
            InputValueError: If the run is resumed, and `goes_on_after` was not called yet.
        """
        if self._last is None:
            raise InputValueError(
                f"out={str(self._folder)!r} holds a run that was stopped: call goes_on_after with the round of its "
                "newest checkpoint, or 0 if there is none."
            )
        return self._last + 1

    @property
    def last_round(self) -> int:
        """The round that was begun last, or after which the run was resumed; 0 before the first."""
        return self._last or 0

    def is_current(self, round_number: int) -> bool:
        """Returns whether this process began a round, or resumed after it and began none."""
        return round_number == self.last_round or self._first <= round_number <= self.last_round

    @property
    def knows_its_noise(self) -> bool:
        """Whether the guard was opened with the aggregator, and checks the noise of released states."""
        return self._noise is not None

    def goes_on_after(
        self, round_number: int, state: Any = None, *, run: str | None = None, reports: ReportCounts | None = None
    ) -> int:
        """Tells the guard after which round training is resumed, and returns the round.

        Args:
            round_number: Version of the newest checkpoint; 0 for a new start.
            state: The process's state in the checkpoint. Needed if the guard knows the aggregator.
            run: The `run` that was kept in the checkpoint, if it was.
            reports: Counts of the clients' reports in that round, if they were kept in the checkpoint.

        Raises:
            InputTypeError: If there is no state, although the guard knows the aggregator.
            InputValueError: If the checkpoint belongs to another run, a later round was released, so that rounds would
                be released twice, the round was never begun, or the state's noise belongs to another number of rounds.
        """
        number = validation.whole("round_number", round_number, at_least=0)
        _checks.check_run(run, self.run)
        with self._lock:
            _checks.check_drawn(state, self._noise, number, last_released=self._log.last_released)
            return self.goes_on_unseen(number, reports=reports)

    def goes_on_unseen(self, round_number: int, *, reports: ReportCounts | None = None) -> int:
        """Does what `goes_on_after` does without checking the state, which is checked when it is released.

        Raises:
            InputValueError: As `goes_on_after`, except for the state.
        """
        number = validation.whole("round_number", round_number, at_least=0)
        if number < self._log.last_released:
            raise InputValueError(
                f"round_number={number}: round {self._log.last_released} of the run in out={str(self._folder)!r} was "
                "released, and its newest checkpoint is older: restore the newest checkpoint, or end the run here."
            )
        if number > self._log.last_released:
            self._check_unmixed()
        # A round in a checkpoint can be seen, and the process may have been stopped before it recorded the release.
        self._log.released_until(number, reports=reports)
        self._last, self._first, self._mixed = number, number + 1, False
        return number

    def goes_back_to(self, round_number: int) -> None:
        """Goes back to a round that this process began, to begin it again; its results so far must be discarded.

        Raises:
            InputValueError: If the round was released or not begun, or is not far enough back.
        """
        number = validation.whole("round_number", round_number)
        with self._lock:
            if not self._log.last_released < number <= self.next_round:
                raise InputValueError(
                    f"round_number={number} must be at least {self._log.last_released + 1}, the first round not "
                    f"released yet, and at most {self.next_round}, the next round."
                )
            if number != self._log.last_released + 1:
                self._check_unmixed()
            self._last, self._first, self._mixed = number - 1, min(number, self._first), False

    def allowed(self, clients: Iterable[str]) -> list[str]:
        """Returns the clients that may take part in the next round."""
        return [client for client in clients if not self._refusal(client)]

    def begin(self, clients: Sequence[str], *, clip_norm: float | None = None) -> int:
        """Records the clients of the next round, and returns the round, counted from 1.

        Args:
            clients: Ids of all chosen clients, including those that may never report. May be empty.
            clip_norm: Clip norm of this round, if it adapts; `run.json`'s if not given.

        Raises:
            RefusedCohortError: If the schema forbids the round to a client.
            InputTypeError: If an id is not a string.
            InputValueError: If a client is listed twice, an id cannot be written, all rounds were begun, or the noise
                of a state was drawn for other rounds than were begun.
        """
        read = _checks.ids(clients)
        with self._lock:
            return self._begin(read, clip_norm)

    def _begin(self, clients: list[str], clip_norm: float | None) -> int:
        number = self.next_round
        self._check_unmixed()
        if number > self._record.rounds:
            raise InputValueError(f"round={number} is beyond the rounds={self._record.rounds} that were accounted for.")
        refused = {client: reason for client in clients if (reason := self._refusal(client))}
        if refused:
            client, reason = next(iter(refused.items()))
            raise RefusedCohortError(
                f"clients={len(clients)} of round {number}: {len(refused)} may not take part, for example "
                f"{client!r}, which {reason}. Draw from allowed(...).",
                list(refused),
            )
        self._log.begin(
            number,
            clients,
            divisor=self._record.divisor_or_default,
            clip_norm=self._record.clip_norm if clip_norm is None else validation.positive("clip_norm", clip_norm),
            restarts=self._record.restarts_in(number),
        )
        self._last = number
        return number

    def cohorts(self, cohorts: Iterable[Sequence[str]]) -> Iterator[tuple[int, list[str]]]:
        """Yields the round and the clients of each cohort, once it is recorded, up to the last round.

        Args:
            cohorts: Any iterable of cohorts, from the next round on; each is taken from it when its round begins.

        Raises:
            RefusedCohortError: If the schema forbids a cohort.
        """
        rounds = iter(cohorts)
        while self.next_round <= self._record.rounds:
            clients = next(rounds, None)
            if clients is None:
                return
            read = _checks.ids(clients)
            yield self.begin(read), read

    def released(self, round_number: int, state: Any = None, *, reports: ReportCounts | None = None) -> None:
        """Records that all rounds up to this one are released. Call it once the checkpoint is on disk, then release.

        It need not be called in every round.

        Args:
            round_number: The round, counted from 1; with a state, the round that was begun last.
            state: The process's state after the round. Needed if the guard knows the aggregator.
            reports: Counts of the clients' reports in the round, if they were counted.

        Raises:
            InputTypeError: If there is no state, although the guard knows the aggregator.
            InputValueError: If the round was not begun, by this process or before its checkpoint, or the noise of the
                state belongs to another number of rounds: some round was begun and never computed.
        """
        number = validation.whole("round_number", round_number)
        with self._lock:
            if state is not None and self.last_round != number:
                raise InputValueError(
                    f"round_number={number} must be the round that was begun last, {self.last_round}, with the state "
                    "after it. To begin a failed round again, call goes_back_to first."
                )
            self.check_state(number, state)
            self.released_unseen(number, reports=reports)

    def released_unseen(self, round_number: int, *, reports: ReportCounts | None = None) -> None:
        """Records what `released` does, for a round whose state was checked by `check_state`.

        Raises:
            InputValueError: If the round was not begun.
        """
        with self._lock:
            if round_number > self.last_round:
                raise InputValueError(
                    f"round_number={round_number} was never begun: the last one was {self.last_round}."
                )
            self._check_unmixed()
            self._log.released_until(round_number, reports=reports)

    def check_state(self, round_number: int, state: Any) -> None:
        """Raises unless the noise of a state was drawn exactly once for each round up to `round_number`.

        Raises:
            InputTypeError: If there is no state, although the guard knows the aggregator.
            InputValueError: If the state has no noise, or noise of another aggregator or of another number of rounds.
        """
        try:
            _checks.check_drawn(state, self._noise, round_number, last_released=self._log.last_released)
        except _checks.OtherRoundsError:
            self._mixed = True
            raise

    def end(self) -> dict[str, Any]:
        """Records that the run has ended, writes the final report, and returns it."""
        self._log.ended()
        return run_reports.write(self._folder, realised=True)

    def _check_unmixed(self) -> None:
        last = self._log.last_released
        if self._mixed:
            raise InputValueError(
                f"out={str(self._folder)!r}: the noise of a state was drawn for other rounds than were begun. Load the "
                f"state of the last released round, {last}, and call goes_back_to({last + 1}) first."
            )

    def _refusal(self, client: str) -> str:
        return refusal(self._record.schema, self._log.past.get(client, ()), self.next_round)
