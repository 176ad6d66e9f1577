"""Layers of settings: presets, files and flags override each other, and each value keeps its source."""

import contextlib
import dataclasses
import pathlib
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

from tff_mf.base.errors import InputError, InputValueError

from ..output import typed
from ..output.typed import Record
from ..sampling.settings import DEFAULT as DEFAULT_SAMPLING
from ..sampling.settings import PARAMETERS, SAMPLINGS, parameters_of
from .settings import RunSettings

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
    """Returns the tables of a TOML file.

    Raises:
        InputValueError: If it cannot be read.
    """
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


def configuration(layer: Layer, where: str = "") -> RunSettings:
    """Returns the configuration of a layer, with defaults for the fields it leaves out; see `typed.convert`."""
    return typed.convert(layer.values, RunSettings, where)


def if_whole(layer: Layer, kind: type[Record] = RunSettings) -> Any:
    """Returns the configuration of a layer that has all that a run needs; `None` if some of it is still to be given."""
    given = {name for name, value in layer.values.items() if value is not None}
    required = {field.name for field in msgspec.structs.fields(kind) if field.required}
    return typed.convert(layer.values, kind) if given & {"epsilon", "noise_multiplier"} and required <= given else None


def whole(layer: Layer, kind: type[Record] = RunSettings) -> dict[str, Any]:
    """Returns all settings of a configuration in its order, defaults included, but those that are not set.

    Example:
        >>> given = {"rounds": 8, "clients_per_round": 2, "delta": 1e-6, "sampling": "single"}
        >>> found = whole(Layer.of(given, "file"))
        >>> found["rounds"], found["mechanism"], "zeroing" in found
        (8, 'blt', False)

    Raises:
        InputValueError: If a field that has no default is missing.
    """
    values = msgspec.structs.asdict(typed.convert(layer.values, kind))
    return {name: value for name, value in values.items() if value is not None}


def shown(layer: Layer, kind: type[Record] = RunSettings) -> dict[str, dict[str, Any]]:
    """Returns value and source of every field, in the order of the configuration, defaults included."""
    return {
        field.name: {
            "value": layer.values.get(field.name, None if field.required else field.default),
            "source": layer.sources.get(field.name, "missing" if field.required else DEFAULT),
        }
        for field in msgspec.structs.fields(kind)
    }
