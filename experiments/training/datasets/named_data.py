"""The file of a data set that is given by name or by path, its clients and its words."""

import collections
import os
import pathlib

from tff_mf.base import validation
from tff_mf.base.errors import InputValueError

from ...runs.initial_model import EMBEDDED, SQLITE
from . import pydoc, sqlite, stackoverflow, synthetic


def load(path: pathlib.Path) -> sqlite.Splits:
    """Returns the splits of a file in StackOverflow's format, or of a synthetic data set."""
    return synthetic.load(path) if synthetic.is_synthetic(path) else sqlite.load(path)


def load_word_counts(path: pathlib.Path, vocab_size: int | None = None) -> "collections.OrderedDict[str, int]":
    """Returns the `vocab_size` most used words of the train split; see `sqlite.load_word_counts`."""
    if synthetic.is_synthetic(path):
        return synthetic.read(path).word_counts(vocab_size)
    return sqlite.load_word_counts(path, vocab_size)


def data_file(dataset: str) -> pathlib.Path:
    """Returns the file of a data set.

    Args:
        dataset: `pydoc`, written on first use; `stackoverflow`, downloaded on first use; `synthetic`, of its size, for
            dry runs; `sqlite:FILE`, or a path.
    """
    named = {
        "pydoc": pydoc.cached_pydoc,
        "stackoverflow": stackoverflow.cached_stackoverflow,
        "synthetic": synthetic.cached_synthetic,
    }
    if dataset in named:
        return named[dataset]()
    check_dataset(dataset)
    return _file_of(dataset)


def given_file(dataset: str) -> pathlib.Path | None:
    """Returns the file of a data set of one's own; `None` of one that has a name, which may have to be made first."""
    path = _file_of(dataset)
    return None if dataset in EMBEDDED or synthetic.is_synthetic(path) else path


def check_dataset(dataset: str) -> None:
    """Raises unless a data set is a file, or one that is kept in the cache; it is not made here."""
    if dataset in EMBEDDED:
        pydoc.cache_folder()
    elif not os.path.isfile(_file_of(dataset)):
        raise InputValueError(
            f"dataset={dataset!r} is neither `pydoc`, `stackoverflow` nor `synthetic`, nor an existing file in "
            f"StackOverflow's format{validation.did_you_mean(dataset, EMBEDDED)}"
        )


def _file_of(dataset: str) -> pathlib.Path:
    return pathlib.Path(dataset.removeprefix(SQLITE))
