"""The `pydoc` data set: real English, really non-IID, without a download.

A Python module is a client; the English sentences of its docstrings are its examples. The text
comes from the standard library and the installed distributions, read, never imported. The file is
in the format that StackOverflow ships in, so that everything that reads StackOverflow reads it.
"""

import collections
import contextlib
import dataclasses
import hashlib
import importlib.metadata
import json
import os
import pathlib
import sqlite3
import sys
import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence

from tff_mf.errors import InputTypeError, InputValueError

from ..output import files
from . import _cache, _docstrings, _sql_file

TRAIN, HELDOUT, TEST = SPLIT_NAMES = ("train", "heldout", "test")

# To be raised whenever the same sources would give another file: the name of a cached file depends on it.
FORMAT_VERSION = 2

# StackOverflow has a date with every example; a docstring has none.
_NO_DATE = "1970-01-01 00:00:00 UTC"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Summary:
    """What a `pydoc` file holds; each count by split name ("train", "heldout", "test").

    Attributes:
        path: The file.
        clients: Modules.
        sentences: Examples, no two of them the same.
        words: Tokens of all sentences, punctuation included.
        seconds: How long it took, 0 for a file that was there.
        cached: Whether the file was there.
    """

    path: pathlib.Path
    clients: Mapping[str, int]
    sentences: Mapping[str, int]
    words: Mapping[str, int]
    seconds: float
    cached: bool


def write_pydoc(out: str | os.PathLike, packages: Iterable[str] | None = None, *, progress: bool = True) -> Summary:
    """Writes the `pydoc` data set to the file `out`, unless it is there already.

    The same environment (Python, distributions and their versions) gives the same bytes. The file
    appears whole or not at all; a file that was there before is replaced.

    Args:
        out: The file to write; its folder must exist.
        packages: Names of distributions, "stdlib" for the standard library. None is the standard
            library and every distribution that is installed, apart from tff-mf.
        progress: Whether to show a bar on a terminal.

    Raises:
        InputValueError: If `out` cannot be written, a package is not installed, or the packages
            have too little text for three splits.
    """
    started = time.monotonic()
    path = _writable(out)
    chosen = _docstrings.packages(packages)
    fingerprint = _fingerprint(chosen)
    if (found := _summary_of(path, fingerprint)) is not None:
        return found
    clients = _docstrings.clients(_docstrings.modules(chosen), progress=progress)
    counts = _counts(clients)
    _check_splits(counts["clients"], list(chosen))
    _write(path, clients, {"fingerprint": fingerprint, "summary": json.dumps(counts)})
    return Summary(path=path, seconds=round(time.monotonic() - started, 3), cached=False, **counts)


def split_of(client_id: str) -> str:
    """Returns the split that a client is in: eight, one and one tenth of all, by its name alone.

    Example:
        >>> split_of("json.decoder")
        'train'
    """
    share = int.from_bytes(hashlib.sha256(client_id.encode()).digest()[:8], "big") / 2**64
    return TRAIN if share < 0.8 else HELDOUT if share < 0.9 else TEST


def cached_pydoc(
    packages: Iterable[str] | None = None, cache_dir: str | os.PathLike | None = None, *, progress: bool = True
) -> pathlib.Path:
    """Returns the path of the `pydoc` file of this environment, which is written if it is not there.

    Its name carries a hash of the environment, so that an upgraded distribution gives a new file. (An
    edited one of the same version, as in an editable installation, does not.)

    Args:
        packages: As in `write_pydoc`.
        cache_dir: The folder to keep files in, made if need be. None is the environment variable
            TFF_MF_CACHE, and without it `tff-mf` in XDG_CACHE_HOME or `~/.cache`.
        progress: Whether to show a bar on a terminal.

    Raises:
        InputValueError: As in `write_pydoc`, or if the folder cannot be made.
    """
    folder = _cache.folder(cache_dir)
    packages = None if packages is None else list(packages)
    name = f"pydoc-{_fingerprint(_docstrings.packages(packages))[:16]}.sqlite"
    return write_pydoc(folder / name, packages, progress=progress).path


def _writable(out: str | os.PathLike) -> pathlib.Path:
    if not isinstance(out, str | os.PathLike):
        raise InputTypeError(f"out={out!r} must be a path.")
    path = pathlib.Path(out)
    if path.is_dir():
        raise InputValueError(f"out={str(out)!r} is a folder; name a file in it.")
    if "\0" in str(path) or (path.exists() and not path.is_file()):
        raise InputValueError(f"out={str(out)!r} is not an ordinary file; name another.")
    if not path.parent.is_dir():
        raise InputValueError(f"out={str(out)!r}: the folder {str(path.parent)!r} does not exist; make it first.")
    try:
        tempfile.TemporaryFile(dir=path.parent).close()
    except OSError as error:
        raise InputValueError(
            f"out={str(out)!r}: the folder {str(path.parent)!r} cannot be written to ({error.strerror})."
        ) from error
    return path


