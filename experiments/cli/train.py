"""`tff-mf train`: one private training run."""

import pathlib
from typing import TYPE_CHECKING, Any

import click

from ..configuration import layers, presets
from . import _options, _train_options, _types

if TYPE_CHECKING:
    from ..privacy.plan import PrivacyPlan

# Of the values that the column of values is made for.
_LONGEST_VALUE = 16


@click.command()
@click.option(
    "--preset", type=_types.PRESET, help="Settings of a paper's experiment, which files and flags override; see --show."
)
@click.option(
    "--config",
    type=click.Path(),
    metavar="FILE",
    help="TOML file with a [run] table of settings, and `preset` if need be.",
)
@click.option("--show", is_flag=True, help="Print all settings and where each is from, and do not train.")
@_train_options.flags
@click.option("--tensorboard", is_flag=True, help="Write metrics for TensorBoard too.")
@click.option("--insecure-seed", type=int, help="Seed of the noise: TEST ONLY, a run with it has no privacy.")
@click.option(
    "--checkpoint-every", type=int, default=25, show_default=True, help="Rounds between checkpoints; 0: none."
)
@click.option("--resume", is_flag=True, help="Go on with the run in --out, with the options that it was started with.")
@click.option(
    "--workers",
    metavar="HOST:PORT[,…]",
    default="",
    help="Addresses of running workers, host:port or unix:/path, with commas between them.",
)
@click.option("--restarts", type=int, default=0, help="How often to go on by itself when a worker dies.")
@click.option(
    "--out",
    metavar="FOLDER",
    default="runs/train",
    show_default=True,
    help="Folder of the run's files; must be new or empty.",
)
@_options.as_json
def train(
    preset: str | None,
    config: str | None,
    show: bool,
    tensorboard: bool,
    insecure_seed: int | None,
    checkpoint_every: int,
    resume: bool,
    workers: str,
    restarts: int,
    out: str,
    as_json: bool,
    **flags: Any,
) -> None:
    """Train a next-word model with federated averaging and a mechanism's noise.

    Clients run SGD, the server SGD with momentum on the noised mean of their clipped updates. With --algorithm fed_sgd
    clients send one gradient each: FedSGD with momentum.
    At the end accuracy and the guarantee are printed, and what ran is in the files of --out.
    """
    from ..configuration import toml_file

    file = None if config is None else pathlib.Path(config)
    chosen, layer = toml_file.resolve(preset, file, flags)
    click.get_current_context().with_resource(layers.sourced(toml_file.origins(chosen, layer, file)))
    if show:
        _show(chosen, layer, as_json=as_json)
        return
    configuration = layers.configuration(layer)
    from tff_mf import _requires

    _requires.packages("Training", "tensorflow", "tensorflow_privacy", "tensorflow_federated")
    from ..configuration import settings
    from ..datasets import named_data
    from ..output import files, progress
    from ..planning import signal_to_noise
    from ..run_folder import folders

    execution = settings.ExecutionSettings(
        checkpoint_every=checkpoint_every, resume=resume, workers=_addresses(workers), restarts=restarts
    )
    if resume:
        configuration.training_settings()
    else:
        configuration.check()
    path = pathlib.Path(out)
    # A mechanism that differed in its last digit could not go on with the noise of the first.
    mechanism = folders.begun_mechanism(folders.resumable_folder(path)) if resume else None
    privacy = configuration.privacy_plan(mechanism or configuration.build_mechanism(), insecure_seed)
    chosen_settings = configuration.training_settings(configuration.chosen_rate(privacy), tensorboard=tensorboard)
    named_data.check_dataset(configuration.dataset)
    if not resume:
        # First: what would be refused must not wait for a data set.
        folders.check_new(files.made_folder(path))
    if chosen and chosen.notes:
        # After all that can be refused at once, which takes one line.
        click.echo(f"{chosen.name}: {chosen.notes}", err=True)
    data = named_data.data_file(configuration.dataset)
    _begin(layer, path, privacy, resume=resume)
    signal = signal_to_noise.of_run(
        privacy,
        chosen_settings.model,
        clip_norm=chosen_settings.clip_norm,
        server_learning_rate=chosen_settings.server_learning_rate,
        server_momentum=chosen_settings.server_momentum,
    )
    progress.say(f"train: {signal_to_noise.one_line(signal)}")

    from ... import aggregators
    from ..training import program

    try:
        with progress.rounds(configuration.rounds, pathlib.Path(configuration.mechanism).stem) as on_round:
            result = program.run(chosen_settings, privacy, data=data, out=path, on_round=on_round, execution=execution)
    except aggregators.WorkerLostError as error:
        raise SystemExit(f"tff-mf: {error} (--resume)") from None
    if as_json:
        _options.report({**result.summary, "signal": signal.as_dict()}, as_json=True)
    else:
        accuracy = f"accuracy {100 * result.summary['accuracy']:.2f} %, known words of test clients"
        _options.paragraphs(accuracy, result.statement, result.summary["amplified_statement"], f"files: {path}")
    if not result.holds:
        raise SystemExit(1)


def _addresses(workers: str) -> tuple[str, ...]:
    """Returns the addresses in a list with commas."""
    return tuple(address.strip() for address in workers.split(",") if address.strip())


def _begin(layer: layers.Layer, folder: pathlib.Path, privacy: "PrivacyPlan", *, resume: bool) -> None:
    """Writes what a run is set to do, or checks that one that goes on was begun with the same."""
    from ..configuration import toml_file
    from ..output import locks
    from ..run_folder import folders

    if resume:
        toml_file.check_same(layer, folder)
        return
    with locks.alone(folder):
        folders.check_new(folder)
        folders.keep_mechanism(folder, privacy.mechanism)
        toml_file.write(layer, folder)


def _show(preset: presets.Preset | None, layer: layers.Layer, *, as_json: bool) -> None:
    shown = layers.shown(layer)
    row = preset.row(layer.values) if preset else None
    if as_json:
        about = {"preset": preset.name, "title": preset.title, "paper": preset.paper} if preset else {}
        published = {"published": dict(row.published)} if row else {}
        notes = {"notes": preset.notes} if preset else {}
        _options.report({**about, **notes, **published, "run": shown}, as_json=True)
        return
    if preset:
        published = ""
        if row and row.published:
            results = ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in row.published.items())
            published = f"published ({row.source}): {results}"
        _options.paragraphs(f"{preset.name}: {preset.title}. {preset.paper}.", preset.notes, published)
        click.echo()
    values = {name: "–" if entry["value"] is None else str(entry["value"]) for name, entry in shown.items()}
    names, column = max(map(len, values)), max(len(value) for value in values.values() if len(value) <= _LONGEST_VALUE)
    rows = []
    for name, value in values.items():
        own, before = (value, "") if len(value) <= _LONGEST_VALUE else ("", f"{value}  ")
        rows.append((f"{name:{names}}  {own:{column}}", f"{before}{shown[name]['source']}"))
    _options.show(rows)
