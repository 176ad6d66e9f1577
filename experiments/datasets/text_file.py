"""The clients and the words of a data set's file, whatever its format."""

import collections
import pathlib

from . import sqlite, synthetic


def load(path: pathlib.Path) -> sqlite.Splits:
    """Returns the splits of a file in StackOverflow's format, or of a synthetic data set.

    Raises:
        InputValueError: If there is no such file, or it is damaged or of another format.
    """
    return synthetic.load(path) if synthetic.is_synthetic(path) else sqlite.load(path)


def load_word_counts(path: pathlib.Path, vocab_size: int | None = None) -> "collections.OrderedDict[str, int]":
    """Returns the `vocab_size` most used words of the train split; see `sqlite.load_word_counts`.

    Raises:
        InputTypeError: If `vocab_size` is not a whole number.
        InputValueError: If it is below 1, or the file is damaged.
    """
    if synthetic.is_synthetic(path):
        return synthetic.read(path).word_counts(vocab_size)
    return sqlite.load_word_counts(path, vocab_size)
