"""Files of the format that StackOverflow ships in: written and read, three splits by client, and a vocabulary."""

import collections
import contextlib
import dataclasses
import itertools
import operator
import os
import pathlib
import sqlite3
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from tff_mf.base import validation
from tff_mf.base.errors import InputTypeError, InputValueError

from ...output import protobufs

if TYPE_CHECKING:
    import tensorflow as tf
    import tensorflow_federated as tff


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
# In the order in which the file's features are parsed; the values are names of TensorFlow dtypes.
FEATURES = {
    "creation_date": "string",
    "score": "int64",
    "tags": "string",
    "title": "string",
    "tokens": "string",
    "type": "string",
}
_COLUMNS = {
    "examples": {"split_name", "client_id", "serialized_example_proto"},
    "client_metadata": {"client_id", "split_name", "num_examples"},
}
_SPLITS = ("train", "heldout", "test")
_REMEDY = "write one with tff.simulation.datasets.save_to_sql_client_data"


def strings(example: bytes, name: str) -> list[bytes]:
    """Returns the values of the feature `name`, which must be of strings.

    Raises:
        ValueError: If the example is damaged, or has no such feature.
    """
    features = _features(example)
    if name not in features:
        raise ValueError(f"no feature {name!r}")
    return list(features[name].bytes_list.value)


def serialized(features: Mapping[str, str | int]) -> bytes:
    """Returns a serialized example with one value a feature, in the order of `features`: a text or a whole number.

    Example:
        >>> strings(serialized({"score": 0, "tokens": "a b"}), "tokens")
        [b'a b']
    """
    example = protobufs.new("Example")
    for name, value in features.items():
        feature = example.features.feature.add(key=name).value
        if isinstance(value, str):
            feature.bytes_list.value.append(value.encode())
        else:
            feature.int64_list.value.append(value)
    return example.SerializeToString()


def _features(example: bytes) -> dict[str, Any]:
    return {entry.key: entry.value for entry in protobufs.parsed("Example", example).features.feature}


def write(path: pathlib.Path, clients: Iterable[tuple[str, str, Iterable[Mapping[str, str | int]]]]) -> None:
    """Writes a new file with the examples of all clients.

    Args:
        path: The file, which must not exist.
        clients: Id and split of each client, and its examples: values by feature.
    """
    # SQLite gives a file of its own the mode 644; an empty one that is there keeps the mode of any new file.
    path.open("xb").close()
    with contextlib.closing(sqlite3.connect(path)) as connection, connection:
        for table in _TABLES:
            connection.execute(table)
        for client_id, split, examples in clients:
            rows = [(split, client_id, serialized(example)) for example in examples]
            connection.executemany("INSERT INTO examples VALUES (?, ?, ?)", rows)
            connection.execute("INSERT INTO client_metadata VALUES (?, ?, ?)", (client_id, split, len(rows)))


def add_extras(path: pathlib.Path, word_counts: Iterable[tuple[str, int]]) -> None:
    """Adds to a file how many clients of the train split use each word, and an index where it has none."""
    with contextlib.closing(sqlite3.connect(path)) as connection, connection:
        columns = {
            connection.execute(f"PRAGMA index_info({index[1]!r})").fetchone()[2]
            for index in connection.execute("PRAGMA index_list(examples)").fetchall()
        }
        if not columns & {"client_id", "split_name"}:
            # Without it, TFF's query for one client reads all of the file.
            connection.execute("CREATE INDEX examples_of_client ON examples (client_id, split_name)")
        connection.execute("CREATE TABLE word_counts (word TEXT NOT NULL, clients INTEGER NOT NULL)")
        connection.executemany("INSERT INTO word_counts VALUES (?, ?)", word_counts)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Splits:
    """Three disjoint sets of clients, each a `tff.simulation.datasets.ClientData` of raw examples."""

    train: "tff.simulation.datasets.ClientData"
    validation: "tff.simulation.datasets.ClientData"
    test: "tff.simulation.datasets.ClientData"


def load(path: str | os.PathLike) -> Splits:
    """Opens the file at `path` with TFF's reader.

    Its examples are as in `tff.simulation.datasets.stackoverflow.load_data`: a dictionary of
    scalar strings `creation_date`, `tags`, `title`, `tokens`, `type`, and the int64 `score`. The
    splits "train", "heldout" and "test" are train, validation and test.
    """
    path = checked(path)
    import tensorflow_federated as tff

    def split(name: str) -> "tff.simulation.datasets.ClientData":
        return tff.simulation.datasets.load_and_parse_sql_client_data(str(path), element_spec(), split_name=name)

    return Splits(train=split("train"), validation=split("heldout"), test=split("test"))


def load_word_counts(path: str | os.PathLike, vocab_size: int | None = None) -> "collections.OrderedDict[str, int]":
    """Returns the `vocab_size` most used words of the train split, most used first, ties in alphabetical order.

    As in `tff.simulation.datasets.stackoverflow.load_word_counts`, a count is the number of clients
    that use the word: one client counts once, however much it writes.

    A file without a table of them, as TFF's writer makes it, is read through for them, each time anew.

    Args:
        path: A file in StackOverflow's format.
        vocab_size: How many words; None for all of them, and all if there are fewer.
    """
    size = -1 if vocab_size is None else validation.whole("vocab_size", vocab_size)
    path = checked(path)
    query = "SELECT word, clients FROM word_counts ORDER BY clients DESC, word LIMIT ?"
    try:
        with opened(path) as connection:
            if not connection.execute("PRAGMA table_info(word_counts)").fetchall():
                return collections.OrderedDict(_counted(connection, path)[: None if vocab_size is None else size])
            return collections.OrderedDict(connection.execute(query, [size]).fetchall())
    except sqlite3.Error as error:
        raise InputValueError(f"path={str(path)!r} is damaged ({error}); {_REMEDY}.") from error


