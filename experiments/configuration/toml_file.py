"""The settings of a run as a TOML file: read before a run, and written to its folder so that it can be repeated."""

import pathlib
from collections.abc import Mapping
from typing import Any

from tff_mf.errors import InputTypeError

from ..output import files
from ..run_folder import same_settings
from ..run_folder.names import RUN_JSON, SETTINGS_TOML
from ..run_folder.run_record import read_record
from . import layers, presets
from .grid import AUTO, NONE
from .layers import Layer
from .settings import MEASURING

_KEYS = ("preset", "run")


def resolve(
    preset: str | None,
    config: pathlib.Path | None,
    flags: Mapping[str, Any],
    *,
    folder: presets.PresetFolder = presets.OF_RUNS,
) -> tuple[presets.Preset | None, Layer]:
    """Returns the preset and all values: those of flags over those of the file over those of the preset.

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
        content = layers.read_toml(config)
        layers.check_keys(content, _KEYS, str(config))
        from_file = Layer.of(layers.checked_run(content.get("run", {}), f"{config} [run]", folder.fields), str(config))
        upper = layers.laid([from_file, upper])
        own = preset_name(content, str(config))
        if preset is None and own is not None:
            with layers.sourced({"preset": str(config)}):
                folder.load(own)
        preset = preset or own
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


def preset_name(content: Mapping[str, Any], where: str) -> str | None:
    """Returns the `preset` that a file names, or None.

    Raises:
        InputTypeError: If it is not a string.
    """
    name = content.get("preset")
    if name is not None and not isinstance(name, str):
        raise InputTypeError(f"{where}: preset={name!r} must be a string.")
    return name


def write(layer: Layer, folder: pathlib.Path) -> None:
    """Writes the values of `layer` to `folder`, so that `tff-mf train --config` repeats the run."""
    files.write_atomically(folder / SETTINGS_TOML, as_toml(layer.values))


def check_same(layer: Layer, folder: pathlib.Path) -> None:
    """Raises unless the run in `folder` was started with the values of `layer`.

    Raises:
        InputValueError: If it was started with others.
    """
    path = folder / SETTINGS_TOML
    if not path.is_file():
        return
    begun = layers.read_toml(path).get("run", {})
    if "grid" in layer.values and "grid" not in begun and (folder / RUN_JSON).is_file():
        # Floating point was the default of earlier releases, whose presets named no grid.
        begun["grid"] = NONE if read_record(folder).grid is None else AUTO
    # A preset has settings that a run of an earlier release cannot have begun with; what it stores of itself decides.
    given = {name: value for name, value in layer.values.items() if name in begun or name not in MEASURING}
    same_settings.check_same(given, begun, run=str(folder))


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
