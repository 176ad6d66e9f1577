"""`tff-mf train` and `tff-mf train-central`: one private training run, of clients, or of examples of images."""

import dataclasses
import logging
import pathlib
from collections.abc import Mapping
from typing import Any

import msgspec
import rich_click as click

import tff_mf
from tff_mf.base import required_packages

from .. import central
from ..data import check_dataset, data_file
from ..output import console, typed
from ..output.console import Block, Facts
from ..runs import folders, signal_to_noise, statements
from ..runs.folders import ExecutionSettings
from ..runs.results import ACCURACY, Summary
from ..runs.settings import RunSettings, resolve
from . import _options, _screens
from ._screens import Answer

# Fields of a run that have options of their own; --set gives the others.
_OPTIONS = (
    *("dataset", "mechanism", "rounds", "clients_per_round", "sampling", "min_sep", "max_participations"),
    *("secret_cohorts", "epsilon", "noise_multiplier", "delta"),
)
# What else --set gives: how the run is executed, and a seed of the noise, with which there is no privacy.
_EXECUTION = ("checkpoint_every", "clients_at_once")


@_options.command
@_options.of_training(RunSettings, *_OPTIONS, more=(*_EXECUTION, "insecure_seed"))
@click.option("--force", is_flag=True, help="Train although the noise drowns what the run could learn.")
def train(
    preset: str | None,
    config: str | None,
    show: bool,
    without_epsilon: bool,
    force: bool,
    resume: bool,
    out: str | None,
    insecure_seed: int | None = None,
    **flags: Any,
) -> Answer:
    """Train a next-word model with federated averaging and a mechanism's noise.

    Clients run SGD, the server SGD with momentum on the noised mean of their clipped updates. With --set
    algorithm=fed-sgd clients send one gradient each: FedSGD with momentum.
    At the end accuracy and the guarantee are printed, and what ran is in the files of --out, runs/train if not given.

    --show explains each setting. --set also takes checkpoint_every, the rounds between checkpoints (25);
    clients_at_once, the clients that TFF's worker trains at the same time (as many as this machine has cores); and
    insecure_seed, a seed of the noise: TEST ONLY, there is no privacy then.
    """
    execution = ExecutionSettings(resume=resume, **{name: flags.pop(name) for name in _EXECUTION if name in flags})
    chosen, layer = resolve(preset, config, flags)
    if show:
        return _screens.settings(chosen, layer, RunSettings)
    # First, so that nobody looks for settings that this environment cannot use.
    required_packages.packages("Training", "tensorflow", "tensorflow_privacy", "tensorflow_federated")
    path, layer = pathlib.Path(out or "runs/train"), layer.placed()
    if resume:
        layer = layer.resumed(folders.resumable_folder(path), RunSettings)
    settings = layer.settings()
    privacy = _planned(settings, path, insecure_seed, resume=resume, without_epsilon=without_epsilon)
    if chosen and chosen.notes:
        # Printed after everything that can be refused quickly: a refusal is one line.
        click.echo(f"{chosen.name}: {chosen.notes}", err=True)
    signal = signal_to_noise.of_plan(privacy, settings.dimension)
    click.echo(signal_to_noise.warning(signal), err=True)
    if signal.hopeless and not (force or resume):
        click.echo("Continue anyway with --force.", err=True)
        raise SystemExit(1)
    data = data_file(settings.dataset)
    with console.rounds(settings.rounds, pathlib.Path(settings.mechanism).stem) as on_round:
        # In seconds, in which the bar is there.
        from ... import aggregators
        from ...aggregators.resident.worker import cores
        from .. import train as training

        console.say(f"clients of a round at once: {execution.clients_at_once or cores()}")
        more = {"data": data, "out": path, "on_round": on_round, "execution": execution}
        try:
            result = training.run(settings, privacy, without_epsilon=without_epsilon, **more)
        except aggregators.WorkerLostError as error:
            raise SystemExit(f"tff-mf: {error} (--resume)") from None
    claim, schema = result.report.claim, privacy.participation
    facts = {
        **msgspec.to_builtins(result.summary),
        "min_sep": schema.min_sep,
        "max_participations": schema.max_participations,
        "claim": msgspec.to_builtins(claim),
        "signal": dataclasses.asdict(signal),
    }
    return Answer(facts, _words(result.summary, claim, schema, path))


