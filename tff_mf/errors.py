"""What bad input raises: always a `ValueError` or a `TypeError`, and always an `InputError`.

The command line turns an `InputError` into one line and exit status 2; any other exception is a
fault of the program and keeps its traceback.
"""

from collections.abc import Mapping
from types import MappingProxyType


class InputError(Exception):
    """Something the caller passed is wrong; the message names it, its value and the remedy.

    Attributes:
        sources: The file that a value is from, by the name that the message has for it; of what is from a file.
    """

    sources: Mapping[str, str] = MappingProxyType({})


class InputValueError(InputError, ValueError):
    """A value outside what is allowed."""


class InputTypeError(InputError, TypeError):
    """A value of the wrong type."""


class ArtifactError(InputValueError):
    """A file that is not an intact artifact of a kind and version this release knows."""


class MissingDependencyError(InputError, ImportError):
    """A layer was asked for whose packages are not installed; the message has the command."""
