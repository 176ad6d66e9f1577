"""`tff-mf train`: data, cohorts, model and process of settings, the rounds of a run, its files, and its export."""

import contextlib
import dataclasses
import hashlib
import json
import pathlib
import shutil
import time
from collections.abc import Callable, Mapping
from typing import Any

import msgspec
import tensorflow as tf

import tff_mf
from tff_mf.base.errors import InputValueError

from .. import aggregators
from . import next_word, reports, sampling
from .data import SPLITS, client_ids, most_used_words
from .guard import export, run_guard
from .guard.inputs import DEVICE_LOOP
from .guard.private_training import PrivateTraining
from .output import console, files, typed
from .output.files import new_folder
from .runs import folders, results, statements
from .runs.folders import ExecutionSettings, begun_record
from .runs.names import METRICS, REPORT, REPORT_TEXT, SUMMARY, VOCABULARY
from .runs.results import ALSO_TRAINING, NOT_TRAINING, ROUND, SECONDS, Summary, read_metrics, write_metrics
from .runs.settings import RunSettings

OnRound = Callable[[int, Mapping[str, float]], None]
Row = dict[str, float]
_ON_THIS_MACHINE = ExecutionSettings()
# Clients that run at the same time use cores better than threads that share an operation, and one thread gives the same
# numbers whatever the number of cores.
_THREADS = 1
_TOKENIZE, _DEVICE_TOKENIZE = "tokenize", "device/tokenize"
_SAVED_MODEL, _LITE = "model", "model.tflite"


class Prepared:
    """Everything of a run that does not change while it trains; what can be refused is, before anything is built.

    Attributes:
        settings: The settings with the numbers that they came to: `RunSettings.resolved`.
        privacy: The plan; of secret cohorts, with the sampling that draws them.
        clients: All clients that train.
        cohorts: Who takes part in which round: this is logged. `None` if the cohorts are secret.
        vocabulary: The words that the model knows, the most frequent first.
        measured_on: Whether any client that the model is measured on trains too: a word of `runs.results`.
        aggregator: The aggregator in the process that adds the noise.

    Args:
        settings: As for the attribute.
        privacy: The mechanism and its noise.
        data: File in StackOverflow's format.
        without_epsilon: Whether to train although no ε can be stated.
    """

    def __init__(
        self, settings: RunSettings, privacy: tff_mf.Plan, data: pathlib.Path, *, without_epsilon: bool = False
    ) -> None:
        clients, heldout, test = (client_ids(data, split) for split in SPLITS)
        chosen = settings.sampling_settings()
        schema = chosen.schema(privacy.rounds)
        if schema != privacy.participation:
            raise InputValueError(
                f"sampling={chosen.sampling!r} with rounds={privacy.rounds} bounds clients by {schema}, and the "
                f"guarantee is for {privacy.participation}: plan with that schema."
            )
        drawn_by = chosen.drawn_by(population=len(clients), clients_per_round=privacy.clients_per_round)
        self.settings, self.clients, self.cohorts = settings, clients, None
        population = privacy.deployed_population(len(clients))
        if not settings.secret_cohorts:
            self.cohorts = sampling.plan_cohorts(
                sampling=drawn_by,
                client_ids=clients,
                clients_per_round=privacy.clients_per_round,
                rounds=privacy.rounds,
                seed=settings.seed,
            )
            population = reported_population(privacy, self.cohorts)
        if not without_epsilon:
            statements.check_statable(privacy, population=population)
        if settings.secret_cohorts:
            privacy = dataclasses.replace(privacy, sampling=drawn_by, population=len(clients), secret_cohorts=True)
        self.privacy, self.vocabulary = privacy, most_used_words(data, settings.vocab_size)
        self.task = next_word.build_task(settings, self.vocabulary)
        _check_grid(privacy, self.cohorts, self.task)
        self.process, self.aggregator = next_word.build_process(settings, privacy, self.task)
        self.batches = next_word.ClientBatches(settings, data, self.vocabulary)
        self.evaluator = next_word.Evaluator(settings, data, self.vocabulary)
        self.measured_on = ALSO_TRAINING if {*clients} & {*heldout, *test} else NOT_TRAINING


def reported_population(privacy: tff_mf.Plan, cohorts: sampling.CohortPlan) -> int:
    """Returns with how many clients a report compares δ: those in the log may stand for more than all clients."""
    logged = {client for t in range(cohorts.rounds) for client in cohorts.cohort(t)}
    return max(privacy.deployed_population(len(clients)) for clients in (cohorts.client_ids, logged))


