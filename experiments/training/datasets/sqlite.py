"""Files of the format that StackOverflow ships in: three splits by client, and a vocabulary. Written, checked, read.

Nothing here needs TensorFlow, which takes seconds to load, but for the words of a file that has no table of them.
"""

import collections
import contextlib
import functools
import itertools
import operator
import os
import pathlib
import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np

from tff_mf.base import validation
from tff_mf.base.errors import InputTypeError, InputValueError

TRAIN, HELDOUT, TEST = SPLITS = ("train", "heldout", "test")
# As TFF's writer spells them: SQLite stores their text.
_TABLES = (
    """CREATE TABLE examples (
           split_name TEXT NOT NULL,
           client_id TEXT NOT NULL,
           serialized_example_proto BLOB NOT NULL);""",
    """CREATE TABLE client_metadata (
           client_id TEXT NOT NULL,
           split_name TEXT NOT NULL,
           num_examples INTEGER NOT NULL);""",
)
_COLUMNS = {
    "examples": {"split_name", "client_id", "serialized_example_proto"},
    "client_metadata": {"client_id", "split_name", "num_examples"},
}
FEATURES = ("creation_date", "score", "tags", "title", "tokens", "type")
_REMEDY = "write one with tff.simulation.datasets.save_to_sql_client_data"
# TFF's own order of a split's clients for this seed, which the papers' code validates and tests in.
_ORDER = 0
_EXAMPLES = "SELECT serialized_example_proto FROM examples WHERE client_id = ? AND split_name = ? ORDER BY rowid"
_CLIENTS = "SELECT DISTINCT client_id FROM client_metadata WHERE split_name = ?"


def write(path: pathlib.Path, clients: Iterable[tuple[str, str, Iterable[Mapping[str, str | int]]]]) -> None:
    """Writes a new file with the examples of all clients, to the byte as TFF's `save_to_sql_client_data` does.

    That function reads a TensorFlow dataset of each client: `pydoc` would take half a minute in place of a second.

    Args:
        path: The file, which must not exist.
        clients: Id and split of each client, and its examples: values by feature.
    """
    # SQLite gives a file of its own the mode 644; an empty one that is there keeps the mode of any new file.
    path.open("xb").close()
    with contextlib.closing(sqlite3.connect(path)) as connection, connection:
        for table in _TABLES:
            connection.execute(table)
        for client, split, examples in clients:
            rows = [(split, client, serialized(example)) for example in examples]
            connection.executemany("INSERT INTO examples VALUES (?, ?, ?)", rows)
            connection.execute("INSERT INTO client_metadata VALUES (?, ?, ?)", (client, split, len(rows)))


def serialized(features: Mapping[str, str | int]) -> bytes:
    """Returns a serialized `tf.train.Example` of one value a feature, a text or a whole number, in their order.

    Example:
        >>> serialized({"tags": "a"}).hex(" ")
        '0a 0f 0a 0d 0a 04 74 61 67 73 12 05 0a 03 0a 01 61'
    """
    return _field(1, b"".join(_entry(name, value) for name, value in features.items()))


@functools.lru_cache(maxsize=64)
def _entry(name: str, value: str | int) -> bytes:
    """Returns a feature with its name; most of them occur in many examples."""
    # A list of bytes is field 1 of a feature, one of integers is field 3.
    of_value = _field(1, _field(1, value.encode())) if isinstance(value, str) else _field(3, _field(1, _varint(value)))
    return _field(1, _field(1, name.encode()) + _field(2, of_value))


def _field(number: int, content: bytes) -> bytes:
    """Returns a field of a protocol buffer that has a length."""
    return bytes([number << 3 | 2]) + _varint(len(content)) + content


def _varint(number: int) -> bytes:
    """Returns a whole number in sevens of bits, the lowest first, all but the last marked."""
    sevens = []
    while number > 127:
        sevens.append(number & 127 | 128)
        number >>= 7
    return bytes([*sevens, number])


