"""`tff-mf train`: data, cohorts, model and learning process of settings, the rounds of a private run, and its files."""

import asyncio
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
from ..guard import RunGuard
from ..guard.rounds import Computing, Rounds
from ..output import files
from ..runs import amplification, folders, initial_model, layers, model_file, server_loop, statements
from ..runs.folders import ExecutionSettings, versions
from ..runs.initial_model import GivenModel
from ..runs.ledger import has_begun, read_ledger
from ..runs.metrics import ALSO_TRAINING, NOT_TRAINING, ROUND, SECONDS, read_metrics, restore_metrics
from ..runs.names import CHECKPOINTS, COHORTS, LEDGER, METRICS, MODEL, SETTINGS_TOML, SUMMARY, VOCABULARY
from ..runs.rules import Rules
from ..runs.run_record import begun_record, initial_model_of
from ..runs.settings import RunSettings
from ..runs.summary import Summary
from ..sampling.data_source import CohortReader
from .client_batches import ClientBatches
from .datasets import sqlite
from .evaluation import METRICS as COLUMNS
from .evaluation import Evaluator
from .learning_process import build_process, clip_norm_of
from .task import Task, build_task

OnRound = Callable[[int, Mapping[str, float]], None]
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
        present: Who of them reports.
        vocabulary: The words that the model knows, the most frequent first.
        measured_on: Whether any client that the model is measured on trains too: a word of `runs.metrics`.
        in_secret: What sampling in secret adds to the guarantee; `None` if cohorts are known.
        aggregator: The aggregator in it that adds the noise.
    """

    settings: RunSettings
    privacy: tff_mf.Plan
    cohorts: sampling.CohortPlan
    secret: sampling.CohortSecret | None
    present: sampling.CohortPlan
    vocabulary: Sequence[str]
    language_task: Task
    batches: ClientBatches
    evaluator: Evaluator
    measured_on: str
    in_secret: tff_mf.Level | None
    process: tff.learning.templates.LearningProcess
    aggregator: aggregators.MFAggregationFactory

    @property
    def population(self) -> int:
        """Number of clients of the deployment that the run stands for."""
        return self.privacy.deployed_population(len(self.cohorts.client_ids))

    @property
    def dropped_participations(self) -> int:
        """How often a client was chosen and did not report."""
        return _participations(self.cohorts) - _participations(self.present)


def prepare(
    settings: RunSettings,
    privacy: tff_mf.Plan,
    data: pathlib.Path,
    given: GivenModel | None = None,
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
        given: The model that training starts from, whose words the run's model knows; `None` is one drawn with the
            seed.
        key: The file of what secret cohorts follow from; `None` if they follow from the seed.
        run: The identifier of a run with secret cohorts that is resumed.
        without_epsilon: Whether to train although no ε can be stated.
    """
    training, heldout, test = (sqlite.clients(sqlite.checked(data), split) for split in sqlite.SPLITS)
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
            given.named if given else None,
            population=reported_population(privacy, cohorts, logged=secret is None),
            observed=cohorts.observed(),
        )
    present = sampling.without_dropped(cohorts, settings.dropout, seed=settings.seed)
    # A search of its own, which may be refused: before hours of training.
    in_secret = None
    if secret is not None:
        in_secret = amplification.own(privacy, settings.sampling_settings(), len(cohorts.client_ids))
    vocabulary = given.vocabulary if given else list(sqlite.load_word_counts(data, settings.vocab_size))
    language_task = build_task(settings, vocabulary)
    if given:
        drawn_with_seed = language_task.initial_weights
        weights = tff.learning.models.ModelWeights(
            trainable=given.parameters([np.asarray(each) for each in drawn_with_seed.trainable]),
            non_trainable=drawn_with_seed.non_trainable,
        )
        language_task = dataclasses.replace(language_task, initial_weights=weights)
    _check_grid(privacy, present, language_task)
    process, aggregator = build_process(settings, privacy, language_task)
    return PreparedRun(
        settings=settings,
        privacy=privacy,
        cohorts=cohorts,
        secret=secret,
        present=present,
        vocabulary=vocabulary,
        language_task=language_task,
        batches=ClientBatches(settings, data, vocabulary),
        evaluator=Evaluator(settings, data, vocabulary),
        measured_on=measured_on(training, [*heldout, *test]),
        in_secret=in_secret,
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


def _check_grid(privacy: tff_mf.Plan, present: sampling.CohortPlan, language_task: Task) -> None:
    """Raises if a cohort is larger than the grid's sums allow, or the model than its guarantee supposes."""
    if privacy.grid is None or privacy.dimension is None:
        return
    largest = max(len(present.cohort(t)) for t in range(present.rounds))
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


def _participations(cohorts: sampling.CohortPlan) -> int:
    return sum(len(cohorts.cohort(t)) for t in range(cohorts.rounds))


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainingResult:
    """The result of a run that has ended.

    Attributes:
        summary: How good the final model is, and what it took.
        report: The report.
        history: Metrics of each evaluated round.
        weights: The trained model's parameters.
    """

    summary: Summary
    report: reports.Report
    history: Sequence[Mapping[str, float]]
    weights: list[np.ndarray]

    @property
    def claim(self) -> statements.Claim:
        """The claim of the report."""
        return self.report.claim

    @property
    def statement(self) -> str:
        """The guarantee in one line: the headline of the report."""
        return self.report.headline

    @property
    def holds(self) -> bool:
        """Whether participation was as it was accounted for, as far as the log shows it."""
        return all(reason.field != "participation" for reason in self.claim.reasons)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Progress:
    """How far a run is: saved with the state of its newest round.

    Attributes:
        round_number: Rounds that are finished.
        history: Metrics of each evaluated round.
        row: What is released of the last round: its row of metrics.
        seconds: How long the rounds took.
    """

    round_number: int = 0
    history: Sequence[Mapping[str, float]] = ()
    row: Mapping[str, float] = dataclasses.field(default_factory=dict)
    seconds: float = 0.0


def concurrency(execution: ExecutionSettings) -> str:
    """Returns, as one line, what computes at the same time."""
    at_once = execution.clients_at_once or cores()
    return f"clients of a round at once: {at_once}, threads inside an operation: {execution.threads or _THREADS}"


def _release(managers: Sequence[tff.program.ReleaseManager], progress: Progress) -> None:
    """Releases the metrics of a round."""
    for manager in managers:
        asyncio.run(manager.release(progress.row, progress.round_number))


def _released_again(prepared: PreparedRun, out: pathlib.Path, progress: Progress) -> list[tff.program.ReleaseManager]:
    """Releases what was saved and may not have been released: released again, a row is the same."""
    restore_metrics(out / METRICS, progress.round_number, progress.history)
    mode = tff.program.CSVSaveMode.WRITE
    managers = [tff.program.CSVFileReleaseManager(out / METRICS, save_mode=mode, key_fieldname="round")]
    if progress.row:
        _release(managers, progress)
    return managers


def _trained(
    prepared: PreparedRun,
    rounds: Rounds,
    guard: RunGuard,
    out: pathlib.Path,
    progress: Progress,
    *,
    on_round: OnRound,
    every: int,
) -> Progress:
    """Runs the rounds that are left, of which every so many are saved, and returns where the run is then.

    Formal guarantee: as for `Rounds`. A round that is evaluated is saved before anything of it is released, so that it
    is never run again: run again, it would be released twice, with different noise on the same clients, which the
    guarantee does not cover. Of the others, only how long they took is released.
    """
    settings, last = prepared.settings, prepared.privacy.rounds
    started = time.perf_counter() - progress.seconds
    managers = _released_again(prepared, out, progress)
    # It may have been stopped after its last round: then only what is written at the end is missing.
    if guard.has_ended:
        return progress
    with CohortReader() as reader:
        for number in range(progress.round_number + 1, last + 1):
            batches = reader.read(prepared.batches, prepared.present.cohort(number - 1))
            # All who were chosen: the guarantee does not count on who drops out. Of secret cohorts, nobody.
            cohort = () if settings.secret_cohorts else prepared.cohorts.cohort(number - 1)
            guard.begin(cohort, clip_norm=clip_norm_of(rounds.state, settings))
            if number < last:
                # The plan is fixed, whatever is read ahead.
                reader.begin(prepared.batches, prepared.present.cohort(number))
            state = rounds.compute(batches).state
            # How long a round takes depends on how many clients it has.
            seconds = 0.0 if settings.secret_cohorts else time.perf_counter() - started
            metrics: Mapping[str, float] = {}
            if number % settings.evaluate_every == 0 or number == last:
                metrics = prepared.evaluator.validate(_arrays(prepared.process.get_model_weights(state)))
            progress = Progress(
                round_number=number,
                history=[*progress.history, *([{ROUND: number, **metrics}] if metrics else [])],
                row={SECONDS: seconds, **metrics},
                seconds=seconds,
            )
            if metrics or number % every == 0:
                kept = {"history": progress.history, "row": progress.row, "seconds": seconds}
                rounds.keep(number, state, progress=kept)
            rounds.state = state
            _release(managers, progress)
            on_round(number, metrics)
    guard.record_end()
    return progress


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
                about = rounds.resume(published=read_metrics(out / METRICS).last_evaluated)
                progress = Progress(round_number=about.get("round", 0), **about.get("progress", {}))
                more = {"on_round": on_round, "every": execution.checkpoint_every}
                with computing.installed():
                    progress = _trained(prepared, rounds, guard, out, progress, **more)
                    return _write_results(prepared, rounds, progress, out)
            except aggregators.WorkerLostError as error:
                if not restarts:
                    raise
                _LOG.warning("%s It does so now.", error)
                restarts -= 1


def _arrays(model: tff.learning.models.ModelWeights) -> list[np.ndarray]:
    return [np.asarray(weight) for weight in model.trainable]


def _write_results(prepared: PreparedRun, rounds: Rounds, progress: Progress, out: pathlib.Path) -> TrainingResult:
    """Writes model, vocabulary, summary and report of a run, deletes its checkpoints, and returns its result."""
    weights = _arrays(prepared.process.get_model_weights(rounds.state))
    quality = prepared.evaluator.conclude(weights, progress.history)
    content = model_file.content(dict(zip(prepared.language_task.weight_names, weights, strict=True)), {})
    summary = Summary(
        **msgspec.structs.asdict(quality),
        model_sha256=hashlib.sha256(content).hexdigest(),
        parameters=prepared.language_task.parameters,
        dropped_participations=prepared.dropped_participations,
        seconds=progress.seconds,
        tff_mf_version=tff_mf.__version__,
    )
    files.write_atomically(out / VOCABULARY, json.dumps(prepared.vocabulary, ensure_ascii=False) + "\n")
    files.write_atomically(out / MODEL, content)
    files.write_atomically(out / SUMMARY, json.dumps(msgspec.to_builtins(summary), indent=2) + "\n")
    report = reports.write(out, realised=True)
    folders.delete_keys(out)
    return TrainingResult(summary=summary, report=report, history=progress.history, weights=weights)


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
    read; clients that drop out are in it too), `model.safetensors` (the trained model) and
    `vocabulary.json` and `summary.json`. The guarantee covers the models of all rounds;
    it does not cover the evaluation metrics, which are computed without noise on test and validation clients, nor the
    vocabulary, nor the choice of settings. With secret cohorts, nothing that is written depends on them but the models,
    and, until the run has ended, its checkpoints with the secret; how long rounds take is not written either.

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
        named = initial_model_of(settings, begun)
        given = initial_model.read(named, out, settings.vocab_size) if named else None
        key = out / CHECKPOINTS / COHORTS if settings.secret_cohorts else None
        run = read_ledger(out / LEDGER).run if key and has_begun(out / LEDGER) else None
        # Computed again from the noise, it could differ in last bits on another machine.
        rate = begun.server_learning_rate if begun and begun.server_learning_rate else settings.chosen_rate(privacy)
        resolved = settings.resolved(privacy, rate)
        prepared = prepare(resolved, privacy, data, given, key=key, run=run, without_epsilon=without_epsilon)
        # Whatever refuses a new run has done so: from here on its folder has files.
        if not (out / SETTINGS_TOML).exists():
            layers.write(settings, out)
        if prepared.secret is not None and key and run is None:
            checkpoint_files.make_private(key.parent)
            sampling.keep_secret(key, prepared.secret)
        if given:
            given.keep(out)
        cohorts, amplified = prepared.cohorts, None
        if prepared.in_secret is not None:
            # Computed again, a certificate by samples would differ.
            amplified = begun.amplified_epsilon if begun else amplification.stated_epsilon(prepared.in_secret)
        reports.write_record(
            out,
            privacy,
            cohorts=[] if settings.secret_cohorts else [cohorts.cohort(t) for t in range(cohorts.rounds)],
            amplified_epsilon=amplified,
            sampler=settings.sampling_settings().sampler,
            simulation=True,
            population=prepared.population,
            clients_per_person=settings.clients_per_person,
            released_without_noise=[{"name": "metrics of evaluation", "of": prepared.measured_on}],
            evaluation_columns=COLUMNS,
            settings=settings,
            server_learning_rate=rate,
            initial_model=named,
            training_clients=len(cohorts.client_ids),
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