def _check_grid(privacy: tff_mf.Plan, cohorts: sampling.CohortPlan | None, task: next_word.Task) -> None:
    """Raises if a cohort is larger than the grid's sums allow, or the model than its guarantee supposes."""
    if privacy.grid is None:
        return
    if cohorts is not None and cohorts.clients_per_round > privacy.grid.max_clients:
        raise InputValueError(
            f"grid={privacy.grid}: a cohort has {cohorts.clients_per_round} clients, more than a sum has room for: "
            "give a cohort of at least as many as come on average."
        )
    privacy.for_model(task.weights.dimension)


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainingResult:
    """The result of a run that has ended.

    Attributes:
        summary: How good the final model is, and what it took.
        report: The report.
    """

    summary: Summary
    report: reports.Report


def _train(
    prepared: Prepared, training: PrivateTraining, *, on_round: OnRound, execution: ExecutionSettings
) -> TrainingResult:
    """Runs the rounds that are left, each of which has a row of metrics, and writes the files of the run.

    Formal guarantee: as for `PrivateTraining`. A round that is evaluated is kept before anything of it is released: run
    again, it would be released twice, with different noise on the same clients, which the guarantee does not cover. Of
    the others, only how long they took is released.
    """
    folder, settings = training.guard.folder, prepared.settings
    if training.guard.has_ended:
        # It was stopped before its report was written, which was done when it was opened.
        return TrainingResult(summary=typed.read(folder / SUMMARY, Summary, "summary"), report=training.report())
    rows: list[Row] = list(training.facts.get("rows", ()))
    # What was saved may not have been released: released again, it is the same.
    write_metrics(folder / METRICS, rows)
    started = time.perf_counter() - (rows[-1][SECONDS] if rows else 0.0)
    for _ in training.cohorts(prepared.clients):
        state = training.compute(prepared.batches).state
        number = training.guard.last_round
        # How long a round takes depends on how many clients it has.
        seconds = 0.0 if settings.secret_cohorts else time.perf_counter() - started
        metrics: Mapping[str, float] = {}
        if number % settings.evaluate_every == 0 or number == prepared.privacy.rounds:
            metrics = prepared.evaluator.validate(training.weights_of(state).trainable)
        rows.append({ROUND: number, SECONDS: seconds, **metrics})
        training.advance(state, keep=bool(metrics) or number % execution.checkpoint_every == 0, rows=rows)
        write_metrics(folder / METRICS, rows)
        on_round(number, metrics)
    model = training.model()
    history = [row for row in rows if len(row) > len((ROUND, SECONDS))]
    summary = Summary(
        **msgspec.structs.asdict(prepared.evaluator.conclude(model.trainable, history)),
        model_sha256=hashlib.sha256(training.file_of(model)).hexdigest(),
        parameters=prepared.task.weights.dimension,
        seconds=rows[-1][SECONDS],
        tff_mf_version=tff_mf.__version__,
    )
    files.write_atomically(folder / VOCABULARY, json.dumps(prepared.vocabulary, ensure_ascii=False) + "\n")
    files.write_atomically(folder / SUMMARY, json.dumps(msgspec.to_builtins(summary), indent=2) + "\n")
    # The model is written with its report.
    return TrainingResult(summary=summary, report=training.report())


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
        prepared = Prepared(settings.resolved(privacy, rate), privacy, data, without_epsilon=without_epsilon)
        cohorts = prepared.cohorts
        guard = ends.enter_context(
            run_guard.open_guard(
                out,
                prepared.privacy,
                sampler=None if cohorts is None else settings.sampling_settings().sampler,
                aggregator=prepared.aggregator,
                ended=True,
                drawn=cohorts,
                held=True,
                cohorts=[] if cohorts is None else [cohorts.cohort(t) for t in range(cohorts.rounds)],
                simulation=True,
                population=privacy.deployed_population(len(prepared.clients)),
                clients_per_person=settings.clients_per_person,
                released_without_noise=[{"name": "metrics of evaluation", "of": prepared.measured_on}],
                evaluation_columns=next_word.METRICS,
                settings=settings,
                server_learning_rate=rate,
                training_clients=len(prepared.clients),
            )
        )
        training = PrivateTraining(
            guard,
            prepared.privacy,
            prepared.process,
            prepared.aggregator,
            prepared.task.weights,
            ends=ends.pop_all(),
            initial_weights=prepared.task.initial_weights,
            published=read_metrics(out / METRICS).last_evaluated,
            clients_at_once=execution.clients_at_once,
            threads=_THREADS,
        )
        with training:
            return _train(prepared, training, on_round=on_round, execution=execution)


