"""StackOverflow by TFF's own loader, kept so that an interrupted download is never taken for the whole."""

import contextlib
import io
import os
import pathlib
import shutil
import sqlite3
import sys
import tempfile
from collections.abc import Iterator

from tff_mf.base.errors import InputValueError

from ...output import files
from . import pydoc, sqlite

FILE_NAME = "stackoverflow.sqlite"

# Clients of each split, as TFF's documentation of the data set has them.
CLIENTS = {"train": 342_477, "heldout": 38_758, "test": 204_088}
_STAGING = ".stackoverflow-"


def cached_stackoverflow(cache_dir: str | os.PathLike | None = None) -> pathlib.Path:
    """Returns the path of the StackOverflow file, which TFF downloads if it is not there: several GB.

    TFF writes a download to its final name as it comes, and takes whatever is there for complete. Here it goes
    to a folder of its own, is checked (size, format, clients of each split), gets the word counts, and only then its
    name, in one step.

    Args:
        cache_dir: The folder to keep it in; as in `pydoc.cached_pydoc`.
    """
    folder = pydoc.cache_folder(cache_dir)
    path = folder / FILE_NAME
    try:
        with files.held(folder / f"{_STAGING}lock"):
            if not path.is_file():
                _download(folder, path)
    except OSError as error:
        raise InputValueError(f"dataset='stackoverflow' cannot be written to {str(path)!r}: {error}.") from error
    return sqlite.checked(path)


def _download(folder: pathlib.Path, path: pathlib.Path) -> None:
    for left in folder.glob(f"{_STAGING}*.d"):
        shutil.rmtree(left, ignore_errors=True)
    with tempfile.TemporaryDirectory(prefix=_STAGING, suffix=".d", dir=folder) as staging:
        whole = _downloaded(pathlib.Path(staging), path)
        files.move_into_place(whole, path)


def _downloaded(staging: pathlib.Path, final: pathlib.Path) -> pathlib.Path:
    # Here, so that a file that is there is found before TFF takes its ten seconds to load.
    import tensorflow_federated as tff

    data = tff.simulation.datasets.stackoverflow
    try:
        with _only_on_a_terminal():
            # The small file first: without a connection it fails in a moment.
            word_counts = data.load_word_counts(cache_dir=str(staging))
            data.load_data(cache_dir=str(staging))
    except Exception as error:  # Keras' downloader raises a bare Exception, TFF's one of urllib, lzma or sqlite3.
        raise InputValueError(
            f"dataset='stackoverflow' could not be downloaded ({type(error).__name__}: {error}); nothing was kept. It "
            f"needs a connection once: try again, or copy the file {FILE_NAME} of a machine that has it to "
            f"{str(final)!r}, or train on dataset='pydoc', which needs none."
        ) from error
    whole = sqlite.checked(staging / FILE_NAME)
    _check_clients(whole)
    sqlite.add_extras(whole, word_counts.items())
    return whole


@contextlib.contextmanager
def _only_on_a_terminal() -> Iterator[None]:
    """Keeps what a download prints off standard output, and off standard error too if that is no terminal."""
    shown = sys.stderr if sys.stderr.isatty() else io.StringIO()
    with contextlib.redirect_stdout(shown), contextlib.redirect_stderr(shown):
        yield


def _check_clients(path: pathlib.Path) -> None:
    query = "SELECT split_name, COUNT(*) FROM client_metadata GROUP BY split_name"
    with contextlib.closing(sqlite3.connect(path)) as connection:
        found = dict(connection.execute(query).fetchall())
    if found != CLIENTS:
        raise InputValueError(
            f"dataset='stackoverflow' is not whole: its splits have {found} clients, not {CLIENTS}; nothing was kept, "
            f"try again."
        )
