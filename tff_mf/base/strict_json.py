"""Strict JSON: each key once in an object, and finite numbers only."""

import json
import math
import pathlib
from collections.abc import Mapping
from typing import Any

from .errors import InputValueError


def loads(text: str) -> Any:
    """Returns the value of a JSON text.

    If an object had a key twice, a person who reads the file and a program might see different values.

    Example:
        >>> loads('{"epsilon": 0.1, "epsilon": 8.0}')
        Traceback (most recent call last):
        ValueError: 'epsilon' is twice in one object
        >>> loads("1e400")
        Traceback (most recent call last):
        ValueError: 1e400 is no number that a float can hold

    Raises:
        ValueError: If it is not JSON, a key is twice in one object, a number is not finite, or a text has half of a
            surrogate pair.
    """
    value = json.loads(text, object_pairs_hook=_once, parse_constant=_refused, parse_float=_finite_float)
    if "\\u" in text:
        # Half of a pair is no text: nothing could write it again.
        json.dumps(value, ensure_ascii=False).encode()
    return value


def read(path: pathlib.Path, field: str) -> Any:
    """Returns the value of a JSON file.

    Args:
        path: The file.
        field: What the file is called in the message.

    Raises:
        InputValueError: If it cannot be read, or is not strict JSON.
    """
    try:
        return loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputValueError(f"{field}={str(path)!r} cannot be read: {error.strerror or error}.") from error
    except (ValueError, RecursionError) as error:
        raise InputValueError(f"{field}={str(path)!r} is damaged: {error}.") from error


def finite(value: Any) -> Any:
    """Returns a value as JSON can hold it: `None` in place of an unbounded ε, or of the loss of a model that diverged.

    Example:
        >>> finite(0.5), finite(float("nan")), finite({"epsilon": float("inf"), "rounds": 3})
        (0.5, None, {'epsilon': None, 'rounds': 3})
    """
    if isinstance(value, Mapping):
        return {name: finite(inner) for name, inner in value.items()}
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields = dict(pairs)
    if len(fields) < len(pairs):
        keys = [key for key, _ in pairs]
        raise ValueError(f"{next(key for key in keys if keys.count(key) > 1)!r} is twice in one object")
    return fields


def _finite_float(text: str) -> float:
    value = float(text)
    if math.isinf(value):
        raise ValueError(f"{text:.80} is no number that a float can hold")
    return value


def _refused(name: str) -> Any:
    raise ValueError(f"{name} is not a number of JSON")