def _fingerprint(chosen: Mapping[str, importlib.metadata.Distribution | None]) -> str:
    versions = [(name, None if package is None else package.version) for name, package in chosen.items()]
    environment = [FORMAT_VERSION, sys.version_info[:3], versions]
    return hashlib.sha256(json.dumps(environment).encode()).hexdigest()


def _summary_of(path: pathlib.Path, fingerprint: str) -> Summary | None:
    """Returns the summary kept in the file at `path`, or None if it is not whole or of another environment."""
    if not path.is_file():
        return None
    try:
        with contextlib.closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)) as connection:
            kept = dict(connection.execute("SELECT key, value FROM pydoc"))
            if kept["fingerprint"] != fingerprint or connection.execute("PRAGMA quick_check").fetchone() != ("ok",):
                return None
            return Summary(path=path, seconds=0.0, cached=True, **json.loads(kept["summary"]))
    except (sqlite3.Error, KeyError, TypeError, ValueError):
        return None


def _counts(clients: Mapping[str, Sequence[str]]) -> dict[str, dict[str, int]]:
    """Returns what a summary counts, by split."""
    counts = {what: dict.fromkeys(SPLIT_NAMES, 0) for what in ("clients", "sentences", "words")}
    for name, sentences in clients.items():
        split = split_of(name)
        counts["clients"][split] += 1
        counts["sentences"][split] += len(sentences)
        counts["words"][split] += sum(sentence.count(" ") + 1 for sentence in sentences)
    return counts


def _check_splits(counts: Mapping[str, int], packages: Sequence[str]) -> None:
    if min(counts.values()) == 0:
        names = ",".join(packages)
        shown = names if len(names) < 80 else f"{names[:77]}..."
        raise InputValueError(
            f"packages={shown!r} have too little text: {sum(counts.values())} modules with "
            f"{_docstrings.MIN_SENTENCES} or more sentences ({counts[TRAIN]} to train, {counts[HELDOUT]} to validate, "
            f"{counts[TEST]} to test); name more packages, or none to use all that is installed."
        )


def _word_counts(clients: Mapping[str, Sequence[str]]) -> list[tuple[str, int]]:
    """Returns how many clients of the train split use each word, as StackOverflow counts, most used first."""
    counts = collections.Counter()
    for name, sentences in clients.items():
        if split_of(name) == TRAIN:
            counts.update({word for sentence in sentences for word in sentence.split(" ")})
    return sorted(counts.items(), key=lambda item: (-item[1], item[0]))


def _write(path: pathlib.Path, clients: Mapping[str, Sequence[str]], facts: Mapping[str, str]) -> None:
    try:
        with tempfile.TemporaryDirectory(prefix=".pydoc-", dir=path.parent) as scratch:
            whole = pathlib.Path(scratch) / "whole.sqlite"
            examples = ((name, split_of(name), (_example(name, each) for each in clients[name])) for name in clients)
            _sql_file.write(whole, examples)
            _write_extras(whole, clients, facts)
            files.move_into_place(whole, path)
    except (OSError, sqlite3.OperationalError) as error:
        raise InputValueError(f"out={str(path)!r} cannot be written: {error}.") from error


def _example(name: str, sentence: str) -> dict[str, str | int]:
    """Returns the features of an example, in the order in which TensorFlow would serialize them."""
    return {
        "title": name,
        "tags": name.replace(".", "|"),
        "score": 0,
        "type": "answer",
        "tokens": sentence,
        "creation_date": _NO_DATE,
    }


def _write_extras(whole: pathlib.Path, clients: Mapping[str, Sequence[str]], facts: Mapping[str, str]) -> None:
    with contextlib.closing(sqlite3.connect(whole)) as connection, connection:
        # Without it, TFF's query for one client reads all of the file.
        connection.execute("CREATE INDEX examples_of_client ON examples (client_id, split_name)")
        connection.execute("CREATE TABLE word_counts (word TEXT NOT NULL, clients INTEGER NOT NULL)")
        connection.executemany("INSERT INTO word_counts VALUES (?, ?)", _word_counts(clients))
        connection.execute("CREATE TABLE pydoc (key TEXT NOT NULL, value TEXT NOT NULL)")
        connection.executemany("INSERT INTO pydoc VALUES (?, ?)", facts.items())