def add_extras(path: pathlib.Path, word_counts: Iterable[tuple[str, int]]) -> None:
    """Adds to a file how many clients of the train split use each word, and an index where it has none."""
    with contextlib.closing(sqlite3.connect(path)) as connection, connection:
        columns = {
            connection.execute(f"PRAGMA index_info({index[1]!r})").fetchone()[2]
            for index in connection.execute("PRAGMA index_list(examples)").fetchall()
        }
        if not columns & {"client_id", "split_name"}:
            # Without it, the query for one client reads all of the file.
            connection.execute("CREATE INDEX examples_of_client ON examples (client_id, split_name)")
        connection.execute("CREATE TABLE word_counts (word TEXT NOT NULL, clients INTEGER NOT NULL)")
        connection.executemany("INSERT INTO word_counts VALUES (?, ?)", word_counts)


def most_used(clients: Iterable[Iterable[str]]) -> list[tuple[str, int]]:
    """Returns how many clients use each word, most used first, ties in alphabetical order: as StackOverflow counts.

    Example:
        >>> most_used([["a b", "b b"], ["b"]])
        [('b', 2), ('a', 1)]
    """
    counts: collections.Counter[str] = collections.Counter()
    for texts in clients:
        counts.update({word for text in texts for word in text.split()})
    return sorted(counts.items(), key=lambda item: (-item[1], item[0]))


def load_word_counts(path: str | os.PathLike, vocab_size: int | None = None) -> "collections.OrderedDict[str, int]":
    """Returns the `vocab_size` most used words of the train split, as `most_used` has them.

    A file without a table of them, as TFF's writer makes it, is read through for them, each time anew.

    Args:
        path: A file in StackOverflow's format.
        vocab_size: How many words; None for all of them, and all if there are fewer.
    """
    size = None if vocab_size is None else validation.whole("vocab_size", vocab_size)
    with _opened(checked(path)) as connection:
        if connection.execute("PRAGMA table_info(word_counts)").fetchall():
            query = "SELECT word, clients FROM word_counts ORDER BY clients DESC, word LIMIT ?"
            return collections.OrderedDict(connection.execute(query, [-1 if size is None else size]).fetchall())
        query = "SELECT client_id, serialized_example_proto FROM examples WHERE split_name = 'train' ORDER BY client_id"
        by_client = itertools.groupby(connection.execute(query), key=operator.itemgetter(0))
        try:
            counts = most_used(texts([example for _, example in rows]) for _, rows in by_client)
        except ValueError as error:
            raise _damaged(path, error) from error
        return collections.OrderedDict(counts[:size])


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


def clients(path: str | os.PathLike, split: str) -> list[str]:
    """Returns the clients of a split, by the file's own table of them, in the order in which TFF has them."""
    with _opened(path) as connection:
        return sorted(client for (client,) in connection.execute(_CLIENTS, [split]))


def number_of_sentences(path: str | os.PathLike, split: str) -> int:
    """Returns how many sentences a split has, by the file's own table of clients."""
    with _opened(path) as connection:
        query = "SELECT COALESCE(SUM(num_examples), 0) FROM client_metadata WHERE split_name = ?"
        return int(connection.execute(query, [split]).fetchone()[0])


def first_examples(path: str | os.PathLike, split: str, clients: Iterable[str], *, most: int) -> list[list[bytes]]:
    """Returns the first serialized examples of each client."""
    # Opened anew: a connection belongs to one thread.
    with _opened(path) as connection:
        query = f"{_EXAMPLES} LIMIT ?"
        return [[example for (example,) in connection.execute(query, [client, split, most])] for client in clients]


def chunks(
    path: str | os.PathLike, split: str, *, skip: int = 0, most: int | None = None, size: int = 8192
) -> Iterator[list[bytes]]:
    """Yields the serialized examples of a split, in the order of `create_tf_dataset_from_all_clients(seed=0)` of TFF.

    The papers' code (google-research/federated, `run_stackoverflow.py`) validates on the first 10,000 sentences of the
    test clients in this order, and tests on the others. A split of any size needs little memory.
    """
    ordered = clients(path, split)
    np.random.RandomState(_ORDER).shuffle(ordered)
    with _opened(path) as connection:
        rows = (row for client in ordered for row in connection.execute(_EXAMPLES, [client, split]))
        examples = (example for (example,) in itertools.islice(rows, skip, None if most is None else skip + most))
        while chunk := list(itertools.islice(examples, size)):
            yield chunk


