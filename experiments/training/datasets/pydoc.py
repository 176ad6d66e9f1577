"""The `pydoc` data set: real English, really non-IID, without a download."""

import hashlib
import importlib.metadata
import json
import os
import pathlib
import re
import sqlite3
import sys
import sysconfig
import tempfile
from collections.abc import Iterable, Iterator, Mapping

from tff_mf.base.errors import InputValueError

from ...output import files
from ...output import progress as _progress
from . import sqlite

STDLIB = "stdlib"
# A module with fewer sentences than this does not become a client.
MIN_SENTENCES = 8
# What the data set is made of, as far as it is installed. All that is installed would give other text, and other
# figures, whenever a dependency comes or goes.
PACKAGES = (
    STDLIB,
    *("jax", "keras", "matplotlib", "numpy", "scikit-learn", "scipy", "tensorflow", "tensorflow-federated"),
)
_MOST_TOKENS = 80
_LEAST_TOKENS = 5
_LEAST_FUNCTION_WORDS = 0.15
# Test code has few docstrings, and protoc repeats the comments of .proto files.
_SKIPPED = re.compile(r"(^|/)(tests?|idle_test)/|(^|/)test_|_(tests?|pb2|pb2_grpc)\.py$")
# A regular expression finds docstrings 10 times faster than Python's parser. It also finds other long strings, of which
# few have sentences.
_LONG_STRING = re.compile(r'("""|\'\'\')(.*?)\1', re.DOTALL)
_MARKUP = re.compile(r":[\w:+.-]+:(?=`)|[`*]+|\(\)")
# Blank lines, rules, doctests, declared parameters, bullets, and the ends of sentences.
_BOUNDARY = re.compile(
    r"\n[ \t]*\n|^.*(?: : |>>>|[-=~^]{3}).*$|::$|^[ \t]*[-*] |(?<=[.!?:])(?:[ \t]*\n|\s+(?=[A-Z]))", re.MULTILINE
)
# Code, paths, formulas and tables have other characters too.
_PROSE = re.compile(r"[A-Z][A-Za-z0-9 ,;:()\"'./-]*[.!?:]")
_TOKEN = re.compile(r"e\.g\.|i\.e\.|\w+(?:[.'/-]\w+)*|[^\w\s]")
# Code and lists of names have few of these.
_FUNCTION_WORDS = frozenset(
    """the a an of to in on at by for with from as is are was be been it its this that these and or but if no not when
    which who what all any each some one only can may must should will would do does has have you your we""".split()  # noqa: SIM905
)
# To be raised whenever the same sources would give another file: the name of a cached file depends on it.
FORMAT_VERSION = 4
# StackOverflow has a date with every example; a docstring has none.
NO_DATE = "1970-01-01 00:00:00 UTC"


# Distributions by name, in the order of names; None is the standard library.
Packages = Mapping[str, importlib.metadata.Distribution | None]


def chosen_packages(names: Iterable[str] | None = None) -> Packages:
    """Returns the distributions called `names`; `stdlib` is the standard library.

    If `None`, they are those of `PACKAGES` that are installed.
    """
    listed = [name for name in PACKAGES if name == STDLIB or _distribution(name)] if names is None else names
    chosen = {name: None if name == STDLIB else _distribution(name) for name in sorted(listed)}
    missing = [name for name, distribution in chosen.items() if distribution is None and name != STDLIB]
    if missing or not chosen:
        raise InputValueError(
            f"packages={missing!r} are not installed here: name distributions that `pip list` shows, {STDLIB!r} for "
            f"the standard library, or leave packages out to use {', '.join(PACKAGES)}."
        )
    return chosen


def fingerprint() -> str:
    """Returns a hash of what the data set of this environment is made of: an upgraded distribution gives another.

    An edited one of the same version, as in an editable installation, gives the same.
    """
    versions = [(name, None if package is None else package.version) for name, package in chosen_packages().items()]
    environment = [FORMAT_VERSION, sys.version_info[:3], versions]
    return hashlib.sha256(json.dumps(environment).encode()).hexdigest()


def write_pydoc(
    out: str | os.PathLike, packages: Iterable[str] | None = None, *, progress: bool = True
) -> dict[str, dict[str, int]]:
    """Writes the `pydoc` data set to the file `out`, and returns its numbers of clients and of sentences, by split.

    The same environment (Python, distributions and their versions) gives the same bytes. The file
    appears whole or not at all; a file that was there before is replaced.

    Args:
        out: The file to write; its folder must exist.
        packages: Names of distributions, "stdlib" for the standard library. None is those of
            `PACKAGES` that are installed.
        progress: Whether to show a bar on a terminal.
    """
    path = pathlib.Path(out)
    files.check_file(path)
    chosen = chosen_packages(packages)
    clients = clients_of(modules_of(chosen), progress=progress)
    counts = {what: dict.fromkeys(sqlite.SPLITS, 0) for what in ("clients", "sentences")}
    for name, sentences in clients.items():
        counts["clients"][split_of(name)] += 1
        counts["sentences"][split_of(name)] += len(sentences)
    if min(counts["clients"].values()) == 0:
        shown, (train, heldout, test) = ",".join(chosen), counts["clients"].values()
        raise InputValueError(
            f"packages={shown if len(shown) < 80 else f'{shown[:77]}...'!r} have too little text: {len(clients)} "
            f"modules with {MIN_SENTENCES} or more sentences ({train} to train, {heldout} to validate, {test} to "
            f"test); name more packages, or none to use {', '.join(PACKAGES)}."
        )
    try:
        with tempfile.TemporaryDirectory(prefix=".pydoc-", dir=path.parent) as scratch:
            whole = pathlib.Path(scratch) / "whole.sqlite"
            write_clients(whole, clients)
            files.move_into_place(whole, path)
    except (OSError, sqlite3.OperationalError) as error:
        raise InputValueError(f"out={str(path)!r} cannot be written: {error}.") from error
    return counts


