"""Strict JSON: each key once in an object, and finite numbers only."""

import json
import math
from typing import Any


def loads(text: str) -> Any:
    """Returns the value of a JSON text.

    If an object had a key twice, a person who reads the file and a program might see different values.

    Example:
        >>> loads('{"epsilon": 0.1, "epsilon": 8.0}')
        Traceback (most recent call last):
        ValueError: 'epsilon' is twice in one object

    Raises:
        ValueError: If it is not JSON, a key is twice in one object, or a number is not finite.
    """
    return json.loads(text, object_pairs_hook=_once, parse_constant=_refused)


def finite(value: float) -> float | None:
    """Returns a number as JSON can hold it: `None` in place of an infinite one, such as an unbounded ε.

    Example:
        >>> finite(0.5), finite(float("inf"))
        (0.5, None)
    """
    return None if math.isinf(value) else value


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        keys = [key for key, _ in pairs]
        raise ValueError(f"{next(key for key in keys if keys.count(key) > 1)!r} is twice in one object")
    return found


def _refused(name: str) -> Any:
    raise ValueError(f"{name} is not a number of JSON")
