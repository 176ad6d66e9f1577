"""The grids of a specification: each point with the preset, the label and the published results that it has."""

import dataclasses
import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from tff_mf.errors import InputTypeError, InputValueError

from ..configuration import layers, presets, toml_file
from ..configuration.layers import Layer
from ..configuration.presets import Preset
from ..configuration.run import FIELDS, checked_value

# A small file can ask for more runs than fit in memory.
MOST_RUNS = 10_000
_OWN_KEYS = ("preset", "label", "optimize", "published", "source")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Point:
    """A combination of a grid's values, over its preset and the settings that all runs share.

    Attributes:
        layer: The settings of the run.
        preset: The preset of its grid, or that of the specification.
        label: Name of its mechanism in the table, or None for one made from the settings.
        optimize: Settings that differ while its mechanism is optimized.
        published: Results of the paper for it.
    """

    layer: Layer
    preset: Preset | None
    label: str | None
    optimize: Mapping[str, Any]
    published: Mapping[str, Any]


def points(content: Mapping[str, Any], where: str) -> Iterable[Point]:
    """Yields the points of a specification, grid after grid.

    Args:
        content: The tables of the file.
        where: The file, for messages.

    Raises:
        InputError: If a grid is wrong.
    """
    shared = Layer.of(layers.checked_run(content.get("run", {}), f"{where} [run]"), where)
    common = toml_file.preset_name(content, where)
    _load(common, where)
    for grid in _tables(content, where):
        own = {key: grid[key] for key in _OWN_KEYS if key in grid}
        _check_own(own, where)
        preset = _load(toml_file.preset_name(own, where) or common, where)
        for values in _combinations({key: value for key, value in grid.items() if key not in own}, f"{where} [[grid]]"):
            upper = layers.laid([shared, Layer.of(values, where)])
            layer = preset.over(upper) if preset else upper
            row = preset.row(layer.values) if preset else None
            yield Point(
                layer=layer,
                preset=preset,
                label=own.get("label"),
                optimize=layers.checked_run(own.get("optimize", {}), f"{where} [[grid]] optimize"),
                published=own.get("published", row.published if row else {}),
            )


def _load(name: str | None, where: str) -> Preset | None:
    with layers.sourced({"preset": where}):
        return None if name is None else presets.load(name)


def _tables(content: Mapping[str, Any], where: str) -> Sequence[Mapping[str, Any]]:
    grids = content.get("grid", [{}])
    if not isinstance(grids, list) or not grids:
        raise InputTypeError(f"{where}: grid={grids!r} must be tables, each written [[grid]].")
    for grid in grids:
        layers.check_keys(layers.checked_table(grid, f"{where} [[grid]]"), (*FIELDS, *_OWN_KEYS), f"{where} [[grid]]")
    return grids


def _check_own(own: Mapping[str, Any], where: str) -> None:
    for key in ("label", "source"):
        if not isinstance(own.get(key, ""), str) or own.get(key, "-") == "":
            raise InputTypeError(f"{where} [[grid]]: {key}={own[key]!r} must be a text.")
    published = layers.checked_table(own.get("published", {}), f"{where} [[grid]] published")
    for name, value in published.items():
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise InputTypeError(f"{where} [[grid]] published: {name}={value!r} must be a number.")


def _combinations(grid: Mapping[str, Any], where: str) -> Iterable[dict[str, Any]]:
    values = []
    for name, given in grid.items():
        listed = given if isinstance(given, list) else [given]
        if not listed:
            raise InputValueError(f"{where}: {name}=[] has no value; remove it or give one.")
        values.append([checked_value(name, value, where) for value in listed])
    combinations = math.prod(map(len, values))
    if combinations > MOST_RUNS:
        raise InputValueError(f"{where} has {combinations} combinations; a comparison can have at most {MOST_RUNS}.")
    return [dict(zip(grid, combination, strict=True)) for combination in itertools.product(*values)]
