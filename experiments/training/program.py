"""The training program: federated averaging or SGD, momentum on the server, and noise of a mechanism."""

import asyncio
import dataclasses
import hashlib
import json
import logging
import pathlib
import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import safetensors.numpy
import tensorflow as tf
import tensorflow_federated as tff

import tff_mf

from ... import aggregators
from .. import reports, sampling
from ..configuration.settings import ExecutionSettings, TrainingSettings
from ..datasets import sqlite
from ..output import files, locks
from ..privacy import amplification, plan
from ..privacy import summary as privacy_summary
from ..privacy.plan import PrivacyPlan
from ..run_folder import ledger, participation_log, run_log
from ..run_folder.names import LEDGER, METRICS, MODEL, PARTICIPATION, SUMMARY, VOCABULARY
from . import checkpoints, planned_report, task, tensorboard
from . import resume as resuming
from .learning_process import build_process, build_task

_LOG = logging.getLogger(__name__)

_ON_THIS_MACHINE = ExecutionSettings()

OnRound = Callable[[int, Mapping[str, float]], None]


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainingResult:
    """What a finished run was, as written to `summary.json`.

    Attributes:
        summary: Metrics of the last round, the privacy plan's numbers and the observed participation.
        statement: The guarantee in one line.
        history: Metrics of each evaluated round.
        holds: Whether the observed participation is within the assumed one.
        weights: The trained model's parameters.
    """

    summary: Mapping[str, Any]
    statement: str
    history: list[dict[str, float]]
    holds: bool
    weights: list[np.ndarray]


def run(
    settings: TrainingSettings,
    privacy: PrivacyPlan,
    *,
    data: pathlib.Path,
    out: pathlib.Path,
    on_round: OnRound = lambda round_number, metrics: None,
    execution: ExecutionSettings = _ON_THIS_MACHINE,
) -> TrainingResult:
    """Trains, and writes metrics, participation and summary to the folder `out`.

    Files: `metrics.csv` (a row a round), `participation.csv` (round, attempt and client, written before the
    round's model is used; clients that drop out are in it too), `model.safetensors` (the trained model) and
    `vocabulary.json`, `summary.json`, and `tensorboard/` if asked for. The guarantee covers the models of all rounds;
    it does not cover the evaluation metrics, which are computed without noise on test and validation clients, nor the
    vocabulary, nor the choice of settings.

    Args:
        settings: Everything but privacy.
        privacy: The mechanism and its noise.
        data: File in StackOverflow's format.
        out: An existing folder.
        on_round: Called after every round with its number and metrics (empty if not evaluated).
        execution: Where it computes, checkpoints, and whether it goes on with a run that was stopped.

    Raises:
        InputValueError: If the training clients cannot fill the cohorts, there is no such run to resume or its files
            are damaged, or another process is at work in the folder.
        WorkerLostError: If the worker with the server's values dies and no restarts are left.
    """
    with locks.alone(out):
        return _run(settings, privacy, data=data, out=out, on_round=on_round, execution=execution)


