"""Trains a prepared run on workers, and continues from its last checkpoint when a worker is lost."""

import dataclasses
import logging
import pathlib
from typing import Any

import numpy as np

from ... import aggregators
from ...aggregators.resident.workers import cores
from ..configuration.settings import ExecutionSettings
from ..run_folder.rules import Rules
from .checkpoints import Recovery
from .preparation import PreparedRun
from .rounds import OnRound, RoundLoop

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
                loop = RoundLoop(prepared=prepared, out=out, rules=rules, on_round=on_round)
                return _trained(loop, saved)
        except aggregators.WorkerLostError as error:
            workers = tuple(address for address in workers if address != error.address)
            if not restarts or (execution.workers and not workers):
                raise
            _LOG.warning("%s It does so now.", error)
            restarts, resume = restarts - 1, True


def _trained(loop: RoundLoop, saved: Recovery) -> TrainedRun:
    prepared = loop.prepared
    progress = loop.train(saved, saved.load(prepared.initial_state()))
    model = prepared.process.get_model_weights(progress.state)
    return TrainedRun(
        saved=saved,
        history=list(progress.history),
        measured=prepared.measurement.conclude(model, progress.history),
        weights=[np.asarray(weight) for weight in model.trainable],
        seconds=progress.seconds,
    )
