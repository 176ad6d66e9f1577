"""A guard for pipelines that others wrote: refuses cohorts that the schema forbids, and keeps the files of a run.

A pipeline with a sampler and a loop of its own asks the guard before it hands out data. What comes of it is a folder as
`tff-mf train` writes it, of which `tff-mf report` states and checks the guarantee. See docs/own-pipeline.md.
"""

import contextlib
import pathlib
import threading
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from tff_mf import _validate
from tff_mf.errors import InputValueError

from .. import reports
from ..output import locks
from ..privacy.plan import PrivacyPlan
from ..run_folder import ledger, run_log, versions
from . import _checks
from ._checks import refusal as refusal

if TYPE_CHECKING:
    from ...aggregators import MFAggregationFactory


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
    again, and one that was not begun is not released. With an aggregator, a round is released only with a state whose
    noise is the aggregator's and was drawn exactly once for each round up to it, by the state's own count; after a
    state whose was not, nothing is begun or released before the run went back behind the last round that was released.
    Threads may share a guard.
    """

    def __init__(
        self,
        folder: pathlib.Path,
        configuration: reports.Configuration,
        log: run_log.RunLog,
        noise: str | None = None,
    ) -> None:
        self._folder, self._configuration, self._log, self._noise = folder, configuration, log, noise
        self._lock = threading.RLock()
        # Whether a state was seen whose noise is of other rounds than were begun.
        self._mixed = False
        # What an earlier process began may or may not be in a checkpoint: only the pipeline knows.
        self._last = None if log.past or log.last_released else 0
        # From which round on rounds were begun by this process.
        self._first = self.last_round + 1

    @property
    def folder(self) -> pathlib.Path:
        """The run's folder."""
        return self._folder

    @property
    def run(self) -> str:
        """Which run this is, of all that were ever begun: keep it in the checkpoints, for `goes_on_after`."""
        return self._log.run

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

    @property
    def last_round(self) -> int:
        """The round that was begun last, or that training goes on after; 0 before the first."""
        return self._last or 0

    def is_current(self, round_number: int) -> bool:
        """Returns whether a round was begun by this process, or is the one that it goes on after and nothing was."""
        return round_number == self.last_round or self._first <= round_number <= self.last_round

    @property
    def knows_its_noise(self) -> bool:
        """Whether the guard was opened with the aggregator, and compares the noise of what is released with it."""
        return self._noise is not None

    def goes_on_after(self, round_number: int, state: Any = None, *, run: str | None = None) -> int:
        """Says of which round the state is that training goes on from, and returns it.

        Args:
            round_number: Version of the newest checkpoint; 0 for a start anew.
            state: The process's state that training goes on from. Needed if the guard knows the aggregator.
            run: The `run` that was kept in the checkpoint, if there is one.

        Raises:
            InputTypeError: If there is no state, and the guard knows the aggregator.
            InputValueError: If the checkpoint is of another run, a later round was released, so that rounds would be
                released twice, the round was never begun, or the noise of the state is of another number of rounds.
        """
        number = _validate.whole("round_number", round_number, at_least=0)
        _checks.check_run(run, self.run)
        with self._lock:
            _checks.check_drawn(state, self._noise, number, last_released=self._log.last_released)
            return self.goes_on_unseen(number)

    def goes_on_unseen(self, round_number: int) -> int:
        """Does what `goes_on_after` does without a look at the state: it is looked at when it is released.

        Raises:
            InputValueError: As `goes_on_after`, but for the state.
        """
        number = _validate.whole("round_number", round_number, at_least=0)
        if number < self._log.last_released:
            raise InputValueError(
                f"round_number={number}: round {self._log.last_released} of the run in out={str(self._folder)!r} was "
                "released, and its newest checkpoint is older: put the newest one back, or end the run here."
            )
        if number > self._log.last_released:
            self._check_unmixed()
        # What is in a checkpoint can be seen: the process may have been stopped before it said so.
        self._log.released_until(number)
        self._last, self._first, self._mixed = number, number + 1, False
        return number

    def goes_back_to(self, round_number: int) -> None:
        """Says that a round which was begun in this process is begun again: what was computed of it is thrown away.

        Raises:
            InputValueError: If it was released, or not begun, or it is not far enough back.
        """
        number = _validate.whole("round_number", round_number)
        with self._lock:
            if not self._log.last_released < number <= self.next_round:
                raise InputValueError(
                    f"round_number={number}: {self._log.last_released} was released, and {self.next_round} is next."
                )
            if number != self._log.last_released + 1:
                self._check_unmixed()
            self._last, self._first, self._mixed = number - 1, min(number, self._first), False

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
            InputValueError: If one of them is there twice or cannot be written down, all rounds were begun, or the
                noise of a state was of other rounds than were begun.
        """
        read = _checks.ids(clients)
        with self._lock:
            return self._begin(read, clip_norm)

    def _begin(self, clients: list[str], clip_norm: float | None) -> int:
        number = self.next_round
        self._check_unmixed()
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
        self._log.begin(
            number,
            clients,
            divisor=configuration.divisor or configuration.clients_per_round,
            clip_norm=configuration.clip_norm if clip_norm is None else _validate.positive("clip_norm", clip_norm),
            restarts=configuration.restarts_in(number),
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
            read = _checks.ids(clients)
            yield self.begin(read), read

    def released(self, round_number: int, state: Any = None) -> None:
        """Writes down that all rounds to this one may be seen. Call it when the checkpoint is on disk, then release.

        It need not be called in every round.

        Args:
            round_number: The round, counted from 1; with a state, the one that was begun last.
            state: The process's state after the round. Needed if the guard knows the aggregator.

        Raises:
            InputTypeError: If there is no state, and the guard knows the aggregator.
            InputValueError: If the round was not begun, by this process or before its checkpoint, or the noise of the
                state is of another number of rounds: some round was begun and never computed.
        """
        number = _validate.whole("round_number", round_number)
        with self._lock:
            if state is not None and self.last_round != number:
                raise InputValueError(
                    f"round_number={number} must be the round that was begun last, {self.last_round}, with the state "
                    "after it. A round that failed is begun again after goes_back_to."
                )
            self.check_state(number, state)
            self.released_unseen(number)

    def released_unseen(self, round_number: int) -> None:
        """Writes down what `released` does, of a round whose state was looked at: see `check_state`.

        Raises:
            InputValueError: If the round was not begun.
        """
        with self._lock:
            if round_number > self.last_round:
                raise InputValueError(f"round_number={round_number} was never begun: the last was {self.last_round}.")
            self._check_unmixed()
            self._log.released_until(round_number)

    def check_state(self, round_number: int, state: Any) -> None:
        """Raises unless the noise of a state was drawn once for each round up to one.

        Raises:
            InputTypeError: If there is no state, and the guard knows the aggregator.
            InputValueError: If the state has no noise, that of another aggregator, or of another number of rounds.
        """
        try:
            _checks.check_drawn(state, self._noise, round_number, last_released=self._log.last_released)
        except _checks.OtherRoundsError:
            self._mixed = True
            raise

    def end(self) -> dict[str, Any]:
        """Writes down that no round will follow, writes the report, and returns it."""
        self._log.ended()
        return reports.write(self._folder, realised=True)

    def _check_unmixed(self) -> None:
        last = self._log.last_released
        if self._mixed:
            raise InputValueError(
                f"out={str(self._folder)!r}: the noise of a state was of other rounds than were begun. Load the state "
                f"of round {last}, the last that was released, and call goes_back_to({last + 1}) first."
            )

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
            The state of each round that is released is compared with it. With `None` nothing checks that what is
            claimed is what runs.
        more: Fields of `reports.Configuration` that the plan does not determine, such as `population`,
            `restart_every`, `adaptive_count_stddev` or `evaluation_columns`: see `reports.write_configuration`.

    Raises:
        InputTypeError: If an argument is of the wrong type.
        InputValueError: If the folder holds another run, one that has ended, or damaged files, another process is at
            work there, or the aggregator is not that of the plan.

    Example:
        >>> import tempfile
        >>> import tff_mf
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
        _checks.check_aggregator(aggregator, plan, clip_norm, more)
    reports.check_fields(more)
    folder.mkdir(parents=True, exist_ok=True)
    with locks.alone(folder):
        _checks.check_folder(folder)
        more.setdefault("versions", versions.versions())
        configuration = reports.write_configuration(folder, plan, clip_norm=clip_norm, sampler=sampler, **more)
        if not (folder / ledger.LEDGER).exists():
            reports.write(folder, realised=False)
        with run_log.open_run_log(folder) as log:
            yield RunGuard(folder, configuration, log, None if aggregator is None else aggregator.fingerprint)
