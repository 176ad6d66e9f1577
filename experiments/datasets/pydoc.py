"""The `pydoc` data set: real English, really non-IID, without a download.

A Python module is a client; the English sentences of its docstrings are its examples. The text is
that of the standard library and of the installed distributions, parsed, never imported. The file is
in the format that StackOverflow ships in, so that all that reads StackOverflow reads it.
"""

import collections
import concurrent.futures
import contextlib
import dataclasses
import hashlib
import json
import os
import pathlib
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from tff_mf.errors import InputTypeError, InputValueError

from ..output import files
from ..output import progress as _progress
from . import _cache, _sources, _tff_examples
from ._extract import MIN_SENTENCES

# To be raised whenever the same sources would give another file: it is part of what a cached file is known by.
FORMAT_VERSION = 1

TRAIN, HELDOUT, TEST = SPLIT_NAMES = ("train", "heldout", "test")

_SECONDS_BETWEEN_LINES = 5.0
_BATCH = 32  # files


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


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Client:
    name: str
    split: str
    examples: Sequence[tuple[str, str]]  # title, tokens


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
    clients = _clients(_sources.sources(chosen), progress)
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


def split_of(client_id: str) -> str:
    """Returns the split that a client is in: eight, one and one tenth of all, by its name alone.

    Example:
        >>> split_of("json.decoder")
        'train'
    """
    share = int.from_bytes(hashlib.sha256(client_id.encode()).digest()[:8], "big") / 2**64
    return TRAIN if share < 0.8 else HELDOUT if share < 0.9 else TEST


def _writable(out: str | os.PathLike) -> pathlib.Path:
    if not isinstance(out, str | os.PathLike):
        raise InputTypeError(f"out={out!r} must be a path.")
    path = pathlib.Path(out)
    if path.is_dir():
        raise InputValueError(f"out={str(out)!r} is a folder; name a file in it.")
    if "\0" in str(path) or (path.exists() and not path.is_file()):
        raise InputValueError(f"out={str(out)!r} is no ordinary file; name another.")
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


def _clients(modules: Sequence[_sources.Source], progress: bool) -> list[_Client]:
    found = collections.defaultdict(list)
    for module, pairs in zip(modules, _extracted([module.path for module in modules], progress), strict=True):
        found[module.name].extend((module.name + inner, text) for inner, text in pairs)
    seen: set[str] = set()
    clients = []
    for name in sorted(found):
        if len(found[name]) < MIN_SENTENCES:
            continue
        own = {}
        for title, text in found[name]:
            if text not in seen:
                seen.add(text)
                own[text] = title
        if len(own) >= MIN_SENTENCES:
            examples = [(title, text) for text, title in own.items()]
            clients.append(_Client(name=name, split=split_of(name), examples=examples))
    return clients


