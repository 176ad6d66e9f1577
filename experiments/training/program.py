"""`tff-mf train`: data, cohorts, model and learning process of settings, the rounds of a private run, and its files."""

import dataclasses
import functools
import hashlib
import json
import logging
import pathlib
import time
from collections.abc import Callable, Iterable, Mapping, Sequence

import msgspec
import numpy as np
import tensorflow_federated as tff

import tff_mf
from tff_mf.base import checkpoint_files
from tff_mf.base.errors import InputValueError

from ... import aggregators
from ...aggregators.resident.worker import cores
from .. import reports, sampling
from ..data import SPLITS, client_ids, most_used_words
from ..guard import RunGuard
from ..guard.rounds import Computing, Rounds
from ..output import files
from ..runs import amplification, folders, model_file, server_loop, statements
from ..runs.folders import ExecutionSettings, versions
from ..runs.ledger import has_begun, read_ledger
from ..runs.metrics import ALSO_TRAINING, NOT_TRAINING, ROUND, SECONDS, Summary, read_metrics, write_metrics
from ..runs.names import CHECKPOINTS, COHORTS, LEDGER, METRICS, MODEL, SETTINGS_TOML, SUMMARY, VOCABULARY
from ..runs.rules import Rules
from ..runs.run_record import begun_record
from ..runs.settings import RunSettings
from ..sampling.data_source import CohortReader
from .client_batches import ClientBatches
from .evaluation import METRICS as COLUMNS
from .evaluation import Evaluator
from .learning_process import build_process, clip_norm_of
from .task import Task, build_task

OnRound = Callable[[int, Mapping[str, float]], None]
Row = dict[str, float]
_LOG = logging.getLogger(__name__)
_ON_THIS_MACHINE = ExecutionSettings()
# Clients that run at the same time use cores better than threads that share an operation, and one thread gives the same
# numbers whatever the number of cores.
_THREADS = 1


@dataclasses.dataclass(frozen=True, kw_only=True)
class PreparedRun:
    """Everything of a run that does not change while it trains.

    Attributes:
        settings: The settings with the numbers that they came to: `RunSettings.resolved`.
        cohorts: Who is chosen in which round: this is logged.
        secret: What the cohorts follow from; `None` if they are known.
        vocabulary: The words that the model knows, the most frequent first.
        measured_on: Whether any client that the model is measured on trains too: a word of `runs.metrics`.
        aggregator: The aggregator in it that adds the noise.
    """

    settings: RunSettings
    privacy: tff_mf.Plan
    cohorts: sampling.CohortPlan
    secret: sampling.CohortSecret | None
    vocabulary: Sequence[str]
    language_task: Task
    batches: ClientBatches
    evaluator: Evaluator
    measured_on: str
    process: tff.learning.templates.LearningProcess
    aggregator: aggregators.MFAggregationFactory


def prepare(
    settings: RunSettings,
    privacy: tff_mf.Plan,
    data: pathlib.Path,
    *,
    key: pathlib.Path | None = None,
    run: str | None = None,
    without_epsilon: bool = False,
) -> PreparedRun:
    """Returns what a run is made of; what can be refused is, before anything is built.

    Args:
        settings: As for `PreparedRun`.
        privacy: The mechanism and its noise.
        data: File in StackOverflow's format.
        key: The file of what secret cohorts follow from; `None` if they follow from the seed.
        run: The identifier of a run with secret cohorts that is resumed.
        without_epsilon: Whether to train although no ε can be stated.
    """
    training, heldout, test = (client_ids(data, split) for split in SPLITS)
    drawn = {
        "sampling": _drawn_by(settings, privacy, len(training)),
        "client_ids": training,
        "clients_per_round": privacy.clients_per_round,
        "rounds": privacy.rounds,
    }
    if key is None:
        cohorts, secret = sampling.plan_cohorts(**drawn, seed=settings.seed), None
    else:
        cohorts, secret = sampling.secret_cohorts(key, run=run, begun=run is not None, **drawn)
    if not without_epsilon:
        statements.check_statable(
            privacy,
            population=reported_population(privacy, cohorts, logged=secret is None),
            observed=cohorts.observed(),
        )
    vocabulary = most_used_words(data, settings.vocab_size)
    language_task = build_task(settings, vocabulary)
    _check_grid(privacy, cohorts, language_task)
    process, aggregator = build_process(settings, privacy, language_task)
    return PreparedRun(
        settings=settings,
        privacy=privacy,
        cohorts=cohorts,
        secret=secret,
        vocabulary=vocabulary,
        language_task=language_task,
        batches=ClientBatches(settings, data, vocabulary),
        evaluator=Evaluator(settings, data, vocabulary),
        measured_on=measured_on(training, [*heldout, *test]),
        process=process,
        aggregator=aggregator,
    )


