"""The training program: federated averaging or SGD, momentum on the server, and noise of a mechanism."""

import dataclasses
import pathlib

import tff_mf

from ..output import files
from ..runs import statable
from ..runs.execution import ExecutionSettings
from ..runs.run_record import Resolved, begun_record, initial_model_of, read_record
from ..runs.settings import RunSettings
from . import checkpoints, results
from . import execution as executing
from .preparation import prepare
from .rounds import OnRound

_ON_THIS_MACHINE = ExecutionSettings()

TrainingResult = results.TrainingResult


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

    Files: `metrics.csv` (a row a round), `participation.csv` (round, attempt and client, written before the
    round's model is used; clients that drop out are in it too), `model.safetensors` (the trained model) and
    `vocabulary.json`, `summary.json`, and `tensorboard/` if asked for. The guarantee covers the models of all rounds;
    it does not cover the evaluation metrics, which are computed without noise on test and validation clients, nor the
    vocabulary, nor the choice of settings. With secret cohorts, nothing that is written depends on them but the models,
    and, until the run has ended, its checkpoints with the secret; how long rounds take is not written either.

    Args:
        settings: The settings of the run.
        privacy: The mechanism and its noise.
        data: File in StackOverflow's format.
        out: An existing folder.
        on_round: Called after every round with its number and metrics (empty if not evaluated).
        execution: Where it computes, when it saves checkpoints, and whether it resumes a run that was stopped.
        without_epsilon: Whether to train although no ε can be stated: without noise, with noise that is repeatable,
            with a δ that is too large, or with cohorts that exceed the participation schema.

    Raises:
        InputValueError: If the training clients cannot fill the cohorts, no ε can be stated, there is no such run to
            resume or its files are damaged, or another process is at work in the folder.
        WorkerLostError: If the worker with the server's values dies and no restarts are left.
    """
    with files.alone(out):
        begun = begun_record(out)
        named = initial_model_of(settings, begun)
        given = checkpoints.read(named, out, settings.vocab_size) if named else None
        secret = None
        if settings.secret_cohorts:
            secret = checkpoints.secret_of(out, every=execution.checkpoint_every, resume=execution.resume)
        # Computed again from the noise, it could differ in last bits on another machine.
        rate = begun.resolved.server_learning_rate if begun and begun.resolved else settings.chosen_rate(privacy)
        prepared = prepare(settings.resolved(privacy, rate), privacy, data, given, secret=secret)
        if not without_epsilon:
            statable.check(
                privacy, named, population=prepared.reported_population, observed=prepared.cohorts.observed()
            )
        if given:
            checkpoints.keep(given, out)
        clients = len(prepared.cohorts.client_ids)
        resolved = Resolved(server_learning_rate=rate, initial_model=named, training_clients=clients)
        results.write_plan(prepared, settings, resolved, out)
        run = None if secret is None else secret.run
        rules = read_record(out).rules
        if without_epsilon:
            rules = dataclasses.replace(rules, schema=None)
        trained = executing.train(prepared, out, rules=rules, on_round=on_round, execution=execution, run=run)
        return results.write_results(prepared, trained, out)