def number_of_clients(path: pathlib.Path, split: str) -> int:
    """Returns how many clients a split has, by the file's own table of them."""
    with opened(path) as connection:
        query = "SELECT COUNT(DISTINCT client_id) FROM client_metadata WHERE split_name = ?"
        return int(connection.execute(query, [split]).fetchone()[0])


def element_spec() -> "Mapping[str, tf.TensorSpec]":
    """Returns the type of one StackOverflow example, as TFF's reader and writer want it."""
    import tensorflow as tf

    return collections.OrderedDict((name, tf.TensorSpec([], dtype)) for name, dtype in FEATURES.items())


@contextlib.contextmanager
def opened(path: pathlib.Path) -> Iterator[sqlite3.Connection]:
    """Yields a connection to a file that is read alone."""
    with contextlib.closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)) as connection:
        yield connection


def checked(path: str | os.PathLike) -> pathlib.Path:
    """Returns `path` if its file is of the format: TFF's own errors come later, name less, or abort the process."""
    if not isinstance(path, str | os.PathLike):
        raise InputTypeError(f"path={path!r} must be a path.")
    path = pathlib.Path(path)
    if not path.is_file():
        raise InputValueError(f"path={str(path)!r} is not a file; {_REMEDY}.")
    try:
        with path.open("rb") as file:
            header = file.read(100)
    except OSError as error:
        raise InputValueError(f"path={str(path)!r} cannot be read: {error.strerror}.") from error
    if not header.startswith(b"SQLite format 3\0") or len(header) < 100:
        raise InputValueError(f"path={str(path)!r} is not an SQLite file; {_REMEDY}.")
    page = int.from_bytes(header[16:18], "big")
    expected = (65536 if page == 1 else page) * int.from_bytes(header[28:32], "big")
    if path.stat().st_size < expected:
        raise InputValueError(
            f"path={str(path)!r} is damaged: it has {path.stat().st_size} bytes of {expected}; {_REMEDY}."
        )
    try:
        with opened(path) as connection:
            _check_tables(connection, path)
            _check_splits(connection, path)
            for name in _SPLITS:
                _check_split(connection, path, name)
    except sqlite3.Error as error:
        raise InputValueError(f"path={str(path)!r} is damaged ({error}); {_REMEDY}.") from error
    return path


def _check_tables(connection: sqlite3.Connection, path: pathlib.Path) -> None:
    for table, columns in _COLUMNS.items():
        missing = columns - {row[1] for row in connection.execute(f"PRAGMA table_info({table})")}
        if missing:
            raise InputValueError(
                f"path={str(path)!r} is not in StackOverflow's format: table {table!r} lacks "
                f"{', '.join(sorted(missing))}; {_REMEDY}."
            )


def _check_splits(connection: sqlite3.Connection, path: pathlib.Path) -> None:
    """Raises unless a file has the three splits: TFF's writer gives all clients one, unless it is told."""
    there = [row[0] for row in connection.execute("SELECT DISTINCT split_name FROM client_metadata ORDER BY 1 LIMIT 9")]
    missing = [name for name in _SPLITS if name not in there]
    if missing:
        shown = ", ".join(repr(str(name)[:40]) for name in there) or "none"
        raise InputValueError(
            f"path={str(path)!r} has the splits {shown}, and lacks {', '.join(map(repr, missing))} of 'train', "
            "'heldout' (for validation) and 'test': give each client one of them, as TFF's save_to_sql_client_data "
            "does with split_names_by_client_id."
        )


def _check_split(connection: sqlite3.Connection, path: pathlib.Path, name: str) -> None:
    # CROSS JOIN keeps the order: clients are few and examples are not, and the first client may have none.
    query = (
        "SELECT serialized_example_proto FROM client_metadata CROSS JOIN examples USING (client_id, split_name) "
        "WHERE split_name = ? LIMIT 1"
    )
    example = connection.execute(query, [name]).fetchone()
    if not example:
        raise InputValueError(f"path={str(path)!r} has no examples in its split {name!r}; {_REMEDY}.")
    found: set[str] = set()
    with contextlib.suppress(ValueError):
        found = set(_features(example[0]))
    if set(FEATURES) - found:
        raise InputValueError(
            f"path={str(path)!r} is not in StackOverflow's format: an example of split {name!r} has the features "
            f"{', '.join(sorted(found)) or 'none'}, not {', '.join(FEATURES)}; {_REMEDY}."
        )


def _counted(connection: sqlite3.Connection, path: pathlib.Path) -> list[tuple[str, int]]:
    """Returns how many clients of the train split use each word, most used first, from the examples themselves."""
    counts: collections.Counter[str] = collections.Counter()
    query = "SELECT client_id, serialized_example_proto FROM examples WHERE split_name = 'train' ORDER BY client_id"
    try:
        for _, examples in itertools.groupby(connection.execute(query), key=operator.itemgetter(0)):
            texts = (text for _, example in examples for text in strings(example, "tokens"))
            counts.update({word for text in texts for word in text.decode().split()})
    except ValueError as error:
        raise InputValueError(f"path={str(path)!r} is damaged ({error}); {_REMEDY}.") from error
    return sorted(counts.items(), key=lambda item: (-item[1], item[0]))