def reported_population(privacy: tff_mf.Plan, cohorts: sampling.CohortPlan, *, logged: bool) -> int:
    """Returns with how many clients a report compares δ: those in the log may stand for more than all clients."""
    population = privacy.deployed_population(len(cohorts.client_ids))
    if not logged:
        return population
    named = {client for t in range(cohorts.rounds) for client in cohorts.cohort(t)}
    return max(population, privacy.deployed_population(len(named)))


def _drawn_by(settings: RunSettings, privacy: tff_mf.Plan, population: int) -> tff_mf.Sampling:
    """Returns the sampling of a run."""
    chosen = settings.sampling_settings()
    schema = chosen.schema(privacy.rounds)
    if schema != privacy.participation:
        raise InputValueError(
            f"sampling={chosen.sampling!r} with rounds={privacy.rounds} bounds clients by {schema}, and the guarantee "
            f"is for {privacy.participation}: plan with that schema."
        )
    return chosen.drawn_by(population=population, clients_per_round=privacy.clients_per_round)


def _check_grid(privacy: tff_mf.Plan, cohorts: sampling.CohortPlan, language_task: Task) -> None:
    """Raises if a cohort is larger than the grid's sums allow, or the model than its guarantee supposes."""
    if privacy.grid is None or privacy.dimension is None:
        return
    largest = max(len(cohorts.cohort(t)) for t in range(cohorts.rounds))
    if largest > privacy.grid.max_clients:
        raise InputValueError(
            f"grid={privacy.grid}: a cohort has {largest} clients, more than a sum has room for: give a cohort of at "
            "least as many as come on average."
        )
    if language_task.parameters > privacy.dimension:
        raise InputValueError(
            f"dimension={privacy.dimension} of the plan must be at least {language_task.parameters}, the number of the "
            "model's parameters: what the grid costs depends on it."
        )


def measured_on(training: Iterable[str], others: Iterable[str]) -> str:
    """Returns what a report says of the clients that a model is measured on.

    Example:
        >>> measured_on(["ann", "bob"], ["bob", "cai"])
        'other sentences of clients that train'
    """
    return ALSO_TRAINING if set(training) & set(others) else NOT_TRAINING


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainingResult:
    """The result of a run that has ended.

    Attributes:
        summary: How good the final model is, and what it took.
        report: The report.
    """

    summary: Summary
    report: reports.Report


def concurrency(execution: ExecutionSettings) -> str:
    """Returns, as one line, what computes at the same time."""
    at_once = execution.clients_at_once or cores()
    return f"clients of a round at once: {at_once}, threads inside an operation: {execution.threads or _THREADS}"


