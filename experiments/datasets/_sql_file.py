"""Writes a data set in the file format that StackOverflow ships in, an SQLite database of `tf.train.Example`s.

The file is to the byte the one that `tff.simulation.datasets.save_to_sql_client_data` writes, which needs TensorFlow,
and keeps half of its work in the system's folder of temporary files: nothing can tell it another.
"""

import contextlib
import pathlib
import sqlite3
from collections.abc import Iterable, Mapping

from . import _example_proto

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


def write(path: pathlib.Path, clients: Iterable[tuple[str, str, Iterable[Mapping[str, str | int]]]]) -> None:
    """Writes a new file with the examples of all clients.

    Args:
        path: The file, which must not exist.
        clients: Id and split of each client, and its examples: values by feature.

    Raises:
        FileExistsError: If there is such a file.
        OSError: If it cannot be written.
        sqlite3.OperationalError: If it cannot be written.
    """
    # SQLite gives a file of its own the mode 644; an empty one that is there keeps the mode of any new file.
    path.open("xb").close()
    with contextlib.closing(sqlite3.connect(path)) as connection, connection:
        for table in _TABLES:
            connection.execute(table)
        for client_id, split, examples in clients:
            rows = [(split, client_id, _example_proto.serialized(example)) for example in examples]
            connection.executemany("INSERT INTO examples VALUES (?, ?, ?)", rows)
            connection.execute("INSERT INTO client_metadata VALUES (?, ?, ?)", (client_id, split, len(rows)))
