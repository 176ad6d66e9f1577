"""The settings of a run as a TOML file: read before a run, and written to its folder so that it can be repeated."""

import dataclasses
import os
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any, Generic, TypeVar

import msgspec

from tff_mf.base.errors import InputValueError
from tff_mf.planning import mechanism_names

from ..datasets import named_data
from ..output import files, typed
from ..output.typed import Record
from ..run_folder import run_record
from ..run_folder.initial_model import InitialModel, of_settings
from ..run_folder.names import RUN_JSON, SETTINGS_TOML
from ..run_folder.same_settings import check_same
from . import layers, presets
from .layers import Layer
from .run import PROPOSED, RunConfiguration
from .settings import of_run

_Run = TypeVar("_Run")


class _File(Record, Generic[_Run]):
    """The settings of a run, and the name of the preset that they are laid over."""

    run: _Run | None = None
    preset: str | None = None


def resolve(
    preset: str | None,
    config: pathlib.Path | None,
    flags: Mapping[str, Any],
    *,
    folder: presets.PresetFolder = presets.OF_RUNS,
) -> tuple[presets.Preset | None, Layer]:
    """Returns the preset and all values: flags go before the file, and the file before the preset.

    Args:
        preset: Name of a preset; it comes before the one that the file names.
        config: A TOML file with a `[run]` table and, if need be, the name of a `preset`.
        flags: Values of flags; None where a flag was not given.
        folder: The presets, all of the kind of configuration that is resolved.

    Raises:
        InputError: If the preset or the file is invalid.
    """
    upper = Layer.of({name: value for name, value in flags.items() if value is not None}, layers.FLAG)
    if config is not None:
        content = typed.convert(layers.read_toml(config), typed.file_of(_File, folder.kind), str(config))
        upper = layers.laid([Layer.of(typed.given(content.run), str(config)), upper])
        if preset is None and content.preset is not None:
            with layers.sourced({"preset": str(config)}):
                folder.load(content.preset)
        preset = preset or content.preset
    if preset is None:
        return None, upper
    chosen = folder.load(preset)
    return chosen, chosen.over(upper)


def origins(chosen: presets.Preset | None, layer: Layer, config: pathlib.Path | None) -> dict[str, str]:
    """Returns where each value of `layer` is from, as an error names it: a flag, the file `config`, or the preset."""
    own = (layers.FLAG, str(config))
    return {
        name: source if source in own or chosen is None else f"preset {chosen.name}, {source}"
        for name, source in layer.sources.items()
    }


def write(layer: Layer, folder: pathlib.Path, kind: type[Record] = RunConfiguration) -> None:
    """Writes all settings of a run to `folder`, so that `tff-mf train --config` repeats it, whatever the defaults are.

    Args:
        layer: The values that were given; the others are defaults.
        folder: The folder.
        kind: The class of the configuration.
    """
    files.write_atomically(folder / SETTINGS_TOML, as_toml(layers.whole(layer, kind)))


def begun(layer: Layer, folder: pathlib.Path, kind: type[Record] = RunConfiguration) -> Layer:
    """Returns all settings that the run in `folder` began with, for a run that is resumed with the values of `layer`.

    Raises:
        InputError: If a value is not the one that it began with, or its settings are missing or damaged.
    """
    path = folder / SETTINGS_TOML
    if not path.is_file():
        if (folder / RUN_JSON).is_file():
            raise InputValueError(f"out={str(folder)!r} lacks {SETTINGS_TOML}, the settings of its run: restore it.")
        return layer
    values = typed.given(typed.convert(layers.read_toml(path), typed.file_of(_File, kind), str(path)).run)
    check_same(layer.values, {name: values.get(name) for name in layer.values}, run=str(folder))
    return Layer.of(values, str(path))


def as_begun(configuration: RunConfiguration, folder: pathlib.Path) -> RunConfiguration:
    """Returns the configuration of a run with the σ and the server's learning rate that it began with.

    Computed again from ε and from the noise, both could differ in last bits on another machine.

    Formal guarantee: σ is the one in `run.json`, whose ε the reports of the run state.

    Args:
        configuration: The settings that the run was begun with.
        folder: Its folder.

    Raises:
        InputValueError: If `run.json` is damaged.
    """
    if not (folder / RUN_JSON).is_file():
        return configuration
    begun = run_record.read_record(folder)
    if configuration.epsilon is not None:
        configuration = msgspec.structs.replace(configuration, epsilon=None, noise_multiplier=begun.noise_multiplier)
    if configuration.server_learning_rate == PROPOSED:
        rate = of_run(begun.settings).server_learning_rate
        configuration = msgspec.structs.replace(configuration, server_learning_rate=rate)
    return configuration


def begun_model(folder: pathlib.Path) -> InitialModel | None:
    """Returns the initial model that a run began with; `None` if it has none, or has not begun.

    Raises:
        InputValueError: If `run.json` is damaged.
    """
    return of_settings(run_record.read_record(folder).settings) if (folder / RUN_JSON).is_file() else None


def placed(layer: Layer, fields: Sequence[str] = ("mechanism", "dataset", "initial_model")) -> Layer:
    """Returns a layer whose files have absolute paths, so that it means the same in every folder.

    Args:
        layer: The values.
        fields: The fields whose values are files unless they are known names.
    """
    names = {*mechanism_names.names(), *mechanism_names.production(), *named_data.EMBEDDED}
    given = {name: layer.values[name] for name in fields if layer.values.get(name) is not None}
    # What is no file is refused later, as it was typed.
    placed = {name: _absolute(value) for name, value in given.items() if value not in names}
    files = {name: value for name, value in placed.items() if os.path.exists(value.removeprefix(named_data.SQLITE))}
    return dataclasses.replace(layer, values={**layer.values, **files})


def _absolute(value: str) -> str:
    prefix = named_data.SQLITE if value.startswith(named_data.SQLITE) else ""
    return prefix + os.path.abspath(value.removeprefix(prefix))


def as_toml(values: Mapping[str, Any]) -> str:
    """Returns a `[run]` table with `values`.

    Example:
        >>> print(as_toml({"rounds": 8, "dataset": "pydoc"}), end="")
        [run]
        rounds = 8
        dataset = "pydoc"
    """
    return "[run]\n" + "".join(f"{name} = {_literal(value)}\n" for name, value in values.items())


def _literal(value: Any) -> str:
    if isinstance(value, str):
        escaped = value.replace("\\", "\\\\").replace('"', '\\"')
        return f'"{escaped}"'
    if isinstance(value, bool):
        return str(value).lower()
    return repr(value)
