"""Specifications of the papers' tables and figures, as TOML files."""

import pathlib

from tff_mf.base import validation
from tff_mf.base.errors import InputValueError

_FOLDER = pathlib.Path(__file__).parent


def names() -> list[str]:
    """Returns the names of all specifications, in order.

    Example:
        >>> "banded-table-4" in names()
        True
    """
    return sorted(path.stem for path in _FOLDER.glob("*.toml"))


def path_of(name: str) -> pathlib.Path:
    """Returns the file of the specification called `name`.

    Example:
        >>> path_of("banded-table-4").name
        'banded-table-4.toml'
    """
    if name not in names():
        meant = validation.did_you_mean(name, names(), always=True)
        raise InputValueError(f"spec={name!r} is none of {', '.join(names())}{meant}")
    return _FOLDER / f"{name}.toml"
