"""Settings of the papers' experiments, as TOML files with the source of every value."""

import dataclasses
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any, Generic, TypeVar

import msgspec

from tff_mf.base import validation
from tff_mf.base.errors import InputValueError

from ...output import typed
from ...output.typed import Record
from .. import layers
from ..layers import Layer
from ..settings import RunSettings

_Run = TypeVar("_Run")


class Row(Record, Generic[_Run]):
    """A row of a paper's table: settings that belong together, and the results published for them.

    Attributes:
        when: Fields and values that the row is for.
        run: Fields that then have other values.
        published: Results of the paper for the row.
        source: Where in the paper the row is.
    """

    when: _Run
    source: str
    run: _Run | None = None
    published: dict[str, Any] = msgspec.field(default_factory=dict)


class _File(Record, Generic[_Run]):
    """The file of a preset."""

    title: str
    paper: str | None = None
    notes: str | None = None
    extends: str | None = None
    run: _Run | None = None
    sources: dict[str, str] = msgspec.field(default_factory=dict)
    row: Sequence[Row[_Run]] = ()


@dataclasses.dataclass(frozen=True, kw_only=True)
class Preset:
    """Settings of an experiment.

    Attributes:
        name: Name of the preset.
        title: One line about the experiment.
        paper: The paper it is from.
        notes: Assumptions, and deviations from the paper.
        layer: Values and their sources.
        rows: Lines of the paper's tables.
    """

    name: str
    title: str
    paper: str
    notes: str
    layer: Layer
    rows: Sequence[Row[Mapping[str, Any]]]

    def over(self, upper: Layer) -> Layer:
        """Returns the preset overridden by `upper`; a row that fits the result overrides the preset and not `upper`."""
        result = layers.laid([self.layer, upper])
        row = self.row(result.values)
        return result if row is None else layers.laid([self.layer, Layer.of(row.run or {}, row.source), upper])

    def row(self, values: Mapping[str, Any]) -> Row[Mapping[str, Any]] | None:
        """Returns the first row whose conditions hold for `values`, or None.

        A row is for the preset's own mechanism unless it names another: settings chosen for one do not suit the next.
        """
        own = {"mechanism": self.layer.values["mechanism"]}
        return next((row for row in self.rows if {**own, **row.when}.items() <= values.items()), None)


@dataclasses.dataclass(frozen=True, kw_only=True)
class PresetFolder:
    """A folder of presets, all of one kind of configuration.

    Attributes:
        path: The folder.
        kind: The record of the configuration.
    """

    path: pathlib.Path
    kind: type[Record]

    def names(self) -> list[str]:
        """Returns the names of its presets, in order."""
        return sorted(path.stem for path in self.path.glob("*.toml"))

    def load(self, name: str) -> Preset:
        """Returns the preset called `name`.

        Raises:
            InputValueError: If there is none of that name, or its file is wrong.
        """
        if name not in self.names():
            meant = validation.did_you_mean(name, self.names(), always=True)
            raise InputValueError(f"preset={name!r} is none of {', '.join(self.names())}{meant}")
        return self._parsed(name, self.path / f"{name}.toml")

    def _parsed(self, name: str, path: pathlib.Path) -> Preset:
        where = f"preset {name}"
        content = typed.convert(layers.read_toml(path), typed.file_of(_File, self.kind), where)
        values = typed.given(content.run)
        for each in values.keys() ^ content.sources.keys():
            raise InputValueError(f"{where}: {each!r} must be in both of [run] and [sources].")
        layer = Layer(values=values, sources=content.sources)
        base = self.load(content.extends) if content.extends else None
        return Preset(
            name=name,
            title=content.title,
            paper=content.paper or (base.paper if base else ""),
            notes=" ".join((content.notes or (base.notes if base else "")).split()),
            layer=layers.laid([base.layer, layer]) if base else layer,
            rows=[
                msgspec.structs.replace(row, when=typed.given(row.when), run=typed.given(row.run))
                for row in content.row
            ],
        )


OF_RUNS = PresetFolder(path=pathlib.Path(__file__).parent, kind=RunSettings)


def names() -> list[str]:
    """Returns the names of all presets of federated runs, in order.

    Example:
        >>> "mcmahan2024-blt" in names()
        True
    """
    return OF_RUNS.names()


def load(name: str) -> Preset:
    """Returns the preset of a federated run called `name`; see `PresetFolder.load`.

    Example:
        >>> load("choquette2023-banded").layer.values["rounds"]
        2052
    """
    return OF_RUNS.load(name)
