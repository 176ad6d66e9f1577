"""Sentences by client, in SQLite files of the format of TFF's StackOverflow: found or made, checked, read.

Nothing here needs TensorFlow, which takes seconds to load, but what writes examples or reads the words in them.
"""

import collections
import contextlib
import hashlib
import importlib.metadata
import itertools
import json
import lzma
import operator
import os
import pathlib
import re
import sqlite3
import sys
import sysconfig
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np

from tff_mf.base import validation
from tff_mf.base.errors import InputValueError

from .output import console, files
from .runs.settings import EMBEDDED, SQLITE

TRAIN, HELDOUT, TEST = SPLITS = ("train", "heldout", "test")
VARIABLE = "TFF_MF_CACHE"
STACKOVERFLOW = "stackoverflow.sqlite"
# TFF's own order of a split's clients for this seed, which the papers' code validates and tests in.
_ORDER = 0
# A column may be declared to ignore case, and then two clients would have each other's examples.
_EXAMPLES = (
    "SELECT serialized_example_proto FROM examples WHERE client_id = ? COLLATE BINARY AND split_name = ? ORDER BY rowid"
)

# What `pydoc` is made of, as far as it is installed. All that is installed would give other text, and other figures,
# whenever a dependency comes or goes.
STDLIB = "stdlib"
PACKAGES = (
    STDLIB,
    *("jax", "keras", "matplotlib", "numpy", "scikit-learn", "scipy", "tensorflow", "tensorflow-federated"),
)
# A module with fewer sentences than this does not become a client.
MIN_SENTENCES = 8
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
FORMAT_VERSION = 5


def data_file(dataset: str) -> pathlib.Path:
    """Returns the file of a data set.

    Args:
        dataset: `pydoc`, written on first use; `stackoverflow`, downloaded on first use; `sqlite:FILE`, or a path.
    """
    given = check_dataset(dataset)
    if given is not None:
        return given
    return cached_pydoc() if dataset == "pydoc" else cached_stackoverflow()


def check_dataset(dataset: str) -> pathlib.Path | None:
    """Returns the file of a data set of one's own; `None` of one that has a name, which may have to be made first."""
    if dataset in EMBEDDED:
        return None
    path = pathlib.Path(dataset.removeprefix(SQLITE))
    if not os.path.isfile(path):
        raise InputValueError(
            f"dataset={dataset!r} is neither `pydoc` nor `stackoverflow`, nor an existing file in "
            f"StackOverflow's format{validation.did_you_mean(dataset, EMBEDDED)}"
        )
    return checked(path)


def checked(path: pathlib.Path) -> pathlib.Path:
    """Returns `path` if its file is whole, and each of the three splits has an example."""
    try:
        with path.open("rb") as file:
            header = file.read(100)
    except OSError as error:
        raise _damaged(path, error) from error
    # SQLite itself finds out that a file was cut off when it reads what is missing.
    page = int.from_bytes(header[16:18], "big")
    if path.stat().st_size < (65536 if page == 1 else page) * int.from_bytes(header[28:32], "big"):
        raise _damaged(path, "it was cut off")
    with _opened(path) as connection:
        # CROSS JOIN keeps the order: clients are few and examples are not, and the first client may have none.
        query = (
            "SELECT serialized_example_proto, num_examples FROM client_metadata CROSS JOIN examples "
            "USING (client_id, split_name) WHERE split_name = ? LIMIT 1"
        )
        missing = [split for split in SPLITS if connection.execute(query, [split]).fetchone() is None]
    if missing:
        raise InputValueError(
            f"path={str(path)!r} has no examples in its splits {', '.join(missing)}: of {', '.join(SPLITS)}, give each "
            "client one with split_names_by_client_id of tff.simulation.datasets.save_to_sql_client_data."
        )
    return path


def client_ids(path: pathlib.Path, split: str) -> list[str]:
    """Returns the clients of a split, by the file's own table of them, in the order in which TFF has them."""
    with _opened(path) as connection:
        query = "SELECT DISTINCT client_id FROM client_metadata WHERE split_name = ?"
        return sorted(client for (client,) in connection.execute(query, [split]))


def number_of_sentences(path: pathlib.Path, split: str) -> int:
    """Returns how many sentences a split has, by the file's own table of clients."""
    with _opened(path) as connection:
        query = "SELECT TOTAL(num_examples) FROM client_metadata WHERE split_name = ?"
        return int(connection.execute(query, [split]).fetchone()[0])


def first_examples(path: pathlib.Path, split: str, clients: Iterable[str], *, most: int) -> list[list[bytes]]:
    """Returns the first serialized examples of each client."""
    # Opened anew: a connection belongs to one thread.
    with _opened(path) as connection:
        query = f"{_EXAMPLES} LIMIT ?"
        return [[example for (example,) in connection.execute(query, [client, split, most])] for client in clients]


