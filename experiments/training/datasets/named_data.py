"""The file of a data set that is given by name or by path, and its clients."""

import os
import pathlib

from tff_mf.base import validation
from tff_mf.base.errors import InputValueError

from ...runs.initial_model import EMBEDDED, SQLITE
from . import pydoc, stackoverflow


def data_file(dataset: str) -> pathlib.Path:
    """Returns the file of a data set.

    Args:
        dataset: `pydoc`, written on first use; `stackoverflow`, downloaded on first use; `sqlite:FILE`, or a path.
    """
    named = {"pydoc": pydoc.cached_pydoc, "stackoverflow": stackoverflow.cached_stackoverflow}
    if dataset in named:
        return named[dataset]()
    check_dataset(dataset)
    return _file_of(dataset)


def given_file(dataset: str) -> pathlib.Path | None:
    """Returns the file of a data set of one's own; `None` of one that has a name, which may have to be made first."""
    return None if dataset in EMBEDDED else _file_of(dataset)


def check_dataset(dataset: str) -> None:
    """Raises unless a data set is a file, or one that is kept in the cache; it is not made here."""
    if dataset in EMBEDDED:
        pydoc.cache_folder()
    elif not os.path.isfile(_file_of(dataset)):
        raise InputValueError(
            f"dataset={dataset!r} is neither `pydoc` nor `stackoverflow`, nor an existing file in "
            f"StackOverflow's format{validation.did_you_mean(dataset, EMBEDDED)}"
        )


def _file_of(dataset: str) -> pathlib.Path:
    return pathlib.Path(dataset.removeprefix(SQLITE))
