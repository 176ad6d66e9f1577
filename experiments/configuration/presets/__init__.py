"""Settings of the papers' experiments, as TOML files with the source of every value."""

import dataclasses
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

from tff_mf import validation
from tff_mf.errors import InputTypeError, InputValueError

from .. import layers
from ..layers import Layer
from ..run import FIELDS, Fields

_KEYS = ("title", "paper", "notes", "extends", "run", "sources", "row")
_ROW_KEYS = ("when", "run", "published", "source")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Row:
    """A row of a paper's table: settings that belong together, and the results published for them.

    Attributes:
        when: Fields and values that the row is for.
        run: Fields that then have other values.
        published: Results of the paper for the row.
        source: Where in the paper the row is.
    """

    when: Mapping[str, Any]
    run: Mapping[str, Any]
    published: Mapping[str, Any]
    source: str


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
    rows: Sequence[Row]

    def over(self, upper: Layer) -> Layer:
        """Returns the preset overridden by `upper`; a row that fits the result overrides the preset and not `upper`."""
        result = layers.laid([self.layer, upper])
        row = self.row(result.values)
        return result if row is None else layers.laid([self.layer, Layer.of(row.run, row.source), upper])

    def row(self, values: Mapping[str, Any]) -> Row | None:
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
        fields: The fields of the configuration, with their types.
    """

    path: pathlib.Path
    fields: Fields

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
        content = layers.read_toml(path)
        where = f"preset {name}"
        layers.check_keys(content, _KEYS, where)
        for key in ("title", "paper", "notes", "extends"):
            if not isinstance(content.get(key, ""), str):
                raise InputTypeError(f"{where}: {key}={content[key]!r} must be a string.")
        if "title" not in content:
            raise InputValueError(f"{where}: title is missing.")
        values = layers.checked_run(content.get("run", {}), f"{where} [run]", self.fields)
        sources = layers.checked_table(content.get("sources", {}), f"{where} [sources]")
        layers.check_keys(sources, values, f"{where} [sources]")
        unsourced = sorted(values.keys() - sources.keys())
        if unsourced:
            raise InputValueError(f"{where}: {unsourced[0]!r} has no source; add it to [sources].")
        layer = Layer(values=values, sources=sources)
        given = content.get("row", [])
        if not isinstance(given, list):
            raise InputTypeError(f"{where}: row={given!r} must be tables, each written [[row]].")
        rows = [_row(row, f"{where} [[row]]", self.fields) for row in given]
        base = self.load(content["extends"]) if "extends" in content else None
        return Preset(
            name=name,
            title=content["title"],
            paper=content.get("paper", base.paper if base else ""),
            notes=" ".join((content.get("notes", "") or (base.notes if base else "")).split()),
            layer=layers.laid([base.layer, layer]) if base else layer,
            rows=rows,
        )


OF_RUNS = PresetFolder(path=pathlib.Path(__file__).parent, fields=FIELDS)


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


def _row(row: Any, where: str, fields: Fields) -> Row:
    layers.check_keys(layers.checked_table(row, where), _ROW_KEYS, where)
    missing = [key for key in ("when", "source") if key not in row]
    if missing:
        raise InputValueError(f"{where}: {missing[0]} is missing.")
    return Row(
        when=layers.checked_run(row["when"], f"{where} when", fields),
        run=layers.checked_run(row.get("run", {}), f"{where} run", fields),
        published=row.get("published", {}),
        source=row["source"],
    )
