"""`tff-mf train`: data, cohorts, model and learning process of settings, the rounds of a private run, and its files."""

import contextlib
import dataclasses
import hashlib
import json
import pathlib
import time
from collections.abc import Callable, Iterable, Mapping, Sequence

import msgspec
import tensorflow_federated as tff

import tff_mf
from tff_mf.base.errors import InputValueError

from ... import aggregators
from ...aggregators.resident.worker import cores
from .. import reports, sampling
from ..data import SPLITS, client_ids, most_used_words
from ..guard import models, run_guard
from ..guard.private_training import PrivateTraining
from ..output import files, typed
from ..runs import folders, statements
from ..runs.folders import ExecutionSettings
from ..runs.metrics import ALSO_TRAINING, NOT_TRAINING, ROUND, SECONDS, Summary, read_metrics, write_metrics
from ..runs.names import METRICS, SETTINGS_TOML, SUMMARY, VOCABULARY
from ..runs.run_record import begun_record
from ..runs.settings import RunSettings
from .client_batches import ClientBatches
from .evaluation import METRICS as COLUMNS
from .evaluation import Evaluator
from .learning_process import build_process
from .task import Task, build_task

OnRound = Callable[[int, Mapping[str, float]], None]
Row = dict[str, float]
_ON_THIS_MACHINE = ExecutionSettings()
# Clients that run at the same time use cores better than threads that share an operation, and one thread gives the same
# numbers whatever the number of cores.
_THREADS = 1


@dataclasses.dataclass(frozen=True, kw_only=True)
class PreparedRun:
    """Everything of a run that does not change while it trains.

    Attributes:
        settings: The settings with the numbers that they came to: `RunSettings.resolved`.
        privacy: The plan; of secret cohorts, with the sampling that draws them.
        clients: All clients that train.
        cohorts: Who takes part in which round: this is logged. `None` if the cohorts are secret.
        vocabulary: The words that the model knows, the most frequent first.
        measured_on: Whether any client that the model is measured on trains too: a word of `runs.metrics`.
        aggregator: The aggregator in the process that adds the noise.
    """

    settings: RunSettings
    privacy: tff_mf.Plan
    clients: Sequence[str]
    cohorts: sampling.CohortPlan | None
    vocabulary: Sequence[str]
    language_task: Task
    batches: ClientBatches
    evaluator: Evaluator
    measured_on: str
    process: tff.learning.templates.LearningProcess
    aggregator: aggregators.MFAggregationFactory


def prepare(
    settings: RunSettings, privacy: tff_mf.Plan, data: pathlib.Path, *, without_epsilon: bool = False
) -> PreparedRun:
    """Returns what a run is made of; what can be refused is, before anything is built.

    Args:
        settings: As for `PreparedRun`.
        privacy: The mechanism and its noise.
        data: File in StackOverflow's format.
        without_epsilon: Whether to train although no ε can be stated.
    """
    clients, heldout, test = (client_ids(data, split) for split in SPLITS)
    chosen = settings.sampling_settings()
    schema = chosen.schema(privacy.rounds)
    if schema != privacy.participation:
        raise InputValueError(
            f"sampling={chosen.sampling!r} with rounds={privacy.rounds} bounds clients by {schema}, and the guarantee "
            f"is for {privacy.participation}: plan with that schema."
        )
    drawn_by = chosen.drawn_by(population=len(clients), clients_per_round=privacy.clients_per_round)
    cohorts = None
    population = privacy.deployed_population(len(clients))
    if not settings.secret_cohorts:
        cohorts = sampling.plan_cohorts(
            sampling=drawn_by,
            client_ids=clients,
            clients_per_round=privacy.clients_per_round,
            rounds=privacy.rounds,
            seed=settings.seed,
        )
        population = reported_population(privacy, cohorts)
    if not without_epsilon:
        statements.check_statable(privacy, population=population)
    if settings.secret_cohorts:
        privacy = dataclasses.replace(privacy, sampling=drawn_by, population=len(clients), secret_cohorts=True)
    vocabulary = most_used_words(data, settings.vocab_size)
    language_task = build_task(settings, vocabulary)
    _check_grid(privacy, cohorts, language_task)
    process, aggregator = build_process(settings, privacy, language_task)
    return PreparedRun(
        settings=settings,
        privacy=privacy,
        clients=clients,
        cohorts=cohorts,
        vocabulary=vocabulary,
        language_task=language_task,
        batches=ClientBatches(settings, data, vocabulary),
        evaluator=Evaluator(settings, data, vocabulary),
        measured_on=measured_on(clients, [*heldout, *test]),
        process=process,
        aggregator=aggregator,
    )