def _train_rounds(
    prepared: PreparedRun,
    rounds: Rounds,
    guard: RunGuard,
    rows: list[Row],
    out: pathlib.Path,
    *,
    on_round: OnRound,
    every: int,
) -> None:
    """Runs the rounds that are left, of which every so many are saved, and adds a row of metrics for each.

    Formal guarantee: as for `Rounds`. A round that is evaluated is saved before anything of it is released, so that it
    is never run again: run again, it would be released twice, with different noise on the same clients, which the
    guarantee does not cover. Of the others, only how long they took is released.
    """
    settings, done, last = prepared.settings, len(rows), prepared.privacy.rounds
    started = time.perf_counter() - (rows[-1][SECONDS] if rows else 0.0)
    with CohortReader() as reader:
        for number in range(done + 1, last + 1):
            batches = reader.read(prepared.batches, prepared.cohorts.cohort(number - 1))
            # Of secret cohorts, nobody.
            cohort = () if settings.secret_cohorts else prepared.cohorts.cohort(number - 1)
            guard.begin(cohort, clip_norm=clip_norm_of(rounds.state, settings))
            if number < last:
                # The plan is fixed, whatever is read ahead.
                reader.begin(prepared.batches, prepared.cohorts.cohort(number))
            state = rounds.compute(batches).state
            # How long a round takes depends on how many clients it has.
            seconds = 0.0 if settings.secret_cohorts else time.perf_counter() - started
            metrics: Mapping[str, float] = {}
            if number % settings.evaluate_every == 0 or number == last:
                metrics = prepared.evaluator.validate(_arrays(prepared.process.get_model_weights(state)))
            rows.append({ROUND: number, SECONDS: seconds, **metrics})
            if metrics or number % every == 0:
                rounds.keep(number, state, rows=rows)
            rounds.state = state
            write_metrics(out / METRICS, rows)
            on_round(number, metrics)
    guard.record_end()


def _train(
    prepared: PreparedRun,
    guard: RunGuard,
    out: pathlib.Path,
    *,
    on_round: OnRound,
    execution: ExecutionSettings,
) -> TrainingResult:
    """Trains a run to its last round, from the last checkpoint again whenever a worker is lost; writes its files."""
    options = {"clients_at_once": execution.clients_at_once, "threads": execution.threads or _THREADS}
    restarts = execution.restarts
    with Computing(**options) as computing:
        weights = prepared.language_task.initial_weights
        rounds = Rounds(prepared.process, prepared.aggregator, guard, computing, initial_weights=weights)
        while True:
            try:
                kept = rounds.resume(published=read_metrics(out / METRICS).last_evaluated)
                rows = list(kept.get("rows", ()))
                # What was saved may not have been released: released again, it is the same.
                write_metrics(out / METRICS, rows)
                with computing.installed():
                    # It may have been stopped after its last round: then only what is written at the end is missing.
                    if not guard.has_ended:
                        more = {"on_round": on_round, "every": execution.checkpoint_every}
                        _train_rounds(prepared, rounds, guard, rows, out, **more)
                    return _write_results(prepared, rounds, rows, out)
            except aggregators.WorkerLostError as error:
                if not restarts:
                    raise
                _LOG.warning("%s It does so now.", error)
                restarts -= 1


def _arrays(model: tff.learning.models.ModelWeights) -> list[np.ndarray]:
    return [np.asarray(weight) for weight in model.trainable]


def _write_results(prepared: PreparedRun, rounds: Rounds, rows: Sequence[Row], out: pathlib.Path) -> TrainingResult:
    """Writes model, vocabulary, summary and report of a run, deletes its checkpoints, and returns its result."""
    weights = _arrays(prepared.process.get_model_weights(rounds.state))
    history = [row for row in rows if len(row) > len((ROUND, SECONDS))]
    quality = prepared.evaluator.conclude(weights, history)
    content = model_file.content(dict(zip(prepared.language_task.weight_names, weights, strict=True)), {})
    summary = Summary(
        **msgspec.structs.asdict(quality),
        model_sha256=hashlib.sha256(content).hexdigest(),
        parameters=prepared.language_task.parameters,
        seconds=rows[-1][SECONDS],
        tff_mf_version=tff_mf.__version__,
    )
    files.write_atomically(out / VOCABULARY, json.dumps(prepared.vocabulary, ensure_ascii=False) + "\n")
    files.write_atomically(out / MODEL, content)
    files.write_atomically(out / SUMMARY, json.dumps(msgspec.to_builtins(summary), indent=2) + "\n")
    report = reports.write(out, realised=True)
    folders.delete_keys(out)
    return TrainingResult(summary=summary, report=report)