def _run(
    settings: TrainingSettings,
    privacy: PrivacyPlan,
    *,
    data: pathlib.Path,
    out: pathlib.Path,
    on_round: OnRound,
    execution: ExecutionSettings,
) -> TrainingResult:
    splits = sqlite.load(data)
    cohorts = sampling.plan(
        settings.sampling,
        client_ids=splits.train.client_ids,
        clients_per_round=privacy.clients_per_round,
        rounds=privacy.rounds,
        participation=privacy.participation,
        seed=settings.seed,
    )
    vocabulary = list(sqlite.load_word_counts(data, settings.model.vocab_size))
    language_task = build_task(settings, vocabulary)
    in_secret = amplification.amplified(privacy, settings.sampling, len(splits.train.client_ids))
    present = sampling.without_dropped(cohorts, settings.dropout, seed=settings.seed)
    source = sampling.MinSepDataSource(splits.train, present, preprocess_fn=language_task.preprocess_train)
    evaluate = language_task.build_evaluation(_sentences(splits.test, settings.evaluation_examples))
    process, mean = build_process(settings, privacy, language_task)
    program = _Program(
        process=process,
        cohorts=cohorts,
        source=source,
        evaluate=evaluate,
        settings=settings,
        privacy=privacy,
        out=out,
        on_round=on_round,
    )
    validate = language_task.build_evaluation(_sentences(splits.validation, settings.evaluation_examples))
    description = {
        "settings": dataclasses.asdict(settings),
        "rounds": privacy.rounds,
        "clients_per_round": privacy.clients_per_round,
        "participation": repr(privacy.participation),
        "cohorts": cohorts.digest,
    }
    planned_report.plan(out, settings, privacy, cohorts)
    workers, restarts, resume = execution.workers, execution.restarts, execution.resume
    while True:
        saved = checkpoints.Recovery(out, mean, description, every=execution.checkpoint_every, resume=resume)
        try:
            with aggregators.resident_context(workers=workers):
                start = process.set_model_weights(process.initialize(), language_task.initial_weights)
                progress = saved.load(start)
                del start
                progress = program.train(saved, progress)
                trained = process.get_model_weights(progress.state)
                validated = validate(trained)
                weights = [np.asarray(weight) for weight in trained.trainable]
            break
        except aggregators.WorkerLostError as error:
            workers = tuple(address for address in workers if address != error.address)
            if not restarts or (execution.workers and not workers):
                raise
            _LOG.warning("%s It does so now.", error)
            restarts, resume = restarts - 1, True
    history = list(progress.history)
    observed = participation_log.read_observed(out / PARTICIPATION)
    claims = privacy_summary.privacy_claims(
        privacy,
        observed,
        in_secret,
        population=plan.population(privacy, cohorts),
        violations=reports.violations(out),
    )
    holds, statement = claims["participation_within_assumed"], claims["statement"]
    model = safetensors.numpy.save({str(i): weight for i, weight in enumerate(weights)})
    summary = {
        "accuracy": history[-1][task.ACCURACY],
        "loss": history[-1]["loss"],
        "validation_accuracy": validated[task.ACCURACY],
        **claims,
        "model_sha256": hashlib.sha256(model).hexdigest(),
        **_settings(settings),
        "parameters": language_task.parameters,
        "dropped_participations": _participations(cohorts) - _participations(present),
        "seconds": progress.seconds,
        "tff_mf_version": tff_mf.__version__,
    }
    files.write_atomically(out / VOCABULARY, json.dumps(vocabulary, ensure_ascii=False) + "\n")
    files.write_atomically(out / MODEL, model)
    files.write_atomically(out / SUMMARY, json.dumps(summary, indent=2) + "\n")
    reports.write(out, realised=True)
    saved.finish()
    return TrainingResult(summary=summary, statement=statement, history=history, holds=holds, weights=weights)


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Program:
    """Everything of a run that does not change while it trains."""

    process: tff.learning.templates.LearningProcess
    cohorts: sampling.CohortPlan
    source: sampling.MinSepDataSource
    evaluate: task.Evaluation
    settings: TrainingSettings
    privacy: PrivacyPlan
    out: pathlib.Path
    on_round: OnRound

    def train(self, saved: checkpoints.Recovery, progress: checkpoints.Progress) -> checkpoints.Progress:
        """Runs the rounds that are left, each saved before anything of it is released."""
        if not saved.fresh:
            logs = {"participation": self.out / PARTICIPATION, "metrics": self.out / METRICS}
            resuming.check(self.out, progress.round_number, run=saved.run, **logs)
        first = progress.round_number + 1
        if progress.round_number == self.privacy.rounds and ledger.read_ledger(self.out / LEDGER).ended:
            # Stopped after its last round: only what is written at the end is missing.
            self._released_again(progress)
            return progress
        iterator = self.source.iterator(progress.round_number)
        start = time.perf_counter() - progress.seconds
        with run_log.open_run_log(self.out, run=saved.run) as book:
            # The run may have been stopped between a checkpoint and the ledger's word for it.
            book.released_until(progress.round_number)
            managers = self._released_again(progress)
            for round_number in range(first, self.privacy.rounds + 1):
                datasets = iterator.select()
                # All who were chosen: that a client has dropped out is nothing that the guarantee counts on.
                cohort = self.cohorts.cohort(round_number - 1)
                divisor, clip_norm = self.privacy.clients_per_round, self.settings.clip_norm
                book.begin(round_number, cohort, divisor=divisor, clip_norm=clip_norm)
                state = self.process.next(progress.state, datasets).state
                metrics: dict[str, float] = {}
                history = progress.history
                if round_number % self.settings.evaluate_every == 0 or round_number == self.privacy.rounds:
                    metrics = self.evaluate(self.process.get_model_weights(state))
                    history = (*history, {"round": round_number, **metrics})
                seconds = time.perf_counter() - start
                progress = checkpoints.Progress(
                    state=state,
                    round_number=round_number,
                    history=history,
                    row={"seconds": seconds, **metrics},
                    seconds=seconds,
                )
                if saved.save(progress, released=bool(metrics)):
                    book.released_until(round_number)
                _release(managers, progress)
                self.on_round(round_number, metrics)
            book.ended()
        return progress

    def _released_again(self, progress: checkpoints.Progress) -> list[tff.program.ReleaseManager]:
        """Releases what was saved and may not have been released: released again, a row is the same."""
        resuming.restore_metrics(self.out / METRICS, progress.round_number, progress.history)
        managers = self._release_managers()
        if progress.row:
            _release(managers, progress)
        return managers

    def _release_managers(self) -> list[tff.program.ReleaseManager]:
        mode = tff.program.CSVSaveMode.WRITE
        managers = [tff.program.CSVFileReleaseManager(self.out / METRICS, save_mode=mode, key_fieldname="round")]
        if self.settings.tensorboard:
            managers.append(tensorboard.Board(self.out, self.settings, self.privacy))
        return managers


def _release(managers: list[tff.program.ReleaseManager], progress: checkpoints.Progress) -> None:
    for manager in managers:
        asyncio.run(manager.release(progress.row, progress.round_number))


def _settings(settings: TrainingSettings) -> dict[str, Any]:
    """Returns how a run was trained, as its summary names it."""
    return {
        "algorithm": settings.algorithm,
        "model": dataclasses.asdict(settings.model),
        "server_learning_rate": settings.server_learning_rate,
        "server_momentum": settings.server_momentum,
        "server_warmup": settings.server_warmup,
        "server_cooldown": settings.server_cooldown,
        "client_learning_rate": settings.client_learning_rate,
        "clip_norm": settings.clip_norm,
        "zeroing": settings.zeroing,
        "sampling": dataclasses.asdict(settings.sampling),
        "dropout": settings.dropout,
        "seed": settings.seed,
    }


def _participations(cohorts: sampling.CohortPlan) -> int:
    return sum(len(cohorts.cohort(t)) for t in range(cohorts.rounds))


def _sentences(clients: tff.simulation.datasets.ClientData, count: int) -> tf.data.Dataset:
    return clients.create_tf_dataset_from_all_clients(seed=0).take(count)