def chunks(
    path: pathlib.Path, split: str, *, skip: int = 0, most: int | None = None, size: int = 8192
) -> Iterator[list[bytes]]:
    """Yields the serialized examples of a split, in the order of `create_tf_dataset_from_all_clients(seed=0)` of TFF.

    The papers' code (google-research/federated, `run_stackoverflow.py`) validates on the first 10,000 sentences of the
    test clients in this order, and tests on the others. A split of any size needs little memory.
    """
    ordered = client_ids(path, split)
    np.random.RandomState(_ORDER).shuffle(ordered)
    with _opened(path) as connection:
        rows = (row for client in ordered for row in connection.execute(_EXAMPLES, [client, split]))
        examples = (example for (example,) in itertools.islice(rows, skip, None if most is None else skip + most))
        while chunk := list(itertools.islice(examples, size)):
            yield chunk


def most_used_words(path: pathlib.Path, number: int) -> list[str]:
    """Returns the words of the train split that most clients use, ties in alphabetical order.

    Those of StackOverflow are the ones that TFF counted, which downloads them: it has 135 million sentences.
    """
    if path.name == STACKOVERFLOW:
        import tensorflow_federated as tff

        with contextlib.redirect_stdout(sys.stderr):
            return list(tff.simulation.datasets.stackoverflow.load_word_counts(str(path.parent), number))
    used: collections.Counter[str] = collections.Counter()
    with _opened(path) as connection:
        query = "SELECT client_id, serialized_example_proto FROM examples WHERE split_name = 'train' ORDER BY client_id"
        for _, rows in itertools.groupby(connection.execute(query), key=operator.itemgetter(0)):
            own = [example for _, example in rows]
            try:
                used.update({word for text in texts(own) for word in text.split()})
            except ValueError as error:
                raise _damaged(path, error) from error
    return sorted(used, key=lambda word: (-used[word], word))[:number]


def texts(examples: Sequence[bytes]) -> list[str]:
    """Returns the feature `tokens` of serialized examples.

    Raises:
        ValueError: If one is damaged, or has no such feature.
    """
    import tensorflow as tf

    try:
        parsed = tf.io.parse_example(list(examples), {"tokens": tf.io.FixedLenFeature([], tf.string)})
    except tf.errors.InvalidArgumentError as error:
        raise ValueError("an example has no text `tokens`") from error
    return [text.decode() for text in parsed["tokens"].numpy()]


@contextlib.contextmanager
def _opened(path: pathlib.Path) -> Iterator[sqlite3.Connection]:
    """Yields a connection that only reads; a file that SQLite cannot read is damaged."""
    try:
        with contextlib.closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)) as connection:
            yield connection
    except sqlite3.Error as error:
        raise _damaged(path, error) from error


def _damaged(path: pathlib.Path, reason: Exception | str) -> InputValueError:
    return InputValueError(
        f"path={str(path)!r} is damaged, or not in StackOverflow's format ({reason}): write one with "
        "tff.simulation.datasets.save_to_sql_client_data."
    )


def write(path: pathlib.Path, sentences: Mapping[tuple[str, str], Sequence[str]]) -> None:
    """Writes a new file with the sentences of clients, each by its split and its name.

    TFF's `save_to_sql_client_data`, which makes a dataset of each client, takes 30 times as long.
    """
    import tensorflow as tf

    def serialized(text: str) -> bytes:
        feature = tf.train.Feature(bytes_list=tf.train.BytesList(value=[text.encode()]))
        return tf.train.Example(features=tf.train.Features(feature={"tokens": feature})).SerializeToString()

    # SQLite gives a file of its own the mode 644; an empty one that is there keeps the mode of any new file.
    path.open("xb").close()
    with contextlib.closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("CREATE TABLE examples (split_name TEXT, client_id TEXT, serialized_example_proto BLOB)")
        connection.execute("CREATE TABLE client_metadata (client_id TEXT, split_name TEXT, num_examples INTEGER)")
        for (split, name), own in sentences.items():
            rows = [(split, name, serialized(text)) for text in own]
            connection.executemany("INSERT INTO examples VALUES (?, ?, ?)", rows)
            connection.execute("INSERT INTO client_metadata VALUES (?, ?, ?)", (name, split, len(rows)))
        # Without it, the query for one client reads all of the file.
        connection.execute("CREATE INDEX examples_of_client ON examples (client_id, split_name)")


