"""The training program: federated averaging with momentum on the server, and noise of a mechanism."""

import asyncio
import collections
import dataclasses
import json
import math
import pathlib
import time
from collections.abc import Callable, Mapping
from typing import Any

import tensorflow as tf
import tensorflow_federated as tff

import tff_mf

from .. import aggregators
from . import amplified, participation_log, runs, sampling, task
from .datasets import sqlite
from .mechanisms import RAMP_FLOOR
from .privacy import PrivacyPlan
from .settings import TrainingSettings

METRICS = "metrics.csv"
PARTICIPATION = "participation.csv"
SUMMARY = "summary.json"
TENSORBOARD = "tensorboard"


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainingResult:
    """What a finished run was, as written to `summary.json`.

    Attributes:
        summary: Metrics of the last round, the privacy plan's numbers and the observed participation.
        statement: The guarantee in one line.
        history: Metrics of each evaluated round.
        holds: Whether the observed participation is within the assumed one.
    """

    summary: Mapping[str, Any]
    statement: str
    history: list[dict[str, float]]
    holds: bool


def run(
    settings: TrainingSettings,
    privacy: PrivacyPlan,
    *,
    data: pathlib.Path,
    out: pathlib.Path,
    on_round: Callable[[int, Mapping[str, float]], None] = lambda round_number, metrics: None,
) -> TrainingResult:
    """Trains, and writes metrics, participation and summary to the folder `out`.

    Files: `metrics.csv` (a row a round), `participation.csv` (round and client, written before the
    round's model is used; clients that drop out are in it too), `summary.json`, and `tensorboard/` if asked
    for. The guarantee covers the models of all rounds; it does not cover the evaluation metrics, which are
    computed without noise on test and validation clients, nor the vocabulary, nor the choice of settings.

    Args:
        settings: Everything but privacy.
        privacy: The mechanism and its noise.
        data: File in StackOverflow's format.
        out: An existing folder.
        on_round: Called after every round with its number and metrics (empty if not evaluated).

    Raises:
        InputValueError: If the training clients cannot fill the cohorts.
    """
    splits = sqlite.load(data)
    cohorts = sampling.plan(
        settings.sampling,
        client_ids=splits.train.client_ids,
        clients_per_round=privacy.clients_per_round,
        rounds=privacy.rounds,
        participation=privacy.participation,
        seed=settings.seed,
    )
    language_task = task.build_task(
        settings.model,
        vocabulary=list(sqlite.load_word_counts(data, settings.model.vocab_size)),
        batch_size=settings.batch_size,
        max_examples=settings.max_examples,
        client_epochs=settings.client_epochs,
        seed=settings.seed,
    )
    in_secret = amplified.amplified(privacy, settings.sampling, len(splits.train.client_ids))
    reporting = sampling.without_dropped(cohorts, settings.dropout, seed=settings.seed)
    source = sampling.MinSepDataSource(splits.train, reporting, preprocess_fn=language_task.preprocess_train)
    evaluate = language_task.build_evaluation(_sentences(splits.test, settings.evaluation_examples))
    process = _learning_process(settings, privacy, language_task)
    releases = [tff.program.CSVFileReleaseManager(out / METRICS, key_fieldname="round")]
    if settings.tensorboard:
        releases.append(tff.program.TensorBoardReleaseManager(out / TENSORBOARD))
    history: list[dict[str, float]] = []
    start = time.perf_counter()
    with aggregators.tff_session(), participation_log.open_log(out / PARTICIPATION) as log_cohort:
        state = process.set_model_weights(process.initialize(), language_task.initial_weights)
        iterator = source.iterator()
        for round_number in range(1, privacy.rounds + 1):
            datasets = iterator.select()
            log_cohort(round_number, cohorts.cohort(round_number - 1))
            state = process.next(state, datasets).state
            metrics: dict[str, float] = {}
            if round_number % settings.evaluate_every == 0 or round_number == privacy.rounds:
                metrics = evaluate(process.get_model_weights(state))
                history.append({"round": round_number, **metrics})
            row = {"seconds": time.perf_counter() - start, **metrics}
            for manager in releases:
                asyncio.run(manager.release(row, round_number))
            on_round(round_number, metrics)
        validate = language_task.build_evaluation(_sentences(splits.validation, settings.evaluation_examples))
        validated = validate(process.get_model_weights(state))
    observed = participation_log.read_observed(out / PARTICIPATION)
    holds = observed.within(privacy.participation)
    statement = privacy.statement(observed)
    summary = {
        "accuracy": history[-1][task.ACCURACY],
        "loss": history[-1]["loss"],
        "validation_accuracy": validated[task.ACCURACY],
        **privacy.as_dict(),
        "observed_min_sep": observed.min_sep,
        "observed_max_participations": observed.max_participations,
        "participation_within_assumed": holds,
        "statement": statement,
        "amplified_epsilon": in_secret and in_secret.epsilon,
        "amplified_statement": in_secret and in_secret.statement,
        "model": dataclasses.asdict(settings.model),
        "parameters": language_task.parameters,
        "server_learning_rate": settings.server_learning_rate,
        "server_momentum": settings.server_momentum,
        "server_warmup": settings.server_warmup,
        "server_cooldown": settings.server_cooldown,
        "client_learning_rate": settings.client_learning_rate,
        "clip_norm": settings.clip_norm,
        "zeroing": settings.zeroing,
        "sampling": dataclasses.asdict(settings.sampling),
        "dropout": settings.dropout,
        "dropped_participations": _participations(cohorts) - _participations(reporting),
        "seed": settings.seed,
        "seconds": time.perf_counter() - start,
        "tff_mf_version": tff_mf.__version__,
    }
    if not holds:
        summary["epsilon"] = summary["epsilon_as_run"] = summary["amplified_epsilon"] = None
    runs.write_atomically(out / SUMMARY, json.dumps(summary, indent=2) + "\n")
    return TrainingResult(summary=summary, statement=statement, history=history, holds=holds)


