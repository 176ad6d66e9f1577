"""Typed records: settings and files as frozen structs, which are refused by the name of the field that does not fit."""

import functools
import inspect
import pathlib
import re
import sys
import types
import typing
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, TypeVar

import msgspec
from msgspec import UNSET, Meta, UnsetType

from tff_mf.base import strict_json, validation
from tff_mf.base.errors import InputError, InputValueError

_Kind = TypeVar("_Kind")

# More than the number of people, and small enough that no figure overflows.
MOST_CLIENTS = 10**12
_LARGEST = 1e100

Whole = Annotated[int, Meta(ge=-validation.MAX_WHOLE - 1, le=validation.MAX_WHOLE)]
Size = Annotated[int, Meta(ge=1, le=validation.MAX_WHOLE)]
Count = Annotated[int, Meta(ge=1, le=MOST_CLIENTS)]
CountOrZero = Annotated[int, Meta(ge=0, le=MOST_CLIENTS)]
# A float that is neither infinite nor NaN: the bounds are compared with NaN too.
Number = Annotated[float, Meta(ge=-sys.float_info.max, le=sys.float_info.max)]
Positive = Annotated[float, Meta(gt=0, le=_LARGEST)]
NonNegative = Annotated[float, Meta(ge=0, le=_LARGEST)]
OpenUnit = Annotated[float, Meta(gt=0, lt=1)]
Part = Annotated[float, Meta(ge=0, lt=1)]


