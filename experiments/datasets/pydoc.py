"""The `pydoc` data set: real English, really non-IID, without a download.

A Python module is a client; the English sentences of its docstrings are its examples. The text is
that of the standard library and of the installed distributions, parsed, never imported. The file is
in the format that StackOverflow ships in, so that everything that reads StackOverflow reads it.
"""

import collections
import contextlib
import dataclasses
import hashlib
import json
import os
import pathlib
import sqlite3
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from tff_mf.errors import InputTypeError, InputValueError

from ..output import files
from . import _cache, _modules, _sources, _sql_file
from ._extract import MIN_SENTENCES
from ._modules import HELDOUT as HELDOUT
from ._modules import SPLIT_NAMES, TEST, TRAIN, Client
from ._modules import split_of as split_of

# To be raised whenever the same sources would give another file: the name of a cached file depends on it.
FORMAT_VERSION = 1

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
        progress: Whether to show on standard error how far the work is.

    Raises:
        InputValueError: If `out` cannot be written, a package is not installed, or the packages
            have too little text for three splits.
    """
    started = time.monotonic()
    path = _writable(out)
    chosen = _sources.packages(packages)
    fingerprint = _fingerprint(chosen)
    if (found := _summary_of(path, fingerprint)) is not None:
        return found
    clients = _modules.read_clients(_sources.sources(chosen), progress=progress)
    _check_splits(clients, chosen)
    summary = Summary(
        path=path,
        clients=_by_split(clients, lambda client: 1),
        sentences=_by_split(clients, lambda client: len(client.examples)),
        words=_by_split(clients, lambda client: sum(text.count(" ") + 1 for _, text in client.examples)),
        seconds=round(time.monotonic() - started, 3),
        cached=False,
    )
    _write(path, clients, summary, fingerprint, progress)
    return dataclasses.replace(summary, seconds=round(time.monotonic() - started, 3))


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
        progress: Whether to show on standard error how far the work is.

    Raises:
        InputValueError: As in `write_pydoc`, or if the folder cannot be made.
    """
    folder = _cache.folder(cache_dir)
    packages = None if packages is None else list(packages)
    name = f"pydoc-{_fingerprint(_sources.packages(packages))[:16]}.sqlite"
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


def _fingerprint(chosen: Sequence[_sources.Package]) -> str:
    environment = [FORMAT_VERSION, sys.version_info[:3], sorted((package.name, package.version) for package in chosen)]
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


def _check_splits(clients: Sequence[Client], chosen: Sequence[_sources.Package]) -> None:
    counts = _by_split(clients, lambda client: 1)
    if min(counts.values()) == 0:
        names = ",".join(package.name for package in chosen)
        shown = names if len(names) < 80 else f"{names[:77]}..."
        raise InputValueError(
            f"packages={shown!r} have too little text: {len(clients)} modules with {MIN_SENTENCES} or more sentences "
            f"({counts[TRAIN]} to train, {counts[HELDOUT]} to validate, {counts[TEST]} to test); name more packages, "
            f"or none to use all that is installed."
        )


def _by_split(clients: Iterable[Client], number: Callable[[Client], int]) -> dict[str, int]:
    counts = dict.fromkeys(SPLIT_NAMES, 0)
    for client in clients:
        counts[client.split] += number(client)
    return counts


def _word_counts(clients: Iterable[Client]) -> list[tuple[str, int]]:
    """Returns how many clients of the train split use each word, as StackOverflow counts, most used first."""
    counts = collections.Counter()
    for client in clients:
        if client.split == TRAIN:
            counts.update({word for _, text in client.examples for word in text.split(" ")})
    return sorted(counts.items(), key=lambda item: (-item[1], item[0]))


def _write(path: pathlib.Path, clients: Sequence[Client], summary: Summary, fingerprint: str, progress: bool) -> None:
    try:
        with tempfile.TemporaryDirectory(prefix=".pydoc-", dir=path.parent) as scratch:
            whole = pathlib.Path(scratch) / "whole.sqlite"
            shown = _modules.shown(clients, len(clients), "writing clients", progress)
            _sql_file.write(whole, ((client.name, client.split, _examples(client)) for client in shown))
            _write_extras(whole, clients, summary, fingerprint)
            files.move_into_place(whole, path)
    except (OSError, sqlite3.OperationalError) as error:
        raise InputValueError(f"out={str(path)!r} cannot be written: {error}.") from error


def _examples(client: Client) -> Iterator[dict[str, str | int]]:
    """Yields the features of each example, in the order in which TensorFlow would serialize them."""
    tags = "|".join(client.name.split("."))
    for title, text in client.examples:
        yield {
            "title": title,
            "tags": tags,
            "score": 0,
            "type": "answer",
            "tokens": text,
            "creation_date": _NO_DATE,
        }


def _write_extras(whole: pathlib.Path, clients: Sequence[Client], summary: Summary, fingerprint: str) -> None:
    counts = {name: getattr(summary, name) for name in ("clients", "sentences", "words")}
    with contextlib.closing(sqlite3.connect(whole)) as connection, connection:
        # Without it, TFF's query for one client reads all of the file.
        connection.execute("CREATE INDEX examples_of_client ON examples (client_id, split_name)")
        connection.execute("CREATE TABLE word_counts (word TEXT NOT NULL, clients INTEGER NOT NULL)")
        connection.executemany("INSERT INTO word_counts VALUES (?, ?)", _word_counts(clients))
        connection.execute("CREATE TABLE pydoc (key TEXT NOT NULL, value TEXT NOT NULL)")
        connection.executemany(
            "INSERT INTO pydoc VALUES (?, ?)", [("fingerprint", fingerprint), ("summary", json.dumps(counts))]
        )
