"""The rounds of a run: each is logged before it is computed, and saved before anything of it is released."""

import asyncio
import contextlib
import dataclasses
import functools
import logging
import pathlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent import futures
from typing import Any

import numpy as np
import tensorflow_federated as tff

import tff_mf
from tff_mf.numerics import digits

from ... import aggregators
from ...aggregators.resident.workers import cores
from .. import reports
from ..runs import ledger, server_loop
from ..runs.folders import ExecutionSettings
from ..runs.metrics import ROUND, SECONDS, read_metrics
from ..runs.names import LEDGER, METRICS, TENSORBOARD
from ..runs.rules import Rules
from ..runs.settings import RunSettings
from . import checkpoints, task
from .checkpoints import Progress, Recovery
from .client_batches import Batch, read_ahead
from .learning_process import clip_norm_of
from .preparation import PreparedRun


class Board(tff.program.ReleaseManager):
    """Releases the rows of `metrics.csv`, each with noise, clipping and, where it was evaluated, ε so far.

    Formal guarantee: clip norm and noise are settings, and ε follows from who took part and from settings, as in the
    run's report. Nothing that is computed from clients' updates is released, such as how many were clipped.
    """

    def __init__(self, folder: pathlib.Path, settings: RunSettings, privacy: tff_mf.Plan) -> None:
        self._folder = folder
        self._manager = tff.program.TensorBoardReleaseManager(folder / TENSORBOARD)
        # The standard deviation of Z in the mean that the server's rate multiplies, for a clip norm of 1.
        self._stddev = privacy.noise_multiplier_as_run / privacy.clients_per_round
        self._fixed = None if settings.adaptive_clipping is not None else settings.clip_norm

    async def release(self, value: Mapping[str, float], key: int) -> None:
        """Releases the row `value` of the round `key`, which the ledger has as released."""
        evaluated = task.ACCURACY in value
        clip_norm = self._logged_clip_norm(key) if self._fixed is None else self._fixed
        noise = {"clip_norm": clip_norm, "noise_stddev_of_z_in_the_mean": self._stddev * clip_norm}
        await self._manager.release({**value, **noise, **(self._epsilon() if evaluated else {})}, key)

    def _logged_clip_norm(self, round_number: int) -> float:
        """Returns the clip norm of a round, which follows from noised counts, by the ledger."""
        begun = ledger.read_ledger(self._folder / LEDGER).begun
        return next(each.clip_norm for each in reversed(begun) if each.round == round_number)

    def _epsilon(self) -> dict[str, float]:
        claim = reports.claim_so_far(self._folder)
        if claim is None:
            return {}
        found = {"epsilon_so_far": claim.epsilon}
        if claim.cohort != claim.clients_per_round:
            found["epsilon_so_far_of_those_that_train"] = claim.epsilon_as_run
        return {name: _upwards(epsilon) for name, epsilon in found.items() if epsilon is not None}


def _upwards(epsilon: float) -> float:
    """Returns ε as a report prints it, rounded up once more to what TensorBoard keeps: float32."""
    shown = float(digits.rounded_up(epsilon))
    kept = np.float32(shown)
    return float(kept if kept >= shown else np.nextafter(kept, np.float32(np.inf)))


OnRound = Callable[[int, Mapping[str, float]], None]
Evaluate = Callable[[], Mapping[str, float]]
# Where the run is, the metrics of its model, and whether no round until there can be run again.
_Kept = tuple[Progress, Mapping[str, float], bool]