def cache_folder() -> pathlib.Path:
    """Returns the folder of data sets that have a name, made if need be: TFF_MF_CACHE, else `~/.cache/tff-mf`."""
    path = pathlib.Path(os.environ.get(VARIABLE) or "~/.cache/tff-mf").expanduser()
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputValueError(
            f"the cache of data sets, {str(path)!r}, cannot be made ({error.strerror}); set {VARIABLE} to another."
        ) from error
    return path


def cached_stackoverflow() -> pathlib.Path:
    """Returns the path of the StackOverflow file, which TFF downloads if it is not there: several GB."""
    path = cache_folder() / STACKOVERFLOW
    if path.is_file():
        return checked(path)
    import tensorflow_federated as tff

    try:
        # TFF writes to the final name as data come, and takes whatever is there for complete.
        with tempfile.TemporaryDirectory(dir=path.parent) as staging, contextlib.redirect_stdout(sys.stderr):
            tff.simulation.datasets.stackoverflow.load_data(cache_dir=staging)
            files.move_into_place(checked(pathlib.Path(staging, STACKOVERFLOW)), path)
    except (OSError, lzma.LZMAError, sqlite3.Error) as error:
        raise InputValueError(
            f"dataset='stackoverflow' could not be downloaded ({error}), and nothing was kept: try again, copy the "
            f"file of a machine that has it to {str(path)!r}, or train on dataset='pydoc', which needs no connection."
        ) from error
    return path


def cached_pydoc() -> pathlib.Path:
    """Returns the path of the `pydoc` file of this environment, written if it is not there.

    Its name has a hash of what it is made of, so that an upgraded distribution gives another. An edited one of the same
    version, as in an editable installation, gives the same.
    """
    versions = [(name, None if package is None else package.version) for name, package in _chosen(None).items()]
    environment = json.dumps([FORMAT_VERSION, sys.version_info[:3], versions])
    path = cache_folder() / f"pydoc-{hashlib.sha256(environment.encode()).hexdigest()[:16]}.sqlite"
    with contextlib.suppress(InputValueError):
        return checked(path)
    write_pydoc(path)
    return path


def write_pydoc(out: str | os.PathLike, packages: Iterable[str] | None = None) -> None:
    """Writes the `pydoc` data set: real English, really non-IID, without a download.

    The same environment (Python, distributions and their versions) gives the same bytes. The file appears whole or not
    at all; a file that was there before is replaced.

    Args:
        out: The file to write; its folder must exist.
        packages: Names of distributions, "stdlib" for the standard library; `PACKAGES` if not given.
    """
    sentences = clients_of(_modules(_chosen(packages)))
    path = pathlib.Path(out)
    with tempfile.TemporaryDirectory(prefix=".pydoc-", dir=path.parent) as scratch:
        whole = pathlib.Path(scratch, "whole.sqlite")
        write(whole, {(split_of(name), name): own for name, own in sentences.items()})
        files.move_into_place(checked(whole), path)


def split_of(client_id: str) -> str:
    """Returns the split that a client is in: eight, one and one tenth of all, by its name alone.

    Example:
        >>> split_of("json.decoder")
        'train'
    """
    place = int.from_bytes(hashlib.sha256(client_id.encode()).digest()[:8], "big") / 2**64
    return TRAIN if place < 0.8 else HELDOUT if place < 0.9 else TEST


def clients_of(modules: Mapping[str, pathlib.Path]) -> dict[str, list[str]]:
    """Returns the sentences of the modules that have enough; a sentence belongs to the first module that has it.

    Args:
        modules: The file of each module.
    """
    seen: set[str] = set()
    clients: dict[str, list[str]] = {}
    with console.bar("pydoc: reading modules", len(modules)) as advance:
        for name, file in modules.items():
            advance(1, "")
            try:
                text = file.read_text(encoding="ascii", errors="replace")
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


def _chosen(packages: Iterable[str] | None) -> dict[str, importlib.metadata.Distribution | None]:
    """Returns the distributions that are installed, in the order of their names; the standard library is none."""
    chosen = {}
    for name in sorted(PACKAGES if packages is None else packages):
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            chosen[name] = None if name == STDLIB else importlib.metadata.distribution(name)
    return chosen


def _modules(chosen: Mapping[str, importlib.metadata.Distribution | None]) -> dict[str, pathlib.Path]:
    """Returns the files of the modules of packages, by the name of the module, in the order of names."""
    modules: dict[str, pathlib.Path] = {}
    for distribution in chosen.values():
        for path, file in _files(distribution):
            names = path.removesuffix(".py").removesuffix("/__init__").split("/")
            # Others are scripts, which cannot be imported: ../../bin/x.py.
            if path.endswith(".py") and not _SKIPPED.search(path) and all(map(str.isidentifier, names)):
                modules.setdefault(".".join(names), file)
    return dict(sorted(modules.items()))


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