def _extracted(paths: Sequence[str], progress: bool) -> Iterator[list[tuple[str, str]]]:
    """Yields what `_extract.extract` returns for each of `paths`, in their order, from one worker a core."""
    own = threading.local()
    workers: list[subprocess.Popen] = []

    def ask(batch: Sequence[str]) -> list[list[tuple[str, str]]]:
        if not hasattr(own, "worker"):
            own.worker = subprocess.Popen(
                [sys.executable, "-P", "-m", f"{__package__}._extract"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                encoding="utf-8",
                start_new_session=True,  # Ctrl-C is for this process, which then ends its workers.
            )
            workers.append(own.worker)
        own.worker.stdin.write(json.dumps(batch) + "\n")
        own.worker.stdin.flush()
        answer = own.worker.stdout.readline()
        if not answer:
            raise RuntimeError(
                f"The process that reads {batch[0]!r} and {len(batch) - 1} more ended without an answer."
            )
        return json.loads(answer)

    batches = [paths[start : start + _BATCH] for start in range(0, len(paths), _BATCH)]
    pool = concurrent.futures.ThreadPoolExecutor(max_workers=os.cpu_count() or 1)
    try:
        answers = pool.map(ask, batches)
        for answer in _shown(answers, len(batches), "reading modules", progress):
            yield from answer
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
        for worker in workers:
            worker.kill()
        pool.shutdown()
        for worker in workers:
            worker.communicate()


def _shown(items: Iterable, total: int, what: str, progress: bool) -> Iterator:
    """Yields `items` and shows on standard error how many are done: a bar on a terminal, else a line now and then."""
    if not progress:
        yield from items
        return
    if sys.stderr.isatty():
        yield from _progress.steps(items, total, f"pydoc: {what}")
        return
    last = time.monotonic()
    for done, item in enumerate(items):
        if time.monotonic() - last >= _SECONDS_BETWEEN_LINES:
            last = time.monotonic()
            print(f"pydoc: {what}, {100 * done // total} %", file=sys.stderr, flush=True)
        yield item


def _check_splits(clients: Sequence[_Client], chosen: Sequence[_sources.Package]) -> None:
    counts = _by_split(clients, lambda client: 1)
    if min(counts.values()) == 0:
        names = ",".join(package.name for package in chosen)
        shown = names if len(names) < 80 else f"{names[:77]}..."
        raise InputValueError(
            f"packages={shown!r} have too little text: {len(clients)} modules with {MIN_SENTENCES} or more sentences "
            f"({counts[TRAIN]} to train, {counts[HELDOUT]} to validate, {counts[TEST]} to test); name more packages, "
            f"or none to use all that is installed."
        )


def _by_split(clients: Iterable[_Client], number: Callable[[_Client], int]) -> dict[str, int]:
    counts = dict.fromkeys(SPLIT_NAMES, 0)
    for client in clients:
        counts[client.split] += number(client)
    return counts


def _word_counts(clients: Iterable[_Client]) -> list[tuple[str, int]]:
    """Returns how many clients of the train split use each word, as StackOverflow counts, most used first."""
    counts = collections.Counter()
    for client in clients:
        if client.split == TRAIN:
            counts.update({word for _, text in client.examples for word in text.split(" ")})
    return sorted(counts.items(), key=lambda item: (-item[1], item[0]))


def _write(path: pathlib.Path, clients: Sequence[_Client], summary: Summary, fingerprint: str, progress: bool) -> None:
    try:
        with tempfile.TemporaryDirectory(prefix=".pydoc-", dir=path.parent) as scratch:
            whole = os.path.join(scratch, "whole.sqlite")
            _write_examples(whole, scratch, clients, progress)
            _write_extras(whole, clients, summary, fingerprint)
            _make_readable(whole)
            files.move_into_place(whole, path)
    except (OSError, sqlite3.OperationalError) as error:
        raise InputValueError(f"out={str(path)!r} cannot be written: {error}.") from error


def _write_examples(whole: str, scratch: str, clients: Sequence[_Client], progress: bool) -> None:
    # Here, so that whatever can be refused is refused before TensorFlow Federated takes its ten seconds to load.
    import tensorflow_federated as tff

    by_name = {client.name: client for client in clients}
    shown = _shown(clients, len(clients), "writing clients", progress)

    def dataset_of(name: str) -> _tff_examples.Examples:
        next(shown, None)
        return _tff_examples.Examples(name, by_name[name].examples)

    before = tempfile.tempdir
    # TFF's writer keeps its half of the work in the system's folder for such, and leaves it there when interrupted.
    tempfile.tempdir = scratch
    try:
        tff.simulation.datasets.save_to_sql_client_data(
            client_ids=list(by_name),
            dataset_fn=dataset_of,
            database_filepath=whole,
            split_names_by_client_id={client.name: client.split for client in clients},
        )
    finally:
        tempfile.tempdir = before


def _write_extras(whole: str, clients: Sequence[_Client], summary: Summary, fingerprint: str) -> None:
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


def _make_readable(whole: str) -> None:
    """Gives the file the mode of any new file: TFF's writer makes it the owner's alone."""
    mask = os.umask(0)
    os.umask(mask)
    os.chmod(whole, 0o666 & ~mask)