@dataclasses.dataclass(kw_only=True)
class Releases(contextlib.AbstractContextManager["Releases"]):
    """The rounds of a run after they are computed; the last one is released at the end of the block.

    If the block raises, an evaluation and a save that have begun are finished, and their round is not released.

    Formal guarantee: nothing of a round is released, nor does the ledger say so, before the round is on disk if it has
    to be (see `Recovery.is_due`), and before all rounds before it are released. At most one round is not yet evaluated
    and saved while the next one is computed; after an evaluation or a save has failed, nothing more is released.

    Attributes:
        saved: The checkpoints.
        loop: The run's loop.
        managers: Where metrics are released.
        on_round: Called after every release with the number of the round and its metrics.
        history: Metrics of each evaluated round that is released.
    """

    saved: Recovery
    loop: server_loop.ServerLoop
    managers: Sequence[tff.program.ReleaseManager]
    on_round: OnRound
    history: tuple[dict[str, float], ...]
    _thread: futures.Executor = dataclasses.field(default_factory=lambda: futures.ThreadPoolExecutor(1))
    _pending: futures.Future[_Kept] | None = None

    def __exit__(self, kind: object, *error: object) -> None:
        with self._thread:
            if kind is None:
                self.finish()

    def add(self, progress: Progress, evaluate: Evaluate | None = None) -> None:
        """Releases the round before, and this one unless it must be evaluated or saved first, which then begins.

        Args:
            progress: Where the run is; its row and history are added here.
            evaluate: Returns the metrics of the round's model, in a thread; `None` if it is not evaluated.

        Raises:
            Exception: What evaluating or saving the round before raised.
        """
        self.finish()
        # A state in the worker does not change: it belongs to this round, whatever is computed meanwhile.
        self._pending = self._thread.submit(self._kept, progress, evaluate)
        if evaluate is None and not self.saved.is_due(progress.round_number, released=False):
            self.finish()

    def _kept(self, progress: Progress, evaluate: Evaluate | None) -> _Kept:
        metrics = dict(evaluate()) if evaluate else {}
        evaluated = ({ROUND: progress.round_number, **metrics},) if metrics else ()
        row = {SECONDS: progress.seconds, **metrics}
        progress = dataclasses.replace(progress, row=row, history=(*self.history, *evaluated))
        due = self.saved.is_due(progress.round_number, released=bool(metrics))
        if due:
            self.loop.save(progress.round_number, progress)
        return progress, metrics, due or not self.saved.resumes

    def finish(self) -> None:
        """Releases the round that is being evaluated and saved, once it is on disk.

        Raises:
            Exception: What evaluating or saving it raised.
        """
        if self._pending is None:
            return
        pending, self._pending = self._pending, None
        progress, metrics, is_final = pending.result()
        if is_final:
            self.loop.released(progress.round_number)
        self.history = progress.history
        release(self.managers, progress)
        self.on_round(progress.round_number, metrics)


def release(managers: Sequence[tff.program.ReleaseManager], progress: Progress) -> None:
    """Releases the metrics of a round that is on disk."""
    for manager in managers:
        asyncio.run(manager.release(progress.row, progress.round_number))


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Rounds:
    """The rounds of a run in its folder."""

    prepared: PreparedRun
    out: pathlib.Path
    rules: Rules
    on_round: OnRound

    def train(self, saved: Recovery, progress: Progress) -> Progress:
        """Runs the rounds that are left and returns where the run is then.

        Formal guarantee: a client is in the log before its update is computed, unless cohorts are secret, and a round
        is on disk before anything of it is released; see `Releases`.
        """
        started = time.perf_counter() - progress.seconds
        # It may have been stopped after its last round: then only what is written at the end is missing.
        with server_loop.open_loop(self.out, rules=self.rules, run=saved.run, ended=True) as loop:
            loop.resume(saved, published=read_metrics(self.out / METRICS).last_evaluated)
            managers = self._released_again(progress)
            if loop.has_ended:
                return progress
            with (
                contextlib.closing(read_ahead(self._cohorts(progress.round_number + 1))) as cohorts,
                Releases(
                    saved=saved, loop=loop, managers=managers, on_round=self.on_round, history=progress.history
                ) as released,
            ):
                for batches in cohorts:
                    # All who were chosen: the guarantee does not count on who drops out. Of secret cohorts, nobody.
                    secret = self.prepared.settings.secret_cohorts
                    cohort = () if secret else self.prepared.cohorts.cohort(progress.round_number)
                    loop.begin(cohort, clip_norm=clip_norm_of(progress.state, self.prepared.settings))
                    progress = self._computed(progress, batches, started)
                    released.add(progress, self._evaluation(progress))
            loop.record_end()
        return dataclasses.replace(progress, history=released.history)

    def _cohorts(self, first_round: int) -> Iterator[Sequence[Sequence[Batch]]]:
        """Yields the data of the clients who report, round by round; the plan is fixed, whatever is read ahead."""
        for number in range(first_round, self._rounds + 1):
            yield self.prepared.batches.of(self.prepared.present.cohort(number - 1))

    @property
    def _rounds(self) -> int:
        return self.prepared.privacy.rounds

    def _computed(self, progress: Progress, batches: Sequence[Sequence[Batch]], started: float) -> Progress:
        """Returns where the run is after the next round, before its model is evaluated."""
        state = self.prepared.process.next(progress.state, batches).state
        # How long a round takes depends on how many clients it has.
        seconds = 0.0 if self.prepared.settings.secret_cohorts else time.perf_counter() - started
        return Progress(state=state, round_number=progress.round_number + 1, seconds=seconds)

    def _evaluation(self, progress: Progress) -> Evaluate | None:
        """Returns what evaluates the model of the last round; `None` if it is not to be evaluated."""
        number = progress.round_number
        if number % self.prepared.settings.evaluate_every and number != self._rounds:
            return None
        weights = self.prepared.process.get_model_weights(progress.state)
        return functools.partial(self.prepared.measurement.evaluate, weights)

    def _released_again(self, progress: Progress) -> list[tff.program.ReleaseManager]:
        """Releases what was saved and may not have been released: released again, a row is the same."""
        checkpoints.restore_metrics(self.out / METRICS, progress.round_number, progress.history)
        mode = tff.program.CSVSaveMode.WRITE
        managers = [tff.program.CSVFileReleaseManager(self.out / METRICS, save_mode=mode, key_fieldname="round")]
        if self.prepared.settings.tensorboard:
            managers.append(Board(self.out, self.prepared.settings, self.prepared.privacy))
        if progress.row:
            release(managers, progress)
        return managers


