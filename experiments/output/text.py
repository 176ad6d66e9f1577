"""Values and names in words, and text of others, shown so that nothing in it hides or reorders the rest."""

import json
import unicodedata
from collections.abc import Mapping
from typing import Any

from tff_mf.numerics.digits import rounded_up

# Unicode categories of invisible characters, which can hide or reorder the visible ones; joiners cannot.
_UNSEEN = ("Cc", "Cf", "Cs", "Zl", "Zp")
_JOINERS = "\u200c\u200d"
_NAMES = {
    "participation_depends_on_data": "who takes part when",
    "state_is_secret": "secrecy of the state",
    "clients_of_one_person": "clients of one person",
}


def seen(text: str) -> str:
    """Returns a text in one line, with a mark for each character that would hide or reorder the others.

    Example:
        >>> seen(f"us {chr(27)}[8m"), seen(f"{chr(0x202e)}ε≤0")
        ('us �[8m', '�ε≤0')
    """
    line = " ".join(text.split())
    unseen = (unicodedata.category(each) in _UNSEEN and each not in _JOINERS for each in line)
    return "".join("\ufffd" if hidden else each for each, hidden in zip(line, unseen, strict=True))


def spaced_as_it_is(text: str) -> str:
    """Returns a text as `seen` does, with all of its spaces.

    Example:
        >>> spaced_as_it_is("ok    a" + chr(10) + "b")
        'ok    a b'
    """
    return " ".join(map(seen, text.split(" ")))


def up(value: float | None) -> str:
    """Returns a figure of a guarantee, rounded up; `None` in JSON is infinite."""
    return "∞" if value is None else rounded_up(value)


def words(value: Any) -> str:
    """Returns a JSON value in words.

    Example:
        >>> words(True), words(None), words(["a", 1]), words({"min_sep": 3})
        ('yes', 'none', 'a, 1', 'min sep 3')
    """
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, Mapping):
        return ", ".join(f"{spaced(str(name))} {words(each)}" for name, each in value.items()) or "none"
    if isinstance(value, list):
        return ", ".join(map(words, value)) or "none"
    return value if isinstance(value, str) else json.dumps(value)


def spaced(name: str) -> str:
    """Returns the name of a field in words."""
    return _NAMES.get(name, name.replace("_", " "))