def _learning_process(
    settings: TrainingSettings, privacy: PrivacyPlan, language_task: task.Task
) -> tff.learning.templates.LearningProcess:
    return tff.learning.algorithms.build_unweighted_fed_avg(
        language_task.model,
        client_optimizer_fn=tff.learning.optimizers.build_sgdm(settings.client_learning_rate),
        server_optimizer_fn=_server_optimizer(settings, privacy.rounds),
        model_aggregator=_aggregator(settings, privacy),
        metrics_aggregator=_no_metrics,
    )


def _aggregator(settings: TrainingSettings, privacy: PrivacyPlan) -> tff.aggregators.UnweightedAggregationFactory:
    aggregator = aggregators.build_mf_aggregator(
        privacy.mechanism,
        clip_norm=settings.clip_norm,
        noise_multiplier=privacy.noise_multiplier_as_run,
        clients_per_round=privacy.clients_per_round,
        insecure_seed=privacy.insecure_seed,
    )
    if settings.zeroing is None:
        return aggregator
    # A constant bound: TFF's adaptive one follows the clients' updates without noise.
    return tff.aggregators.zeroing_factory(settings.zeroing, aggregator, norm_order=math.inf)


def _server_optimizer(settings: TrainingSettings, rounds: int) -> tff.learning.optimizers.Optimizer:
    warmup, cooldown = settings.server_warmup * rounds, settings.server_cooldown * rounds

    def rate(step: tf.Tensor) -> tf.Tensor:
        step = tf.cast(step, tf.float32)
        rising = step / warmup if warmup else 1.0
        falling = (rounds - step) / cooldown if cooldown else 1.0
        ramp = tf.clip_by_value(tf.minimum(rising, falling), 0.0, 1.0)
        return settings.server_learning_rate * (RAMP_FLOOR + (1 - RAMP_FLOOR) * ramp)

    return tff.learning.optimizers.schedule_learning_rate(
        tff.learning.optimizers.build_sgdm(settings.server_learning_rate, settings.server_momentum), rate
    )


def _participations(cohorts: sampling.CohortPlan) -> int:
    return sum(len(cohorts.cohort(t)) for t in range(cohorts.rounds))


def _no_metrics(metric_finalizers: object, local_unfinalized_metrics_type: object = None) -> tff.Computation:
    """Aggregates nothing: metrics of training clients would leave them without noise."""
    del metric_finalizers, local_unfinalized_metrics_type

    @tff.federated_computation
    def nothing(client_metrics: object) -> object:
        del client_metrics
        return tff.federated_value(collections.OrderedDict(), tff.SERVER)

    return nothing


def _sentences(clients: tff.simulation.datasets.ClientData, count: int) -> tf.data.Dataset:
    return clients.create_tf_dataset_from_all_clients(seed=0).take(count)