def run(
    settings: RunSettings,
    privacy: tff_mf.Plan,
    *,
    data: pathlib.Path,
    out: pathlib.Path,
    on_round: OnRound = lambda round_number, metrics: None,
    execution: ExecutionSettings = _ON_THIS_MACHINE,
    without_epsilon: bool = False,
) -> TrainingResult:
    """Trains, and writes metrics, participation and summary to the folder `out`.

    Files: `metrics.csv` (a row a round), `ledger.jsonl` (who takes part in a round, written before their data are
    read), `model.safetensors` (the trained model), `vocabulary.json` and
    `summary.json`. The guarantee covers the models of all rounds; it does not cover the evaluation metrics, which are
    computed without noise on test and validation clients, nor the vocabulary, nor the choice of settings. With secret
    cohorts, nothing that is written depends on them but the models, and, until the run has ended, its checkpoints with
    the secret; how long rounds take is not written either.

    Args:
        settings: The settings of the run.
        privacy: The mechanism and its noise.
        data: File in StackOverflow's format.
        out: The folder of the run, made if it does not exist.
        on_round: Called after every round with its number and metrics (empty if not evaluated).
        execution: Where it computes, when it saves checkpoints, and whether it resumes a run that was stopped.
        without_epsilon: Whether to train although no ε can be stated: without noise, with noise that is repeatable,
            with a δ that is too large, or with cohorts that exceed the participation schema.

    Raises:
        InputValueError: If the training clients cannot fill the cohorts, no ε can be stated, the folder of a new run
            is not empty, there is no such run to resume or its files are damaged, or another process is at work there.
        WorkerLostError: If the worker with the server's values dies and no restarts are left.
    """
    files.make_writable(out)
    with files.alone(out):
        if not execution.resume:
            folders.check_empty(out)
        begun = begun_record(out)
        key = out / CHECKPOINTS / COHORTS if settings.secret_cohorts else None
        run = read_ledger(out / LEDGER).run if key and has_begun(out / LEDGER) else None
        # Computed again from the noise, it could differ in last bits on another machine.
        rate = begun.server_learning_rate if begun and begun.server_learning_rate else settings.chosen_rate(privacy)
        resolved = settings.resolved(privacy, rate)
        prepared = prepare(resolved, privacy, data, key=key, run=run, without_epsilon=without_epsilon)
        cohorts, clients = prepared.cohorts, len(prepared.cohorts.client_ids)
        # Computed again, a certificate by samples would differ.
        amplified = begun.amplified_epsilon if begun else None
        if prepared.secret is not None and begun is None:
            in_secret = amplification.own(privacy, settings.sampling_settings(), clients)
            amplified = amplification.stated_epsilon(in_secret)
        # Whatever refuses a new run has done so: from here on its folder has files.
        if not (out / SETTINGS_TOML).exists():
            settings.write(out)
        if prepared.secret is not None and key and run is None:
            checkpoint_files.make_private(key.parent)
            sampling.keep_secret(key, prepared.secret)
        reports.write_record(
            out,
            privacy,
            cohorts=[] if settings.secret_cohorts else [cohorts.cohort(t) for t in range(cohorts.rounds)],
            amplified_epsilon=amplified,
            sampler=settings.sampling_settings().sampler,
            simulation=True,
            population=privacy.deployed_population(clients),
            clients_per_person=settings.clients_per_person,
            released_without_noise=[{"name": "metrics of evaluation", "of": prepared.measured_on}],
            evaluation_columns=COLUMNS,
            settings=settings,
            server_learning_rate=rate,
            training_clients=clients,
            versions=versions(),
        )
        reports.write(out, realised=False)
        rules = Rules.of(privacy)
        if without_epsilon:
            rules = dataclasses.replace(rules, schema=None)
        make = functools.partial(RunGuard, plan=privacy, draws=False, noise=prepared.aggregator.fingerprint)
        secret = None if prepared.secret is None else prepared.secret.run
        with server_loop.open_loop(out, rules=rules, run=secret, ended=True, make=make) as guard:
            return _train(prepared, guard, out, on_round=on_round, execution=execution)
