"""The settings of a run as a TOML file: read before a run, and written to its folder so that it can be repeated."""

import dataclasses
import os
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any, Generic, TypeVar

from tff_mf.base.errors import InputValueError
from tff_mf.planning import mechanism_names

from ..output import files, typed
from ..output.typed import Record
from . import layers, presets
from .folders import EMBEDDED, SQLITE
from .layers import Layer
from .names import RUN_JSON, SETTINGS_TOML
from .rules import check_same
from .settings import FILES, RunSettings

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


def write(layer: Layer, folder: pathlib.Path, kind: type[Record] = RunSettings) -> None:
    """Writes all settings of a run to `folder`, so that `tff-mf train --config` repeats it, whatever the defaults are.

    Args:
        layer: The values that were given; the others are defaults.
        folder: The folder.
        kind: The class of the configuration.
    """
    files.write_atomically(folder / SETTINGS_TOML, as_toml(layers.whole(layer, kind)))


def begun(layer: Layer, folder: pathlib.Path, kind: type[Record] = RunSettings) -> Layer:
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


def placed(layer: Layer, fields: Sequence[str] = FILES) -> Layer:
    """Returns a layer whose files have absolute paths, so that it means the same in every folder.

    Args:
        layer: The values.
        fields: The fields whose values are files unless they are known names.
    """
    names = {*mechanism_names.names(), *mechanism_names.production(), *EMBEDDED}
    given = {name: layer.values[name] for name in fields if isinstance(layer.values.get(name), str)}
    # What is no file is refused later, as it was typed.
    placed = {name: _absolute(value) for name, value in given.items() if value not in names}
    files = {name: value for name, value in placed.items() if os.path.exists(value.removeprefix(SQLITE))}
    return dataclasses.replace(layer, values={**layer.values, **files})


def _absolute(value: str) -> str:
    prefix = SQLITE if value.startswith(SQLITE) else ""
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
