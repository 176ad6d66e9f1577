"""Layers of settings: presets, files and flags override each other, and each value keeps its source."""

import contextlib
import dataclasses
import pathlib
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

from tff_mf import validation
from tff_mf.errors import InputError, InputTypeError, InputValueError

from .run import FIELDS, Fields, RunConfiguration, checked_value, required

_Kind = TypeVar("_Kind")

DEFAULT = "default"
FLAG = "flag"

_REPLACES = {
    "mechanism": ("buffers", "bands", "unit_norms", "objective", "workload"),
    "sampling": ("timer_hours", "round_minutes", "participation_schema"),
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
    """Returns the tables of a TOML file.

    Raises:
        InputValueError: If it cannot be read.
    """
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputValueError(f"{path}: cannot be read ({error.strerror}).") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InputValueError(f"{path}: is not TOML ({error}).") from error
    except RecursionError:
        raise InputValueError(f"{path}: nests too deeply.") from None


def check_keys(found: Iterable[str], known: Iterable[str], where: str) -> None:
    """Raises for the first key that is not known, naming it, the file and the nearest known key.

    Raises:
        InputValueError: If there is such a key.
    """
    known = list(known)
    for key in found:
        if key not in known:
            meant = validation.did_you_mean(key, known, always=True)
            raise InputValueError(f"{where}: {key!r} is not a known key{meant}")


def checked_run(table: Any, where: str, fields: Fields = FIELDS) -> dict[str, Any]:
    """Returns the values of a `[run]` table, each of its field's type.

    Args:
        table: The table.
        where: The file, for the message.
        fields: The fields of the configuration that the table is for, with their types.

    Raises:
        InputTypeError: If it is not a table, or a value is of the wrong type.
        InputValueError: If a key is unknown.
    """
    with sourced(dict.fromkeys(fields, where)):
        table = checked_table(table, where)
        check_keys(table, fields, where)
        return {name: checked_value(name, value, where, fields) for name, value in table.items()}


def checked_table(value: Any, where: str) -> Mapping[str, Any]:
    """Returns `value` if it is a TOML table.

    Raises:
        InputTypeError: If it is not.
    """
    if not isinstance(value, Mapping):
        raise InputTypeError(f"{where}: {value!r} must be a table.")
    return value


def laid(layers: Sequence[Layer]) -> Layer:
    """Returns the layers as one; later layers override earlier ones.

    A layer that names a mechanism or a sampling removes the options of the earlier one. A layer with ε removes an
    earlier noise multiplier, and the other way round.

    Example:
        >>> laid([Layer.of({"rounds": 8, "seed": 1}, "file"), Layer.of({"seed": 2}, "flag")]).sources
        {'rounds': 'file', 'seed': 'flag'}
    """
    values: dict[str, Any] = {}
    sources: dict[str, str] = {}
    for layer in layers:
        for name in layer.values:
            for replaced in _REPLACES.get(name, ()):
                values.pop(replaced, None)
                sources.pop(replaced, None)
        values.update(layer.values)
        sources.update(layer.sources)
    return Layer(values=values, sources=sources)


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


def configuration(layer: Layer, where: str = "") -> RunConfiguration:
    """Returns the configuration of a layer, with defaults for the fields it leaves out; see `configuration_of`."""
    return configuration_of(layer, RunConfiguration, where)


def configuration_of(layer: Layer, kind: type[_Kind], where: str = "") -> _Kind:
    """Returns the configuration of a layer, with defaults for the fields it leaves out.

    Args:
        layer: The values.
        kind: The class of the configuration.
        where: The file that must have them, for the message.

    Raises:
        InputValueError: If a field that has no default is missing.
    """
    missing = [name for name in required(kind) if name not in layer.values]
    if missing:
        given = ", ".join(f"{name}=…" for name in missing)
        place = f"{where}: " if where else ""
        raise InputValueError(f"{place}{given} missing: to be given, or in a preset or file that is named.")
    return kind(**layer.values)


def whole(layer: Layer, kind: type = RunConfiguration) -> dict[str, Any]:
    """Returns all settings of a configuration in its order, defaults included, but those that are not set.

    Example:
        >>> found = whole(Layer.of({"rounds": 8, "clients_per_round": 2, "delta": 1e-6}, "file"))
        >>> found["rounds"], found["mechanism"], "zeroing" in found
        (8, 'blt', False)

    Raises:
        InputValueError: If a field that has no default is missing.
    """
    found = configuration_of(layer, kind)
    values = {field.name: getattr(found, field.name) for field in dataclasses.fields(kind)}
    return {name: value for name, value in values.items() if value is not None}


def shown(layer: Layer, kind: type = RunConfiguration) -> dict[str, dict[str, Any]]:
    """Returns value and source of every field, in the order of the configuration, defaults included."""
    result, needed = {}, required(kind)
    for field in dataclasses.fields(kind):
        missing = "missing" if field.name in needed else DEFAULT
        default = None if field.name in needed else field.default
        result[field.name] = {
            "value": layer.values.get(field.name, default),
            "source": layer.sources.get(field.name, missing),
        }
    return result
