"""JSON as it is written here: a key once in an object, and numbers that JSON has."""

import json
from typing import Any


def loads(text: str) -> Any:
    """Returns what a JSON text says.

    A key that is twice in an object would say one thing to whoever reads the file, and another to a program.

    Example:
        >>> loads('{"epsilon": 0.1, "epsilon": 8.0}')
        Traceback (most recent call last):
        ValueError: 'epsilon' is twice in one object

    Raises:
        ValueError: If it is no JSON, a key is twice in one object, or a number is not finite.
    """
    return json.loads(text, object_pairs_hook=_once, parse_constant=_refused)


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        keys = [key for key, _ in pairs]
        raise ValueError(f"{next(key for key in keys if keys.count(key) > 1)!r} is twice in one object")
    return found


def _refused(name: str) -> Any:
    raise ValueError(f"{name} is no number of JSON")
