"""Exceptions for bad input, each an `InputError` and also a `ValueError`, a `TypeError` or an `ImportError`.

The command line turns an `InputError` into one line and exit status 2; any other exception is a bug of the program and
keeps its traceback.
"""


class InputError(Exception):
    """The caller passed something wrong; the message names it, its value and the remedy."""


class InputValueError(InputError, ValueError):
    """A value that is out of range."""


class InputTypeError(InputError, TypeError):
    """A value of the wrong type."""


class ArtifactError(InputValueError):
    """A file that is not a valid artifact of a kind and version known to this release."""


class MissingDependencyError(InputError, ImportError):
    """A layer needs packages that are not installed; the message has the command that installs them."""
