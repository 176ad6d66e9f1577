"""The grids of a specification: each point with the preset, the label and the published results that it has."""

import dataclasses
import itertools
import math
import pathlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any, Generic, TypeVar

from msgspec import Meta

from tff_mf.errors import InputValueError

from ..configuration import layers, presets
from ..configuration.layers import Layer
from ..configuration.presets import Preset
from ..configuration.run import RunConfiguration
from ..output import typed
from ..output.typed import Number, Record

# A small file can ask for more runs than fit in memory.
MOST_RUNS = 10_000
_Run = TypeVar("_Run")
_Text = Annotated[str, Meta(min_length=1)]


class _Own(Record, Generic[_Run]):
    """What a grid says beside the values of settings."""

    preset: str | None = None
    label: _Text | None = None
    source: _Text | None = None
    optimize: _Run | None = None
    published: dict[str, Number] | None = None


class Specification(Record, Generic[_Run]):
    """The file of a comparison.

    Attributes:
        title: Name of the comparison; runs of one without have no published results.
        paper: The paper whose table it is.
        notes: What else is to be said of it.
        preset: The preset that all grids are laid over.
        run: Settings that all runs share.
        grid: Combinations of the settings that differ.
    """

    title: str | None = None
    paper: str | None = None
    notes: str | None = None
    preset: str | None = None
    run: _Run | None = None
    grid: Annotated[Sequence[dict[str, Any]], Meta(min_length=1)] = ({},)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Point:
    """A combination of a grid's values, over its preset and the settings that all runs share.

    Attributes:
        layer: The settings of the run.
        preset: The preset of its grid, or of the specification.
        label: Name of its mechanism in the table, or None for one made from the settings.
        optimize: Settings that differ while its mechanism is optimized.
        published: Results of the paper for it.
    """

    layer: Layer
    preset: Preset | None
    label: str | None
    optimize: Mapping[str, Any]
    published: Mapping[str, Any]


def read(path: pathlib.Path) -> Specification:
    """Returns the content of a file.

    Raises:
        InputError: If it is not a comparison.
    """
    return typed.convert(layers.read_toml(path), typed.file_of(Specification, RunConfiguration), str(path))


def points(content: Specification, where: str) -> Iterable[Point]:
    """Yields the points of a specification, grid after grid.

    Args:
        content: The file.
        where: Its path, for messages.

    Raises:
        InputError: If a grid is wrong.
    """
    shared = Layer.of(typed.given(content.run), where)
    _load(content.preset, where)
    for grid in content.grid:
        own = {name: value for name, value in grid.items() if name in _Own.__struct_fields__}
        about = typed.convert(own, typed.file_of(_Own, RunConfiguration), f"{where} [[grid]]")
        varied = {name: value for name, value in grid.items() if name not in own}
        checked = typed.given(typed.convert(varied, typed.partial(RunConfiguration, listed=True), f"{where} [[grid]]"))
        preset = _load(about.preset or content.preset, where)
        for values in _combinations({name: checked[name] for name in varied}, f"{where} [[grid]]"):
            upper = layers.laid([shared, Layer.of(values, where)])
            layer = preset.over(upper) if preset else upper
            row = preset.row(layer.values) if preset else None
            published = row.published if row else {}
            yield Point(
                layer=layer,
                preset=preset,
                label=about.label,
                optimize=typed.given(about.optimize),
                published=published if about.published is None else about.published,
            )


def _load(name: str | None, where: str) -> Preset | None:
    with layers.sourced({"preset": where}):
        return None if name is None else presets.load(name)


def _combinations(grid: Mapping[str, Any], where: str) -> Iterable[dict[str, Any]]:
    values = [value if isinstance(value, list) else [value] for value in grid.values()]
    combinations = math.prod(map(len, values))
    if combinations > MOST_RUNS:
        raise InputValueError(f"{where} has {combinations} combinations; a comparison can have at most {MOST_RUNS}.")
    return [dict(zip(grid, combination, strict=True)) for combination in itertools.product(*values)]