def write(run: pathlib.Path, out: pathlib.Path, *, population: int | None = None, **more: Any) -> export.Exported:
    """Writes the bundle of a run of `tff-mf train`, or nothing if it fails: see `export.write`.

    Args:
        run: The run's folder.
        out: Folder of the bundle: a new one, or an empty one.
        population: Number of devices that can take part, if it is known, for the report.
        more: Other arguments of `export.write`.
    """
    record, vocabulary = reports.read_record(run), results.read_vocabulary(run)
    # Keys that are known are for tests of the run alone.
    record = msgspec.structs.replace(record, plan=dataclasses.replace(record.plan, insecure_seed=None))

    def add_graphs(folder: pathlib.Path, plan: tff_mf.Plan) -> dict[str, Any]:
        (folder / VOCABULARY).write_text(json.dumps(vocabulary, ensure_ascii=False) + "\n", encoding="utf-8")
        settings = reports.read_record(folder).training
        console.step("process")
        with aggregators.tff_session():
            task = next_word.build_task(settings, vocabulary)
            process, _ = next_word.build_process(settings, plan, task, loop=DEVICE_LOOP)
            console.step("graphs")
            exported = aggregators.export_process(
                process,
                folder,
                initial_weights=task.initial_weights,
                batch_size=settings.batch_size,
                client_epochs=settings.client_epochs,
                max_examples=settings.max_examples,
            )
            tokenizer = next_word.build_tokenizer(vocabulary)
            aggregators.export_computation(tokenizer, folder / _DEVICE_TOKENIZE, inputs="sentences", outputs="examples")
        return exported

    return export.write(record, out, add_graphs, population=population, **more)


def write_model(run: pathlib.Path, out: pathlib.Path) -> dict[str, Any]:
    """Writes the trained model of a run, or nothing if it fails.

    | file | what it is |
    |---|---|
    | `model/` | SavedModel from words `[n, 20]` to logits `[n, 20, words]` |
    | `model.tflite` | the same for TensorFlow Lite, where that can convert it |
    | `tokenize/` | SavedModel from sentences `[n]` to the words that the model takes |
    | `vocabulary.json`, `report.json`, `report.md` | its vocabulary, and the privacy report of its training |

    Formal guarantee: the files depend only on the run's released model, its report and its vocabulary: no rows of
    noise, keys or optimizer states are read, and the report's exact counts of devices' reports are left out.

    Returns:
        `parameters`, `headline` of the report, and the reason if there is no file for TensorFlow Lite.
    """
    export.check_trained(run)
    settings, vocabulary = reports.read_record(run).training, results.read_vocabulary(run)
    report = reports.read(run / REPORT)
    keras_model = next_word.build_keras_model(settings, vocabulary=vocabulary)
    trainable, _ = results.read_model(run)
    keras_model.set_weights(list(trainable.values()))
    words = tf.TensorSpec([None, next_word.SEQUENCE_LENGTH], tf.int64, name="words")

    @tf.function(input_signature=[words], autograph=False)
    def predict(words: tf.Tensor) -> dict[str, tf.Tensor]:
        return {"logits": keras_model(words, training=False)}

    module = tf.Module()
    module.model, module.predict = keras_model, predict
    with new_folder(out) as folder, aggregators.tff_session():
        console.step("model")
        tf.saved_model.save(module, str(folder / _SAVED_MODEL), signatures={"serving_default": predict})
        (folder / REPORT).write_text(report.as_text(), encoding="utf-8")
        # Its page may be in the words of another release.
        for name in (REPORT_TEXT, VOCABULARY):
            shutil.copyfile(run / name, folder / name)
        tokenizer = next_word.build_tokenizer(vocabulary)
        aggregators.export_computation(tokenizer, folder / _TOKENIZE, inputs="sentences", outputs="words")
        console.step("TensorFlow Lite")
        lite = aggregators.convert_to_lite(folder / _SAVED_MODEL)
        console.step()
        if lite.content is not None:
            (folder / _LITE).write_bytes(lite.content)
    return {
        "parameters": keras_model.count_params(),
        "headline": report.headline,
        "lite": None if lite.content is None else _LITE,
        "lite_reason": lite.reason or None,
    }