@typing.dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(msgspec.field,))
class Record(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base of all records: frozen, with keywords only; unknown fields are refused."""


def convert(value: Any, kind: type[_Kind], where: str = "") -> _Kind:
    """Returns what JSON, TOML or flags hold as a record, each field of its type.

    Args:
        value: Dictionaries, lists, texts and numbers.
        kind: The record, or another type.
        where: The file, for the message.

    Raises:
        InputValueError: If a field is unknown, missing, of another type or out of range; the message names it.

    Example:
        >>> class Size(Record):
        ...     rounds: Count
        >>> convert({"rounds": 0}, Size, "size.toml")
        Traceback (most recent call last):
        tff_mf.base.errors.InputValueError: size.toml: rounds=0: Expected `int` >= 1.
    """
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        raise InputValueError(f"{where}{_refusal(error, value, kind)}".removeprefix(": ").strip()) from error
    except RecursionError:
        raise InputValueError(f"{where}: nests too deeply.".removeprefix(": ")) from None
    except UnicodeEncodeError:
        raise InputValueError(f"{where}: has half of a surrogate pair, which is no text.".removeprefix(": ")) from None


def read(path: pathlib.Path, kind: type[_Kind], field: str) -> _Kind:
    """Returns the content of a file of strict JSON as a record, or as another type; `field` names it in messages."""
    return convert(strict_json.read(path, field), kind, f"{field}={str(path)!r} is damaged")


def _refusal(error: msgspec.ValidationError, value: Any, kind: Any) -> str:
    """Returns the tables that an error of msgspec is in, and what is wrong there: the field, its value and the rule."""
    if isinstance(error.__cause__, InputError):
        return f": {error.__cause__}"
    rule, _, place = str(error).partition(" - at ")
    # The name of an entry of a table is not in the error.
    path = re.findall(r"\.(\w+)|\[(\d+)\]", place.partition("[...]")[0])
    for name, index in path:
        value = value[name or int(index)]
    names = [name for name, _ in path if name]
    if not rule.startswith("Object "):
        field = names.pop() if names else "content"
        rule = f"{field}={shown(value)}: {rule}."
    elif unknown := re.fullmatch(r"Object contains unknown field `(.*)`", rule, re.DOTALL):
        records = msgspec.json.schema(kind).get("$defs", {}).values()
        known = dict.fromkeys(name for record in records for name in record.get("properties", {}))
        meant = validation.did_you_mean(unknown[1], list(known), always=True)
        rule = f"{unknown[1]!r:.80} is not a known key{meant}"
    else:
        rule = f"{rule.removeprefix('Object missing required field ')} is missing: give it a value."
    return "".join(f" [{name}]" for name in names) + f": {rule}"


def shown(value: object) -> str:
    """Returns a value as a message shows it: cut, and a number of too many digits by its size."""
    try:
        return f"{value!r:.80}"
    except ValueError:
        return "a number of too many digits"


def fields_of(kind: type) -> Mapping[str, tuple[type, ...]]:
    """Returns the types that each field of a record may have, without `None`, in order.

    Example:
        >>> class Size(Record):
        ...     rounds: Count | None = None
        >>> fields_of(Size)
        {'rounds': (<class 'int'>,)}
    """

    def plain(hint: Any) -> tuple[type, ...]:
        parts = typing.get_args(hint) if isinstance(hint, types.UnionType) or typing.get_origin(hint) else ()
        return tuple(each for part in parts for each in plain(part)) or (hint,)

    hints = typing.get_type_hints(kind)
    return {name: tuple(each for each in plain(hint) if each is not types.NoneType) for name, hint in hints.items()}


def described(kind: type) -> dict[str, str]:
    """Returns the text on each attribute in the docstrings of a class and its bases; none where Python left them out.

    Example:
        >>> class Size(Record):
        ...     '''A size.
        ...
        ...     Attributes:
        ...         rounds: Number of rounds,
        ...             in one line.
        ...     '''
        ...     rounds: Count
        >>> described(Size)
        {'rounds': 'Number of rounds, in one line.'}
    """
    found = []
    for each in reversed(kind.__mro__):
        section = inspect.cleandoc(each.__doc__ or "").partition("\nAttributes:\n")[2].partition("\n\n")[0]
        found += re.findall(r"^    (\w+): (.+(?:\n {6}.+)*)", section, re.M)
    return {name: " ".join(text.split()) for name, text in found}


@functools.cache
def partial(kind: type, *, listed: bool = False) -> type[Any]:
    """Returns a record with the fields of `kind`, each of which can be left out, or if `listed` have several values."""

    def may_be(hint: Any) -> Any:
        return hint | Annotated[list[hint], Meta(min_length=1)] | UnsetType if listed else hint | UnsetType

    hints = typing.get_type_hints(kind, include_extras=True)
    fields = [(name, may_be(hint), UNSET) for name, hint in hints.items()]
    return msgspec.defstruct(kind.__name__, fields, frozen=True, kw_only=True, forbid_unknown_fields=True)


def some(values: Any, kind: type, where: str, *, listed: bool = False) -> dict[str, Any]:
    """Returns the fields that are given of a record, checked; if `listed`, each may have several values."""
    record = convert(values, partial(kind, listed=listed), where)
    return {name: value for name, value in msgspec.structs.asdict(record).items() if value is not UNSET}


def check_same(given: Mapping[str, Any], begun: Mapping[str, Any], *, run: str, derived: Sequence[str] = ()) -> None:
    """Raises unless the settings of a run are those that it began with, and names all that differ.

    `run.json`, `configuration.toml` and the settings in the states of other engines are compared by this function.

    Args:
        given: The settings now, by name.
        begun: The settings that the run began with, by name, as read from its folder.
        run: The run's folder, or the file with `begun`, for the message.
        derived: Settings that follow from others: they are named only if nothing else differs.

    Example:
        >>> check_same({"rounds": 8}, {"rounds": 8}, run="out")
        >>> check_same({}, {"rounds": 8}, run="out")  # doctest: +ELLIPSIS
        Traceback (most recent call last):
        tff_mf.base.errors.InputValueError: rounds=none is not the setting that the run in 'out' began with, 8: ...
        >>> check_same({"rounds": 9, "delta": 0.1}, {"rounds": 8, "delta": 0.2}, run="out")  # doctest: +ELLIPSIS
        Traceback (most recent call last):
        tff_mf.base.errors.InputValueError: rounds=9 is not the setting that the run in 'out' began with, 8; nor is \
delta=0.1, where it has 0.2: ...
    """
    now, then = _flat(given), _flat(begun)
    changed = [name for name in {**now, **then} if now.get(name) != then.get(name)]
    # The one that comes first in the message is what the user changed.
    named = [name for name in changed if name not in derived] or sorted(changed, key=derived.index)
    if not named:
        return

    def of(settings: Mapping[str, Any], name: str) -> str:
        return repr(settings[name]) if name in settings else "none"

    name, *others = named
    more = "".join(f"; nor is {other}={of(now, other)}, where it has {of(then, other)}" for other in others)
    raise InputValueError(
        f"{name}={of(now, name)} is not the setting that the run in {run!r} began with, {of(then, name)}{more}: resume "
        "it with the same settings, or start another run in another folder."
    )


def _flat(settings: Mapping[str, Any], inside: str = "") -> dict[str, Any]:
    """Returns settings by name, those in a table by the names of both."""
    flat: dict[str, Any] = {}
    for name, value in settings.items():
        flat |= _flat(value, f"{inside}{name}.") if isinstance(value, Mapping) else {inside + name: value}
    return flat