def write_clients(path: pathlib.Path, clients: Mapping[str, Iterable[str]]) -> None:
    """Writes a new file with the sentences of clients, by their names, with its words counted."""

    def example(name: str, sentence: str) -> dict[str, str | int]:
        # In the order in which TensorFlow would serialize them.
        about: dict[str, str | int] = {"title": name, "tags": name.replace(".", "|"), "score": 0, "type": "answer"}
        return {**about, "tokens": sentence, "creation_date": NO_DATE}

    examples = ((name, split_of(name), [example(name, text) for text in own]) for name, own in clients.items())
    sqlite.write(path, examples)
    sqlite.add_extras(path, sqlite.most_used(own for name, own in clients.items() if split_of(name) == sqlite.TRAIN))


def split_of(client_id: str) -> str:
    """Returns the split that a client is in: eight, one and one tenth of all, by its name alone.

    Example:
        >>> split_of("json.decoder")
        'train'
    """
    place = int.from_bytes(hashlib.sha256(client_id.encode()).digest()[:8], "big") / 2**64
    return sqlite.TRAIN if place < 0.8 else sqlite.HELDOUT if place < 0.9 else sqlite.TEST


def modules_of(chosen: Packages) -> dict[str, pathlib.Path]:
    """Returns the files of the modules of packages, by the name of the module, in the order of names."""
    modules: dict[str, pathlib.Path] = {}
    for distribution in chosen.values():
        for path, file in _files(distribution):
            names = path.removesuffix(".py").removesuffix("/__init__").split("/")
            # Others are scripts, which cannot be imported: ../../bin/x.py.
            if path.endswith(".py") and not _SKIPPED.search(path) and all(map(str.isidentifier, names)):
                modules.setdefault(".".join(names), file)
    return dict(sorted(modules.items()))


def clients_of(files: Mapping[str, pathlib.Path], *, progress: bool) -> dict[str, list[str]]:
    """Returns the sentences of the modules that have enough; a sentence belongs to the first module that has it.

    Args:
        files: The file of each module.
        progress: Whether to show a bar on a terminal.
    """
    seen: set[str] = set()
    clients: dict[str, list[str]] = {}
    names = _progress.steps(files, len(files), "pydoc: reading modules") if progress else files
    for name in names:
        try:
            text = files[name].read_text(encoding="ascii", errors="replace")
        except OSError:
            continue
        own = dict.fromkeys(
            sentence for _, docstring in _LONG_STRING.findall(text) for sentence in sentences_of(docstring)
        )
        new = [sentence for sentence in own if sentence not in seen]
        if len(new) >= MIN_SENTENCES:
            clients[name] = new
            seen.update(new)
    return clients


def sentences_of(docstring: str) -> Iterator[str]:
    r"""Yields the tokens of each English sentence, as StackOverflow has them: lower-case, between single spaces.

    Punctuation is a token of its own, apart from apostrophes and hyphens inside a word. Unlike
    there, a dot, a slash or an underscore inside a name or a number belongs to it.

    Example:
        >>> list(sentences_of("Returns the larger of the two.\n\n>>> larger(1, 2)\n2\n\nIt's the exact: `larger.py`."))
        ['returns the larger of the two .', "it's the exact : larger.py ."]
    """
    for piece in _BOUNDARY.split(_MARKUP.sub("", docstring)):
        text = " ".join(piece.split())
        if _PROSE.fullmatch(text):
            tokens = _TOKEN.findall(text.lower())
            function_words = sum(token in _FUNCTION_WORDS for token in tokens)
            if _LEAST_TOKENS <= len(tokens) <= _MOST_TOKENS and function_words >= _LEAST_FUNCTION_WORDS * len(tokens):
                yield " ".join(tokens)


def _distribution(name: str) -> importlib.metadata.Distribution | None:
    try:
        return importlib.metadata.distribution(name)
    except (importlib.metadata.PackageNotFoundError, ValueError):
        return None


def _files(distribution: importlib.metadata.Distribution | None) -> Iterator[tuple[str, pathlib.Path]]:
    """Yields the files of a distribution, each with its path relative to what Python searches."""
    if distribution is None:
        root = pathlib.Path(sysconfig.get_path("stdlib"))
        for folder, folders, names in os.walk(root):
            # Not looked through, since it has as many files as all that is installed.
            folders[:] = [name for name in folders if name not in ("site-packages", "dist-packages")]
            for path in (pathlib.Path(folder, name) for name in names if name.endswith(".py")):
                yield path.relative_to(root).as_posix(), path
    else:
        for file in distribution.files or ():
            yield file.as_posix(), pathlib.Path(str(distribution.locate_file(file)))
