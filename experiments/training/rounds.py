"""The rounds of a run: each is logged before it is computed, and saved before anything of it is released."""

import contextlib
import dataclasses
import functools
import pathlib
import time
from collections.abc import Iterator, Sequence

import tensorflow_federated as tff

from ..run_folder import ledger, run_log, run_record
from ..run_folder.names import LEDGER, METRICS, PARTICIPATION
from . import releases, resume, tensorboard
from .checkpoints import Progress, Recovery
from .client_batches import Batch
from .learning_process import clip_norm_of
from .preparation import PreparedRun
from .read_ahead import read_ahead



@dataclasses.dataclass(frozen=True, kw_only=True)
class RoundLoop:
    """The rounds of one run.

    Attributes:
        prepared: The run.
        out: Its folder, with `run.json`.
        on_round: Called after every round with its number and metrics (empty if not evaluated).
    """

    prepared: PreparedRun
    out: pathlib.Path
    on_round: releases.OnRound

    def train(self, saved: Recovery, progress: Progress) -> Progress:
        """Runs the rounds that are left and returns where the run is then.

        Formal guarantee: a client is in the log before its update is computed, and a round is on disk before anything
        of it is released; see `releases.Releases`.

        Args:
            saved: The checkpoints.
            progress: Where the run is.

        Raises:
            InputValueError: If the files of a run to resume do not allow that.
        """
        if not saved.fresh:
            logs = {"participation": self.out / PARTICIPATION, "metrics": self.out / METRICS}
            resume.check(self.out, progress.round_number, run=saved.run, **logs)
        if progress.round_number == self._rounds and ledger.read_ledger(self.out / LEDGER).ended:
            # Stopped after its last round: only what is written at the end is missing.
            self._released_again(progress)
            return progress
        started = time.perf_counter() - progress.seconds
        with (
            run_log.open_run_log(self.out, run=saved.run) as log,
            contextlib.closing(read_ahead(self._cohorts(progress.round_number + 1))) as cohorts,
        ):
            # The run may have been stopped between a checkpoint and the ledger's entry of it.
            log.released_until(progress.round_number)
            managers = self._released_again(progress)
            with releases.opened(saved, log, managers, self.on_round, progress.history) as released:
                for batches in cohorts:
                    self._begin(log, progress)
                    progress = self._computed(progress, batches, started)
                    released.add(progress, self._evaluation(progress))
            log.ended()
        return dataclasses.replace(progress, history=released.history)

    def _cohorts(self, first_round: int) -> Iterator[Sequence[Sequence[Batch]]]:
        """Yields the data of the clients who report, round by round; the plan is fixed, whatever is read ahead."""
        for number in range(first_round, self._rounds + 1):
            yield self.prepared.batches.of(self.prepared.present.cohort(number - 1))

    @property
    def _rounds(self) -> int:
        return self.prepared.privacy.rounds

    @functools.cached_property
    def _record(self) -> run_record.RunRecord:
        return run_record.read_record(self.out)

    def _begin(self, log: run_log.RunLog, progress: Progress) -> None:
        number = progress.round_number + 1
        log.begin(
            number,
            # All who were chosen: the guarantee does not count on who drops out.
            self.prepared.cohorts.cohort(number - 1),
            divisor=self.prepared.privacy.clients_per_round,
            clip_norm=clip_norm_of(progress.state, self.prepared.settings),
            restarts=self._record.restarts_in(number),
        )

    def _computed(self, progress: Progress, batches: Sequence[Sequence[Batch]], started: float) -> Progress:
        """Returns where the run is after the next round, before its model is evaluated."""
        state = self.prepared.process.next(progress.state, batches).state
        return Progress(state=state, round_number=progress.round_number + 1, seconds=time.perf_counter() - started)

    def _evaluation(self, progress: Progress) -> releases.Evaluate | None:
        """Returns what evaluates the model of the last round; `None` if it is not to be evaluated."""
        number = progress.round_number
        if number % self.prepared.settings.evaluate_every and number != self._rounds:
            return None
        weights = self.prepared.process.get_model_weights(progress.state)
        return functools.partial(self.prepared.measurement.evaluate, weights)

    def _released_again(self, progress: Progress) -> list[tff.program.ReleaseManager]:
        """Releases what was saved and may not have been released: released again, a row is the same."""
        resume.restore_metrics(self.out / METRICS, progress.round_number, progress.history)
        mode = tff.program.CSVSaveMode.WRITE
        managers = [tff.program.CSVFileReleaseManager(self.out / METRICS, save_mode=mode, key_fieldname="round")]
        if self.prepared.settings.tensorboard:
            managers.append(tensorboard.Board(self.out, self.prepared.settings, self.prepared.privacy))
        if progress.row:
            releases.release(managers, progress)
        return managers
