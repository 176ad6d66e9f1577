"""The rounds of a run: each is logged before it is computed, and saved before anything of it is released."""

import asyncio
import contextlib
import dataclasses
import logging
import pathlib
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow_federated as tff

import tff_mf
from tff_mf.numerics import digits

from ... import aggregators
from ...aggregators.checkpoints import States
from ...aggregators.resident.worker import cores
from .. import reports
from ..runs import ledger, server_loop
from ..runs.folders import ExecutionSettings
from ..runs.metrics import ROUND, SECONDS, read_metrics, restore_metrics
from ..runs.names import CHECKPOINTS, COHORTS, LEDGER, METRICS, TENSORBOARD
from ..runs.rules import Rules
from ..runs.settings import RunSettings
from ..runs.summary import Quality
from . import task
from .client_batches import read_ahead
from .learning_process import clip_norm_of
from .preparation import PreparedRun

OnRound = Callable[[int, Mapping[str, float]], None]
_LOG = logging.getLogger(__name__)
# Clients that run at the same time use cores better than threads that share an operation, and one thread gives the same
# numbers whatever the number of cores.
_THREADS = 1


@dataclasses.dataclass(frozen=True, kw_only=True)
class Progress:
    """The progress of a run after a round that is computed and not yet released.

    Attributes:
        state: State of the learning process.
        round_number: Rounds that are finished.
        history: Metrics of each evaluated round.
        row: What is released of the last round: its row of metrics.
        seconds: How long the rounds took.
    """

    state: Any
    round_number: int = 0
    history: Sequence[Mapping[str, float]] = ()
    row: Mapping[str, float] = dataclasses.field(default_factory=dict)
    seconds: float = 0.0


class Saved(States):
    """The checkpoints of one run, with its progress, after every so many rounds.

    A `Storage` of the loop.
    """

    def __init__(self, out: pathlib.Path, aggregator: aggregators.MFAggregationFactory, start: Any, *, every: int):
        self._folder, self._every = out / CHECKPOINTS, every
        super().__init__(aggregators.CheckpointManager(self._folder, aggregator=aggregator), start)

    @property
    def progress(self) -> Progress:
        """Where the run was when it was last saved, or its start if it was not."""
        kept = self.about(self.newest).get("progress", {})
        return Progress(state=self.state, round_number=self.newest, **kept)

    def is_due(self, round_number: int, *, released: bool) -> bool:
        """Returns whether a round has to be saved: every so many rounds, and always before a release.

        Formal guarantee: a round of which something is released has to be on disk before, so that it is never run
        again: run again, it would be released twice, with different noise on the same clients, which the guarantee
        does not cover.
        """
        return released or round_number % self._every == 0

    def save(self, round_number: int, state: Progress, about: Mapping[str, Any]) -> None:
        """Saves the run where it is, with facts about it."""
        kept = {"history": state.history, "row": state.row, "seconds": state.seconds}
        super().save(round_number, state.state, {**about, "progress": kept})

    def finish(self) -> None:
        """Deletes the checkpoints: the run is over, and with their keys the noise can be removed from its models."""
        self.remove_all()
        (self._folder / COHORTS).unlink(missing_ok=True)


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


def release(managers: Sequence[tff.program.ReleaseManager], progress: Progress) -> None:
    """Releases the metrics of a round that is on disk."""
    for manager in managers:
        asyncio.run(manager.release(progress.row, progress.round_number))