def checked(path: str | os.PathLike) -> pathlib.Path:
    """Returns `path` if its file is of the format: TFF's own errors come later, nameless, or abort the process."""
    if not isinstance(path, str | os.PathLike):
        raise InputTypeError(f"path={path!r} must be a path.")
    path = pathlib.Path(path)
    problem = _problem(path)
    if problem:
        raise InputValueError(f"path={str(path)!r} {problem}; {_REMEDY}.")
    return path


def _problem(path: pathlib.Path) -> str | None:
    """Returns what is wrong with a file; `None` if it is of the format."""
    if not path.is_file():
        return "is not a file"
    try:
        with path.open("rb") as file:
            header = file.read(100)
    except OSError as error:
        return f"cannot be read: {error.strerror}"
    if not header.startswith(b"SQLite format 3\0") or len(header) < 100:
        return "is not an SQLite file"
    page = int.from_bytes(header[16:18], "big")
    size, expected = path.stat().st_size, (65536 if page == 1 else page) * int.from_bytes(header[28:32], "big")
    if size < expected:
        return f"is damaged: it has {size} bytes of {expected}"
    with _opened(path) as connection:
        for table, columns in _COLUMNS.items():
            missing = columns - {row[1] for row in connection.execute(f"PRAGMA table_info({table})")}
            if missing:
                return f"is not in StackOverflow's format: table {table!r} lacks {', '.join(sorted(missing))}"
        return _problem_of_splits(connection)


def _problem_of_splits(connection: sqlite3.Connection) -> str | None:
    """Returns what is wrong with the three splits: TFF's writer gives all clients one, unless it is told."""
    there = [row[0] for row in connection.execute("SELECT DISTINCT split_name FROM client_metadata ORDER BY 1 LIMIT 9")]
    missing = [name for name in SPLITS if name not in there]
    if missing:
        shown = ", ".join(repr(str(name)[:40]) for name in there) or "none"
        return (
            f"has the splits {shown}, and lacks {', '.join(map(repr, missing))} of 'train', 'heldout' (for validation) "
            "and 'test': give each client one of them with split_names_by_client_id"
        )
    # CROSS JOIN keeps the order: clients are few and examples are not, and the first client may have none.
    query = (
        "SELECT CAST(serialized_example_proto AS BLOB) FROM client_metadata CROSS JOIN examples "
        "USING (client_id, split_name) WHERE split_name = ? LIMIT 1"
    )
    for name in SPLITS:
        example = connection.execute(query, [name]).fetchone()
        if not example:
            return f"has no examples in its split {name!r}"
        # A feature's name stands in an example as field 1 of an entry, with its length.
        lacking = [feature for feature in FEATURES if _field(1, feature.encode()) not in (example[0] or b"")]
        if lacking:
            return (
                f"is not in StackOverflow's format: an example of split {name!r} has not the features "
                f"{', '.join(lacking)} of {', '.join(FEATURES)}"
            )
    return None


@contextlib.contextmanager
def _opened(path: str | os.PathLike) -> Iterator[sqlite3.Connection]:
    """Yields a connection that only reads; a file that SQLite cannot read is damaged."""
    uri = f"{pathlib.Path(path).absolute().as_uri()}?mode=ro"
    try:
        with contextlib.closing(sqlite3.connect(uri, uri=True)) as connection:
            yield connection
    except sqlite3.Error as error:
        raise _damaged(path, error) from error


def _damaged(path: str | os.PathLike, error: Exception) -> InputValueError:
    return InputValueError(f"path={str(path)!r} is damaged ({error}); {_REMEDY}.")
