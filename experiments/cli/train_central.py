"""`tff-mf train-central`: one private training on one data set of images."""

import contextlib
import pathlib
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import rich_click as click
from click import get_current_context

from tff_mf.base.errors import InputError

from ..central_training import data_sets, networks
from ..central_training.settings import PRESETS, SAMPLINGS, CentralConfiguration
from ..output import typed
from ..runs import layers, toml_file
from . import _options, _screens

if TYPE_CHECKING:
    from ..central_training.preparation import PreparedTraining

_HELP = {
    "epochs": "Number of epochs, in each of which an example takes part once, or once on average.",
    "batch_size": "Examples in a batch; on average, with --sampling.",
    "dataset": "digits, mnist, cifar10, emnist (downloaded on first use), or synthetic-cifar10:N.",
    "network": "digits, kairouz-small or kairouz-vgg; the data set's own if not given.",
    "mechanism": _options.HELP["mechanism"],
    "buffers": _options.HELP["buffers"],
    "bands": "Bands of an optimized banded kind; as many as an epoch has rounds, or as groups, if not given.",
    "workload": _options.HELP["workload"],
    "sampling": "How batches are drawn, as --sampling of tff-mf train; identity with poisson is DP-SGD.",
    "groups": "Number of groups of examples, with cyclic-poisson, balls-in-bins or shuffled-epochs.",
    "min_sep": "Smallest difference of two rounds of an example, with b-min-sep or spaced-epochs.",
    "epsilon": "ε that the whole training may reach; or give --noise-multiplier.",
    "clip_norm": "Bound on the L2 norm of an example's gradient.",
    "learning_rate": "Learning rate of SGD.",
    "momentum": "Momentum of SGD.",
    "warmup": "Fraction of the rounds over which the learning rate rises.",
    "cooldown": "Fraction of the rounds over which the learning rate falls.",
    "validation_examples": "Training examples that are split off for validation, and not trained on.",
    "seed": "Seed of initial weights and order, never of noise or sampling.",
}
_TYPES = {
    "dataset": _options.Words(data_sets.names),
    "network": _options.Words(networks.NAMES),
    "mechanism": _options.MECHANISM,
    "sampling": _options.Words(SAMPLINGS),
}


@click.command()
@click.option(
    "--preset",
    type=_options.Words(PRESETS.names),
    help="Settings of a paper's experiment on images, which files and flags override; see --show.",
)
@_options.option("config")
@_options.option("show")
@_options.of_fields(CentralConfiguration, helps=_HELP, types=_TYPES)
@_options.option("without_epsilon")
@_options.option("resume")
@click.option(
    "--out",
    metavar="FOLDER",
    default="runs/train-central",
    show_default=True,
    help="Folder of the run's files; must be new or empty.",
)
@_options.as_json
def train_central(
    preset: str | None,
    config: str | None,
    show: bool,
    without_epsilon: bool,
    resume: bool,
    out: str,
    as_json: bool,
    **flags: Any,
) -> None:
    """Train a network on images, each of which is protected, with a mechanism's noise.

    Gradients are clipped example by example, and SGD takes steps by their noised mean. Batches are in a fixed order, or
    sampled in secret, which amplifies privacy. At the end accuracy and the guarantee are printed; files are in --out.
    """
    from ..central_training import program

    file = None if config is None else pathlib.Path(config)
    chosen, layer = toml_file.resolve(preset, file, flags, folder=PRESETS)
    get_current_context().with_resource(layers.sourced(toml_file.origins(chosen, layer, file)))
    if show:
        if (whole := layers.if_whole(layer, CentralConfiguration)) is not None:
            whole.check()
        _screens.settings(chosen, layer, layers.shown(layer, CentralConfiguration), as_json=as_json)
        return
    folder, layer = pathlib.Path(out), toml_file.placed(layer, ("mechanism",))
    if resume:
        layer = toml_file.begun(layer, program.resumable(folder), CentralConfiguration)
    configuration = typed.convert(layer.values, CentralConfiguration)
    configuration.check()
    if not without_epsilon:
        configuration.check_statable()
    from tff_mf.base import required_packages

    required_packages.packages("Central training", "tensorflow", "tensorflow_privacy")
    from ..central_training import preparation
    from ..output import progress
    from ..runs import folders, metrics

    if not resume:
        program.check_new(folder)
    # A mechanism that differed in its last digit, or σ, could not continue the noise of the first.
    mechanism = folders.begun_mechanism(folder) if resume else None
    sigma = program.begun_noise_multiplier(folder) if resume else None
    with _unless_refused(folder):
        mechanism = mechanism or configuration.build_mechanism()
        more = {"noise_multiplier": sigma, "without_epsilon": without_epsilon}
        prepared = preparation.prepare(configuration, mechanism, **more)
        data = configuration.source.split(configuration.validation_examples)
    _begin(layer, folder, prepared, resume=resume)
    if chosen and chosen.notes:
        click.echo(f"{chosen.name}: {chosen.notes}", err=True)
    with progress.rounds(configuration.epochs, configuration.dataset, "epoch") as on_round:

        def on_epoch(epoch: int, found: Mapping[str, float]) -> None:
            on_round(epoch, {metrics.ACCURACY: found["accuracy"]} if found else {})

        summary = program.run(prepared, data, folder, on_epoch)
    _report(summary, folder, as_json=as_json)


@contextlib.contextmanager
def _unless_refused(folder: pathlib.Path) -> Iterator[None]:
    """Makes the folder of a run, and removes it again if the block refuses the run."""
    from ..output import files

    new = [path for path in (folder, *folder.parents) if not path.exists()]
    files.make_writable(folder)
    try:
        yield
    except InputError:
        for path in new:
            path.rmdir()
        raise


def _begin(layer: layers.Layer, folder: pathlib.Path, prepared: "PreparedTraining", *, resume: bool) -> None:
    """Writes the settings, the mechanism and the σ of a run, unless they are there."""
    from ..central_training import program
    from ..output import files
    from ..runs import folders, names

    with files.alone(folder):
        if not resume:
            folders.check_new(folder)
        program.keep(prepared, folder)
        if not (folder / names.SETTINGS_TOML).exists():
            toml_file.write(layer, folder, CentralConfiguration)


def _report(summary: Mapping[str, Any], folder: pathlib.Path, *, as_json: bool) -> None:
    if as_json:
        _screens.report(summary, as_json=True)
        return
    accuracy = summary["test_accuracy"]
    shown = "none, the model diverged" if accuracy is None else f"{100 * accuracy:.2f} %"
    _screens.paragraphs(
        f"accuracy {shown}, {summary['test_examples']} test examples",
        summary["statement"],
        " ".join(summary["not_covered"]),
        f"files: {folder}",
    )
