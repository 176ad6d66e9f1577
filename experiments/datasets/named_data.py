"""The file of a data set that is given by name or by path."""

import os
import pathlib

from tff_mf import validation
from tff_mf.errors import InputValueError

from . import _cache

SQLITE = "sqlite:"
EMBEDDED = ("pydoc", "stackoverflow", "synthetic")


def data_file(dataset: str) -> pathlib.Path:
    """Returns the file of a data set.

    Args:
        dataset: `pydoc`, written on first use; `stackoverflow`, downloaded on first use; `synthetic`, of its size, for
            dry runs; `sqlite:FILE`, or a path.

    Raises:
        InputValueError: If there is no such file, or it cannot be downloaded or written.
    """
    if dataset == "pydoc":
        from . import pydoc

        return pydoc.cached_pydoc()
    if dataset == "stackoverflow":
        from . import stackoverflow

        return stackoverflow.cached_stackoverflow()
    if dataset == "synthetic":
        from . import synthetic

        return synthetic.cached_synthetic()
    check_dataset(dataset)
    return _file_of(dataset)


def check_dataset(dataset: str) -> None:
    """Raises unless a data set is a file, or one that is kept in the cache; it is not made here.

    Raises:
        InputValueError: If it is none of them, or the cache cannot be written.
    """
    if dataset in EMBEDDED:
        _cache.cache_folder()
    elif not os.path.isfile(_file_of(dataset)):
        raise InputValueError(
            f"dataset={dataset!r} is neither `pydoc`, `stackoverflow` nor `synthetic`, nor an existing file in "
            f"StackOverflow's format{validation.did_you_mean(dataset, EMBEDDED)}"
        )


def _file_of(dataset: str) -> pathlib.Path:
    return pathlib.Path(dataset.removeprefix(SQLITE))