def _trained(
    prepared: PreparedRun, out: pathlib.Path, saved: Saved, *, rules: Rules, on_round: OnRound, run: str | None
) -> Progress:
    """Runs the rounds that are left and returns where the run is then.

    Formal guarantee: a client is in the log before its update is computed, unless cohorts are secret. Nothing of a
    round is released, nor does the ledger say so, before the round is on disk if it has to be (see `Saved.is_due`), and
    before all rounds before it are released.
    """
    settings, rounds, progress = prepared.settings, prepared.privacy.rounds, saved.progress
    started = time.perf_counter() - progress.seconds
    # It may have been stopped after its last round: then only what is written at the end is missing.
    with server_loop.open_loop(out, rules=rules, run=run, ended=True) as loop:
        loop.resume(saved, published=read_metrics(out / METRICS).last_evaluated)
        managers = _released_again(prepared, out, progress)
        if loop.has_ended:
            return progress
        # The plan is fixed, whatever is read ahead.
        ahead = (prepared.batches.of(prepared.present.cohort(t)) for t in range(progress.round_number, rounds))
        with contextlib.closing(read_ahead(ahead)) as cohorts:
            for number, batches in enumerate(cohorts, start=progress.round_number + 1):
                # All who were chosen: the guarantee does not count on who drops out. Of secret cohorts, nobody.
                cohort = () if settings.secret_cohorts else prepared.cohorts.cohort(number - 1)
                loop.begin(cohort, clip_norm=clip_norm_of(progress.state, settings))
                state = prepared.process.next(progress.state, batches).state
                # How long a round takes depends on how many clients it has.
                seconds = 0.0 if settings.secret_cohorts else time.perf_counter() - started
                metrics: Mapping[str, float] = {}
                if number % settings.evaluate_every == 0 or number == rounds:
                    metrics = prepared.measurement.evaluate(prepared.process.get_model_weights(state))
                progress = Progress(
                    state=state,
                    round_number=number,
                    history=[*progress.history, *([{ROUND: number, **metrics}] if metrics else [])],
                    row={SECONDS: seconds, **metrics},
                    seconds=seconds,
                )
                if saved.is_due(number, released=bool(metrics)):
                    loop.finish(progress)
                release(managers, progress)
                on_round(number, metrics)
        loop.record_end()
    return progress


def _released_again(prepared: PreparedRun, out: pathlib.Path, progress: Progress) -> list[tff.program.ReleaseManager]:
    """Releases what was saved and may not have been released: released again, a row is the same."""
    restore_metrics(out / METRICS, progress.round_number, progress.history)
    mode = tff.program.CSVSaveMode.WRITE
    managers = [tff.program.CSVFileReleaseManager(out / METRICS, save_mode=mode, key_fieldname="round")]
    if prepared.settings.tensorboard:
        managers.append(Board(out, prepared.settings, prepared.privacy))
    if progress.row:
        release(managers, progress)
    return managers


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainedRun:
    """A run after its last round.

    Attributes:
        saved: The checkpoints, which are not needed any more once the run's files are written.
        progress: The progress of its last round.
        quality: How good the final model is.
        weights: The final model's parameters.
    """

    saved: Saved
    progress: Progress
    quality: Quality
    weights: list[np.ndarray]


def concurrency(execution: ExecutionSettings) -> str:
    """Returns, as one line, what computes at the same time."""
    at_once = execution.clients_at_once or cores()
    return f"clients of a round at once: {at_once}, threads inside an operation: {execution.threads or _THREADS}"


def train(
    prepared: PreparedRun,
    out: pathlib.Path,
    *,
    rules: Rules,
    on_round: OnRound,
    execution: ExecutionSettings,
    run: str | None = None,
) -> TrainedRun:
    """Trains a run to its last round, from the last checkpoint again whenever a worker is lost."""
    restarts = execution.restarts
    while True:
        try:
            with aggregators.resident_context(
                clients_at_once=execution.clients_at_once, threads=execution.threads or _THREADS
            ):
                every = execution.checkpoint_every
                saved = Saved(out, prepared.aggregator, prepared.initial_state(), every=every)
                progress = _trained(prepared, out, saved, rules=rules, on_round=on_round, run=run)
                model = prepared.process.get_model_weights(progress.state)
                return TrainedRun(
                    saved=saved,
                    progress=progress,
                    quality=prepared.measurement.conclude(model, progress.history),
                    weights=[np.asarray(weight) for weight in model.trainable],
                )
        except aggregators.WorkerLostError as error:
            if not restarts:
                raise
            _LOG.warning("%s It does so now.", error)
            restarts -= 1
