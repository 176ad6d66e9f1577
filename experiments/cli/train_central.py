"""`tff-mf train-central`: one private training on one data set of images."""

import logging
import pathlib
from collections.abc import Mapping
from typing import Any

import msgspec
import rich_click as click

from tff_mf.base import required_packages

from .. import central
from ..central import PRESETS, CentralSettings
from ..output import typed
from ..output.console import Block, Facts
from ..runs import statements
from ..runs.settings import resolve
from . import _options, _screens
from ._screens import Answer


@_options.command
@_options.option("preset")
@_options.option("config")
@_options.option("show")
@_options.of_record(CentralSettings, "mechanism", "epochs", "epsilon", "noise_multiplier", "delta")
@_options.option("without_epsilon")
@_options.option("resume")
@_options.option("out")
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
    file = None if config is None else pathlib.Path(config)
    chosen, layer = resolve(preset, file, flags, folder=PRESETS)
    if show:
        return _screens.settings(chosen, layer, CentralSettings)
    required_packages.packages("Central training", "tensorflow", "tensorflow_privacy")
    # It warns of operations that are slow in its own way of computing gradients one by one.
    logging.getLogger("tensorflow").setLevel(logging.ERROR)
    folder, layer = pathlib.Path(out or "runs/train-central"), layer.placed(("mechanism",))
    from ..output import console
    from ..runs import folders, results

    if resume:
        layer = layer.resumed(folders.resumable_folder(folder), CentralSettings)
    else:
        folders.check_new(folder)
    settings = typed.convert(layer.values, CentralSettings)
    plan = central.plan_of_run(settings, folder, resume=resume, without_epsilon=without_epsilon)
    data = central.split(settings.dataset, settings.validation_examples)
    if chosen and chosen.notes and not resume:
        click.echo(f"{chosen.name}: {chosen.notes}", err=True)
    with console.rounds(settings.epochs, settings.dataset, "epoch") as on_round:

        def on_epoch(epoch: int, measured: Mapping[str, float]) -> None:
            on_round(epoch, {results.ACCURACY: measured["accuracy"]} if measured else {})

        summary = central.train(settings, plan, data, folder, on_epoch, resume=resume)
    return Answer(msgspec.to_builtins(summary), _words(summary, folder))


def _words(summary: central.CentralSummary, folder: pathlib.Path) -> list[Block]:
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