_LOG = logging.getLogger(__name__)
# Clients that run at the same time use cores better than threads that share an operation, and one thread gives the same
# numbers whatever the number of cores.
_THREADS = 1


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainedRun:
    """A run after its last round.

    Attributes:
        saved: The checkpoints, which are not needed any more once the run's files are written.
        history: Metrics of each evaluated round.
        measured: The fields of a summary that say how good the final model is.
        weights: The final model's parameters.
        seconds: How long the rounds took.
    """

    saved: Recovery
    history: list[dict[str, float]]
    measured: dict[str, Any]
    weights: list[np.ndarray]
    seconds: float


def concurrency(execution: ExecutionSettings) -> str:
    """Returns, as one line, what computes at the same time."""
    at_once = execution.clients_at_once or cores()
    inside = "" if execution.workers else f", threads inside an operation: {execution.threads or _THREADS}"
    return f"clients of a round at once in each worker: {at_once}{inside}"


def train(
    prepared: PreparedRun,
    out: pathlib.Path,
    *,
    rules: Rules,
    on_round: OnRound,
    execution: ExecutionSettings,
    run: str | None = None,
) -> TrainedRun:
    """Trains a run to its last round, from the last checkpoint again whenever a worker is lost.

    Args:
        prepared: The run.
        out: Its folder, with `run.json`.
        rules: The rules of its rounds.
        on_round: Called after every round with its number and metrics (empty if not evaluated).
        execution: Where it computes, when it saves checkpoints, and how often it resumes by itself.
        run: The identifier of the run, if it has one; otherwise it gets one when it begins.

    Raises:
        InputValueError: If there is no such run to resume, or its files are damaged.
        WorkerLostError: If a worker dies and no restarts are left.
    """
    workers, restarts, resume = execution.workers, execution.restarts, execution.resume
    while True:
        saved = Recovery(
            out,
            prepared.aggregator,
            prepared.description,
            every=execution.checkpoint_every,
            resume=resume,
            run=run,
        )
        try:
            threads = None if workers else execution.threads or _THREADS
            with aggregators.resident_context(
                workers=workers, clients_at_once=execution.clients_at_once, threads=threads
            ):
                every = _Rounds(prepared=prepared, out=out, rules=rules, on_round=on_round)
                progress = every.train(saved, saved.load(prepared.initial_state()))
                model = prepared.process.get_model_weights(progress.state)
                return TrainedRun(
                    saved=saved,
                    history=list(progress.history),
                    measured=prepared.measurement.conclude(model, progress.history),
                    weights=[np.asarray(weight) for weight in model.trainable],
                    seconds=progress.seconds,
                )
        except aggregators.WorkerLostError as error:
            workers = tuple(address for address in workers if address != error.address)
            if not restarts or (execution.workers and not workers):
                raise
            _LOG.warning("%s It does so now.", error)
            restarts, resume = restarts - 1, True