def reported_population(privacy: tff_mf.Plan, cohorts: sampling.CohortPlan) -> int:
    """Returns with how many clients a report compares δ: those in the log may stand for more than all clients."""
    logged = {client for t in range(cohorts.rounds) for client in cohorts.cohort(t)}
    return max(privacy.deployed_population(len(clients)) for clients in (cohorts.client_ids, logged))


def _check_grid(privacy: tff_mf.Plan, cohorts: sampling.CohortPlan | None, language_task: Task) -> None:
    """Raises if a cohort is larger than the grid's sums allow, or the model than its guarantee supposes."""
    if privacy.grid is None or privacy.dimension is None:
        return
    largest = 0 if cohorts is None else max(len(cohorts.cohort(t)) for t in range(cohorts.rounds))
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
    return f"clients of a round at once: {execution.clients_at_once or cores()}"


def _train_rounds(
    prepared: PreparedRun, training: PrivateTraining, rows: list[Row], *, on_round: OnRound, every: int
) -> None:
    """Runs the rounds that are left, of which every so many are kept, and has a row of metrics for each.

    Formal guarantee: as for `PrivateTraining`. A round that is evaluated is kept before anything of it is released: run
    again, it would be released twice, with different noise on the same clients, which the guarantee does not cover. Of
    the others, only how long they took is released.
    """
    settings, last = prepared.settings, prepared.privacy.rounds
    started = time.perf_counter() - (rows[-1][SECONDS] if rows else 0.0)
    for _ in training.cohorts(prepared.clients):
        state = training.compute(prepared.batches).state
        number = training.guard.last_round
        # How long a round takes depends on how many clients it has.
        seconds = 0.0 if settings.secret_cohorts else time.perf_counter() - started
        metrics: Mapping[str, float] = {}
        if number % settings.evaluate_every == 0 or number == last:
            metrics = prepared.evaluator.validate(training.weights_of(state).trainable)
        rows.append({ROUND: number, SECONDS: seconds, **metrics})
        training.advance(state, keep=bool(metrics) or number % every == 0, rows=rows)
        write_metrics(training.guard.folder / METRICS, rows)
        on_round(number, metrics)


def _train(
    prepared: PreparedRun, training: PrivateTraining, *, on_round: OnRound, execution: ExecutionSettings
) -> TrainingResult:
    """Trains a run to its last round, and writes its files."""
    folder = training.guard.folder
    if training.guard.has_ended:
        # It was stopped before its report was written, which was done when it was opened.
        return TrainingResult(summary=typed.read(folder / SUMMARY, Summary, "summary"), report=training.report())
    rows = list(training.facts.get("rows", ()))
    # What was saved may not have been released: released again, it is the same.
    write_metrics(folder / METRICS, rows)
    _train_rounds(prepared, training, rows, on_round=on_round, every=execution.checkpoint_every)
    summary = _write_results(prepared, training, rows)
    return TrainingResult(summary=summary, report=training.report())


