"""From presets, TOML files and flags to settings: layers that override each other; each value keeps its source."""

import contextlib
import dataclasses
import json
import os
import pathlib
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

from tff_mf.base import validation
from tff_mf.base.errors import InputError, InputValueError
from tff_mf.planning import by_name

from ..output import files, typed
from ..output.typed import Record
from ..sampling.settings import DEFAULT as DEFAULT_SAMPLING
from ..sampling.settings import PARAMETERS, SAMPLINGS, parameters_of
from .initial_model import EMBEDDED, SQLITE
from .names import RUN_JSON, SETTINGS_TOML
from .rules import check_same
from .settings import FILES, RunSettings

DEFAULT = "default"
FLAG = "flag"

_REPLACES = {
    "mechanism": ("buffers", "bands", "unit_norms", "objective", "workload"),
    "epsilon": ("noise_multiplier",),
    "noise_multiplier": ("epsilon",),
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Layer:
    """Values of some fields, each with its source.

    Attributes:
        values: Values by field.
        sources: The preset, file or flag that each is from, by field.
    """

    values: Mapping[str, Any]
    sources: Mapping[str, str]

    @classmethod
    def of(cls, values: Mapping[str, Any], source: str) -> "Layer":
        """Returns a layer whose values all have one source."""
        return cls(values=dict(values), sources=dict.fromkeys(values, source))


def read_toml(path: pathlib.Path) -> dict[str, Any]:
    """Returns the tables of a TOML file."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputValueError(f"{path}: cannot be read ({error.strerror}).") from error
    except ValueError as error:
        raise InputValueError(f"{path}: is not TOML ({error}).") from error
    except RecursionError:
        raise InputValueError(f"{path}: nests too deeply.") from None


def laid(layers: Sequence[Layer]) -> Layer:
    """Returns the layers as one; later layers override earlier ones.

    A layer that names a mechanism removes the options of the earlier one, and a layer that names a sampling the
    parameters of the earlier one that it does not take. A layer with ε removes an earlier noise multiplier, and the
    other way round.

    Example:
        >>> laid([Layer.of({"rounds": 8, "seed": 1}, "file"), Layer.of({"seed": 2}, "flag")]).sources
        {'rounds': 'file', 'seed': 'flag'}
    """
    values: dict[str, Any] = {}
    sources: dict[str, str] = {}
    for layer in layers:
        for name in layer.values:
            for replaced in (*_REPLACES.get(name, ()), *(_left_out(values, layer) if name == "sampling" else ())):
                values.pop(replaced, None)
                sources.pop(replaced, None)
        values.update(layer.values)
        sources.update(layer.sources)
    return Layer(values=values, sources=sources)


def _left_out(values: Mapping[str, Any], layer: Layer) -> list[str]:
    """Returns the parameters of the sampling so far that the sampling of a layer does not take."""
    before, after = values.get("sampling", DEFAULT_SAMPLING), layer.values["sampling"]
    # A word that does not exist is refused later, with its source.
    taken = parameters_of(after) if after in SAMPLINGS else PARAMETERS
    return [name for name in parameters_of(before) if name not in taken] if before in SAMPLINGS else []


@contextlib.contextmanager
def sourced(sources: Mapping[str, str]) -> Iterator[None]:
    """Adds to an error that is raised in the block the file or preset that each value is from.

    Example:
        >>> try:
        ...     with sourced({"rounds": "run.toml", "delta": FLAG}):
        ...         raise InputValueError("rounds=0 must be at least 1.")
        ... except InputValueError as error:
        ...     error.sources
        {'rounds': 'run.toml'}
    """
    try:
        yield
    except InputError as error:
        error.sources = {name: source for name, source in sources.items() if source != FLAG} | dict(error.sources)
        raise


def settings(layer: Layer, where: str = "") -> RunSettings:
    """Returns the settings of a layer, with defaults for the fields it leaves out; see `typed.convert`."""
    return typed.convert(layer.values, RunSettings, where)


def if_whole(layer: Layer, kind: type[Record] = RunSettings) -> Any:
    """Returns the settings of a layer that has all that a run needs; `None` if some of it is still to be given."""
    required = {field.name for field in msgspec.structs.fields(kind) if field.required}
    whole = required <= layer.values.keys() and layer.values.keys() & {"epsilon", "noise_multiplier"}
    return typed.convert(layer.values, kind) if whole else None


def shown(layer: Layer, kind: type[Record] = RunSettings) -> dict[str, dict[str, Any]]:
    """Returns value and source of every field, in the order of the settings, defaults included."""
    return {
        field.name: {
            "value": layer.values.get(field.name, None if field.required else field.default),
            "source": layer.sources.get(field.name, "missing" if field.required else DEFAULT),
        }
        for field in msgspec.structs.fields(kind)
    }


class Row(Record):
    """A row of a paper's table: settings that belong together, and the results published for them.

    Attributes:
        when: Fields and values that the row is for.
        run: Fields that then have other values.
        published: Results of the paper for the row.
        source: Where in the paper the row is.
    """

    when: dict[str, Any]
    source: str
    run: dict[str, Any] = msgspec.field(default_factory=dict)
    published: dict[str, Any] = msgspec.field(default_factory=dict)


class _PresetFile(Record):
    """The file of a preset; `extends` names another, over which it is laid."""

    title: str
    paper: str = ""
    notes: str = ""
    extends: str | None = None
    run: dict[str, Any] = msgspec.field(default_factory=dict)
    sources: dict[str, str] = msgspec.field(default_factory=dict)
    row: Sequence[Row] = ()


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
        result = laid([self.layer, upper])
        row = self.row(result.values)
        return result if row is None else laid([self.layer, Layer.of(row.run, row.source), upper])

    def row(self, values: Mapping[str, Any]) -> Row | None:
        """Returns the first row whose conditions hold for `values`, or None.

        A row is for the preset's own mechanism unless it names another: settings chosen for one do not suit the next.
        """
        own = {"mechanism": self.layer.values["mechanism"]}
        return next((row for row in self.rows if {**own, **row.when}.items() <= values.items()), None)


@dataclasses.dataclass(frozen=True, kw_only=True)
class PresetFolder:
    """A folder of presets, all of one kind of settings.

    Attributes:
        path: The folder.
        kind: The class of the settings.
    """

    path: pathlib.Path
    kind: type[Record]

    def names(self) -> list[str]:
        """Returns the names of its presets, in order."""
        return sorted(path.stem for path in self.path.glob("*.toml"))

    def load(self, name: str) -> Preset:
        """Returns the preset called `name`."""
        if name not in self.names():
            meant = validation.did_you_mean(name, self.names(), always=True)
            raise InputValueError(f"preset={name!r} is none of {', '.join(self.names())}{meant}")
        return self.read(name, self.path / f"{name}.toml")

    def read(self, name: str, path: pathlib.Path) -> Preset:
        """Returns the preset in a file."""
        content = typed.convert(read_toml(path), _PresetFile, f"preset {name}")
        layer, paper, notes = Layer(values=content.run, sources=content.sources), content.paper, content.notes
        if content.extends is not None:
            base = self.load(content.extends)
            layer, paper, notes = laid([base.layer, layer]), paper or base.paper, notes or base.notes
        title, notes = content.title, " ".join(notes.split())
        return Preset(name=name, title=title, paper=paper, notes=notes, layer=layer, rows=content.row)


PRESETS = PresetFolder(path=pathlib.Path(__file__).parent / "presets", kind=RunSettings)


class _SettingsFile(Record):
    """The settings of a run, and the name of the preset that they are laid over."""

    run: dict[str, Any] = msgspec.field(default_factory=dict)
    preset: str | None = None


def _read(path: pathlib.Path, kind: type[Record]) -> tuple[str | None, Layer]:
    """Returns the preset that a TOML file names, and its settings."""
    content = typed.convert(read_toml(path), _SettingsFile, str(path))
    values = typed.given(typed.convert(content.run, typed.partial(kind), f"{path} [run]"))
    return content.preset, Layer.of(values, str(path))


def resolve(
    preset: str | None,
    config: pathlib.Path | None,
    flags: Mapping[str, Any],
    *,
    folder: PresetFolder = PRESETS,
) -> tuple[Preset | None, Layer]:
    """Returns the preset and all values: flags go before the file, and the file before the preset.

    Args:
        preset: Name of a preset; it comes before the one that the file names.
        config: A TOML file with a `[run]` table and, if need be, the name of a `preset`.
        flags: Values of flags; None where a flag was not given.
        folder: The presets, all of the kind of settings that is resolved.
    """
    upper = Layer.of({name: value for name, value in flags.items() if value is not None}, FLAG)
    named = None
    if config is not None:
        named, lower = _read(config, folder.kind)
        upper = laid([lower, upper])
    if preset is None and named is None:
        return None, upper
    with sourced({} if preset else {"preset": str(config)}):
        chosen = folder.load(preset or str(named))
    return chosen, chosen.over(upper)


def origins(chosen: Preset | None, layer: Layer, config: pathlib.Path | None) -> dict[str, str]:
    """Returns where each value of `layer` is from, as an error names it: a flag, the file `config`, or the preset."""
    own = (FLAG, str(config))
    return {
        name: source if source in own or chosen is None else f"preset {chosen.name}, {source}"
        for name, source in layer.sources.items()
    }


def write(settings: Record, folder: pathlib.Path) -> None:
    """Writes all settings of a run to `folder`: `tff-mf train --config` repeats it, whatever the defaults are."""
    values = {name: value for name, value in msgspec.structs.asdict(settings).items() if value is not None}
    files.write_atomically(folder / SETTINGS_TOML, as_toml(values))


def begun(layer: Layer, folder: pathlib.Path, kind: type[Record] = RunSettings) -> Layer:
    """Returns all settings that the run in `folder` began with, for a run resumed with the values of `layer`."""
    path = folder / SETTINGS_TOML
    if not path.is_file():
        if (folder / RUN_JSON).is_file():
            raise InputValueError(f"out={str(folder)!r} lacks {SETTINGS_TOML}, the settings of its run: restore it.")
        return layer
    _, kept = _read(path, kind)
    check_same(layer.values, {name: kept.values.get(name) for name in layer.values}, run=str(folder))
    return kept


def placed(layer: Layer, fields: Sequence[str] = FILES) -> Layer:
    """Returns a layer whose files have absolute paths, so that it means the same in every folder."""
    values = dict(layer.values)
    for name in fields:
        value = values.get(name)
        if not isinstance(value, str) or value in (*by_name.names(), *by_name.production(), *EMBEDDED):
            continue
        prefix = SQLITE if value.startswith(SQLITE) else ""
        path = os.path.abspath(value.removeprefix(prefix))
        # What is no file is refused later, as it was typed.
        if os.path.exists(path):
            values[name] = prefix + path
    return dataclasses.replace(layer, values=values)


def as_toml(values: Mapping[str, Any]) -> str:
    """Returns a `[run]` table with `values`.

    Example:
        >>> print(as_toml({"rounds": 8, "dataset": "pydoc"}), end="")
        [run]
        rounds = 8
        dataset = "pydoc"
    """
    # Of texts, numbers and truth values, what JSON writes is TOML.
    return "[run]\n" + "".join(f"{name} = {json.dumps(value, ensure_ascii=False)}\n" for name, value in values.items())
