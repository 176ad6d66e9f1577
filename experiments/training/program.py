"""The training program: it prepares a run, trains, and writes the files of its end."""

import dataclasses
import hashlib
import json
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import numpy as np

import tff_mf
from tff_mf.base import checkpoint_files

from .. import reports
from ..output import files
from ..runs import amplification, folders, initial_model, layers, model_file, statements
from ..runs.folders import ExecutionSettings, versions
from ..runs.ledger import has_begun, read_ledger
from ..runs.names import CHECKPOINTS, COHORTS, LEDGER, MODEL, SETTINGS_TOML, SUMMARY, VOCABULARY
from ..runs.run_record import begun_record, initial_model_of
from ..runs.settings import RunSettings
from ..runs.summary import Summary
from ..sampling import keep_secret
from . import rounds
from .preparation import PreparedRun, prepare
from .rounds import OnRound, TrainedRun
from .task import METRICS

_ON_THIS_MACHINE = ExecutionSettings()


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainingResult:
    """The result of a run that has ended.

    Attributes:
        summary: How good the final model is, and what it took.
        report: The facts of the report.
        history: Metrics of each evaluated round.
        weights: The trained model's parameters.
    """

    summary: Summary
    report: Mapping[str, Any]
    history: Sequence[Mapping[str, float]]
    weights: list[np.ndarray]

    @property
    def claim(self) -> statements.Claim:
        """The claim of the report."""
        return statements.of_facts(self.report["claim"])

    @property
    def statement(self) -> str:
        """The guarantee in one line: the headline of the report."""
        return reports.headline(self.report)

    @property
    def holds(self) -> bool:
        """Whether participation was as it was accounted for, as far as the log shows it."""
        participation = next(check for check in self.report["checks"] if check["name"] == "participation")
        return participation["state"] != reports.VIOLATED


def write_results(prepared: PreparedRun, trained: TrainedRun, out: pathlib.Path) -> TrainingResult:
    """Writes model, vocabulary, summary and report of a run, deletes its checkpoints, and returns its result."""
    model = model_file.content(dict(zip(prepared.language_task.weight_names, trained.weights, strict=True)), {})
    summary = Summary(
        **msgspec.structs.asdict(trained.quality),
        model_sha256=hashlib.sha256(model).hexdigest(),
        parameters=prepared.language_task.parameters,
        dropped_participations=prepared.dropped_participations,
        seconds=trained.progress.seconds,
        tff_mf_version=tff_mf.__version__,
    )
    files.write_atomically(out / VOCABULARY, json.dumps(prepared.vocabulary, ensure_ascii=False) + "\n")
    files.write_atomically(out / MODEL, model)
    files.write_atomically(out / SUMMARY, json.dumps(msgspec.to_builtins(summary), indent=2) + "\n")
    report = reports.write(out, realised=True)
    trained.saved.finish()
    return TrainingResult(summary=summary, report=report, history=trained.progress.history, weights=trained.weights)


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
    `vocabulary.json`, `summary.json`, and `tensorboard/` if asked for. The guarantee covers the models of all rounds;
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
            keep_secret(key, prepared.secret)
        if given:
            given.keep(out)
        cohorts, amplified = prepared.cohorts, None
        if prepared.in_secret is not None:
            # Computed again, a certificate by samples would differ.
            amplified = begun.amplified_epsilon if begun else amplification.stated_epsilon(prepared.in_secret)
        record = reports.write_record(
            out,
            privacy,
            cohorts=[] if settings.secret_cohorts else [cohorts.cohort(t) for t in range(cohorts.rounds)],
            amplified_epsilon=amplified,
            sampler=settings.sampling_settings().sampler,
            simulation=True,
            population=prepared.population,
            clients_per_person=settings.clients_per_person,
            released_without_noise=[{"name": "metrics of evaluation", "of": prepared.measured_on}],
            evaluation_columns=METRICS,
            settings=settings,
            server_learning_rate=rate,
            initial_model=named,
            training_clients=len(cohorts.client_ids),
            versions=versions(),
        )
        reports.write(out, realised=False)
        run, rules = None if prepared.secret is None else prepared.secret.run, record.rules
        if without_epsilon:
            rules = dataclasses.replace(rules, schema=None)
        trained = rounds.train(prepared, out, rules=rules, on_round=on_round, execution=execution, run=run)
        return write_results(prepared, trained, out)