def _write_results(prepared: PreparedRun, training: PrivateTraining, rows: Sequence[Row]) -> Summary:
    """Writes vocabulary and summary of a run, whose model its report is written with, and returns the summary."""
    model, folder = training.model(), training.guard.folder
    history = [row for row in rows if len(row) > len((ROUND, SECONDS))]
    quality = prepared.evaluator.conclude(model.trainable, history)
    summary = Summary(
        **msgspec.structs.asdict(quality),
        model_sha256=hashlib.sha256(training.file_of(model)).hexdigest(),
        parameters=prepared.language_task.parameters,
        seconds=rows[-1][SECONDS],
        tff_mf_version=tff_mf.__version__,
    )
    files.write_atomically(folder / VOCABULARY, json.dumps(prepared.vocabulary, ensure_ascii=False) + "\n")
    files.write_atomically(folder / SUMMARY, json.dumps(msgspec.to_builtins(summary), indent=2) + "\n")
    return summary


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
    read), `model.safetensors` (the trained model), `vocabulary.json` and `summary.json`. The guarantee covers the
    models of all rounds; it does not cover the evaluation metrics, which are computed without noise on test and
    validation clients, nor the vocabulary, nor the choice of settings. With secret cohorts, nothing that is written
    depends on them but the models, and, until the run has ended, its checkpoints with the secret; how long rounds take
    is not written either.

    Args:
        settings: The settings of the run.
        privacy: The mechanism and its noise.
        data: File in StackOverflow's format.
        out: The folder of the run, made if it does not exist.
        on_round: Called after every round with its number and metrics (empty if not evaluated).
        execution: Where it computes, when it saves checkpoints, and whether it resumes a run that was stopped.
        without_epsilon: Whether to train although no ε can be stated: without noise, with noise that is repeatable, or
            with a δ that is too large.

    Raises:
        InputValueError: If the training clients cannot fill the cohorts, no ε can be stated, the folder of a new run
            is not empty, there is no such run to resume or its files are damaged, or another process is at work there.
        WorkerLostError: If the worker with the server's values dies.
    """
    files.make_writable(out)
    with contextlib.ExitStack() as ends:
        ends.enter_context(files.alone(out))
        if not execution.resume:
            folders.check_empty(out)
        begun = begun_record(out)
        # Computed again from the noise, it could differ in last bits on another machine.
        rate = begun.server_learning_rate if begun and begun.server_learning_rate else settings.chosen_rate(privacy)
        prepared = prepare(settings.resolved(privacy, rate), privacy, data, without_epsilon=without_epsilon)
        cohorts, task = prepared.cohorts, prepared.language_task
        fields = run_guard.record_fields(
            out,
            prepared.privacy,
            None if settings.secret_cohorts else settings.sampling_settings().sampler,
            cohorts=[] if cohorts is None else [cohorts.cohort(t) for t in range(cohorts.rounds)],
            simulation=True,
            population=privacy.deployed_population(len(prepared.clients)),
            clients_per_person=settings.clients_per_person,
            released_without_noise=[{"name": "metrics of evaluation", "of": prepared.measured_on}],
            evaluation_columns=COLUMNS,
            settings=settings,
            server_learning_rate=rate,
            training_clients=len(prepared.clients),
        )
        # Whatever refuses a new run has done so: from here on its folder has files.
        if not (out / SETTINGS_TOML).exists():
            settings.write(out)
        guard = ends.enter_context(
            run_guard.open_held(
                out,
                prepared.privacy,
                aggregator=prepared.aggregator,
                ended=True,
                draws=True,
                drawn=cohorts,
                **fields,
            )
        )
        training = PrivateTraining(
            guard,
            prepared.privacy,
            prepared.process,
            prepared.aggregator,
            models.Weights(dimension=task.parameters, trainable=[*task.weight_names], non_trainable=[]),
            ends=ends.pop_all(),
            initial_weights=task.initial_weights,
            every_round=False,
            published=read_metrics(out / METRICS).last_evaluated,
            clients_at_once=execution.clients_at_once,
            threads=_THREADS,
        )
        with training:
            return _train(prepared, training, on_round=on_round, execution=execution)