def _planned(
    settings: RunSettings, folder: pathlib.Path, insecure_seed: int | None, *, resume: bool, without_epsilon: bool
) -> tff_mf.Plan:
    """Returns the privacy plan of a run; what can be refused is, before a mechanism is optimized."""
    begun = folders.begun_record(folder) if resume else None
    if not without_epsilon:
        statements.check_asked(noise_multiplier=settings.noise_multiplier, insecure_seed=insecure_seed)
    check_dataset(settings.dataset)
    if not resume:
        settings.check()
        folders.check_new(folder)
    if begun is not None:
        # A mechanism, or σ, that differed in its last digit could not continue the noise of the first.
        privacy = dataclasses.replace(begun.plan, insecure_seed=insecure_seed)
    else:
        mechanism = folders.begun_mechanism(folder) if resume else None
        privacy = settings.privacy_plan(mechanism or settings.build_mechanism(), insecure_seed)
    # Refused here if there is no noise to propose it from.
    settings.chosen_rate(privacy)
    if not without_epsilon:
        statements.check_statable(privacy)
    return privacy


def _words(
    summary: Summary, claim: statements.Claim, schema: tff_mf.Participation, folder: pathlib.Path
) -> list[Block]:
    """Returns what a run reached, and what it guarantees."""
    b, k = schema.min_sep, schema.max_participations
    contract = "one round of a client at most" if k == 1 else f"at most {k} rounds of a client, {b} or more apart"
    reached = (summary.accuracy, summary.validation_accuracy, summary.baseline_accuracy)
    accuracy, validation, baseline = (f"{100 * each:.1f} %" for each in reached)
    rows = {
        "Accuracy": (
            f"{accuracy} test ({summary.test_sentences:,} sentences); {validation} validation "
            f"({summary.validation_sentences:,}, {summary.validation_split} clients); "
            f"always the most frequent word: {baseline}"
        ),
        "Privacy": statements.line(claim),
        "Not checked": "; ".join(claim.not_checked),
        "Contract": f"{contract}: kept, by the log",
        "Files": str(folder),
    }
    return [Facts([*rows.items()])]


@_options.command
@_options.of_training(central.CentralSettings, "mechanism", "epochs", "epsilon", "noise_multiplier", "delta")
def train_central(
    preset: str | None,
    config: str | None,
    show: bool,
    without_epsilon: bool,
    resume: bool,
    out: str | None,
    **flags: Any,
) -> Answer:
    """Train a network on images, each of which is protected, with a mechanism's noise.

    Gradients are clipped example by example, and SGD takes steps by their noised mean. Batches are in a fixed order, or
    sampled in secret, which amplifies privacy. At the end accuracy and the guarantee are printed; files are in --out,
    runs/train-central if not given.
    """
    chosen, layer = resolve(preset, config, flags, folder=central.PRESETS)
    if show:
        return _screens.settings(chosen, layer, central.CentralSettings)
    required_packages.packages("Central training", "tensorflow", "tensorflow_privacy")
    # It warns of operations that are slow in its own way of computing gradients one by one.
    logging.getLogger("tensorflow").setLevel(logging.ERROR)
    folder, layer = pathlib.Path(out or "runs/train-central"), layer.placed(("mechanism",))
    if resume:
        layer = layer.resumed(folders.resumable_folder(folder), central.CentralSettings)
    else:
        folders.check_new(folder)
    settings = typed.convert(layer.values, central.CentralSettings)
    plan = central.plan_of_run(settings, folder, resume=resume, without_epsilon=without_epsilon)
    data = central.split(settings.dataset, settings.validation_examples)
    if chosen and chosen.notes and not resume:
        click.echo(f"{chosen.name}: {chosen.notes}", err=True)
    with console.rounds(settings.epochs, settings.dataset, "epoch") as on_round:

        def on_epoch(epoch: int, measured: Mapping[str, float]) -> None:
            on_round(epoch, {ACCURACY: measured["accuracy"]} if measured else {})

        summary = central.train(settings, plan, data, folder, on_epoch, resume=resume)
    return Answer(msgspec.to_builtins(summary), _central_words(summary, folder))


def _central_words(summary: central.CentralSummary, folder: pathlib.Path) -> list[Block]:
    accuracy, b, k = summary.test_accuracy, summary.min_sep, summary.max_participations
    about = {"delta": summary.delta, "adjacency": summary.adjacency, "rounds": summary.rounds}
    privacy, if_known = statements.stated(summary.epsilon, "example", **about), ""
    if summary.reasons:
        privacy = f"{statements.NO_EPSILON}: {summary.reasons[0].text}"
    elif summary.amplified:
        if_known = statements.stated(summary.epsilon_if_batches_are_known, "example", **about)
    shown = "none, the model diverged" if accuracy is None else f"{100 * accuracy:.2f} % test"
    rows = {
        "Accuracy": f"{shown} ({summary.test_examples:,} examples)",
        "Privacy": privacy,
        "If batches are known": if_known,
        "Contract": f"at most {k} rounds of an example, {b} or more apart",
        "Not covered": "the choice of settings by earlier runs; validation and test examples, whose accuracy is exact",
        "Files": str(folder),
    }
    return [Facts([*rows.items()])]
