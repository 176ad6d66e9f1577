"""Streams the sentences of one split, client after client, so that a split of any size needs little memory."""

import contextlib
import itertools
import os
import pathlib
import sqlite3
from collections.abc import Generator, Iterable, Iterator, Sequence

import numpy as np

from tff_mf.base.errors import InputValueError

from . import sqlite

# TFF's own order of a split's clients for this seed, which the papers' code validates and tests in.
_ORDER = 0
_CHUNK = 8192
_EXAMPLES = "SELECT serialized_example_proto FROM examples WHERE client_id = ? AND split_name = ? ORDER BY rowid"


def number(path: str | os.PathLike, split: str) -> int:
    """Returns how many sentences a split has, by the file's own table of clients."""
    with _opened(path) as connection:
        query = "SELECT COALESCE(SUM(num_examples), 0) FROM client_metadata WHERE split_name = ?"
        return int(connection.execute(query, [split]).fetchone()[0])


def chunks(
    path: str | os.PathLike, split: str, *, skip: int = 0, most: int | None = None, size: int = _CHUNK
) -> Iterator[list[bytes]]:
    """Yields the serialized examples of a split, in the order of `create_tf_dataset_from_all_clients(seed=0)` of TFF.

    The papers' code (google-research/federated, `run_stackoverflow.py`) validates on the first 10,000 sentences of the
    test clients in this order, and tests on the others.
    """
    with contextlib.closing(_examples(pathlib.Path(path), split)) as examples:
        found = itertools.islice(examples, skip, None if most is None else skip + most)
        while chunk := list(itertools.islice(found, size)):
            yield chunk


class ClientSentences:
    """The sentences of single clients of a split."""

    def __init__(self, path: str | os.PathLike, split: str) -> None:
        self._path, self._split = pathlib.Path(path), split

    def of(self, clients: Sequence[str], *, most: int) -> list[list[bytes]]:
        """Returns the first serialized examples of each client."""
        # Opened anew: a connection belongs to one thread.
        with _opened(self._path) as connection:
            query = f"{_EXAMPLES} LIMIT ?"
            return [
                [example for (example,) in connection.execute(query, [client, self._split, most])] for client in clients
            ]


def _examples(path: pathlib.Path, split: str) -> Generator[bytes, None, None]:
    with _opened(path) as connection:
        query = "SELECT DISTINCT client_id FROM client_metadata WHERE split_name = ?"
        for client in _ordered(client for (client,) in connection.execute(query, [split])):
            for (example,) in connection.execute(_EXAMPLES, [client, split]):
                yield example


def _ordered(clients: Iterable[str]) -> list[str]:
    ordered = sorted(clients)
    np.random.RandomState(_ORDER).shuffle(ordered)
    return ordered


@contextlib.contextmanager
def _opened(path: str | os.PathLike) -> Iterator[sqlite3.Connection]:
    try:
        with sqlite.opened(pathlib.Path(path)) as connection:
            yield connection
    except sqlite3.Error as error:
        raise InputValueError(f"path={str(path)!r} is damaged ({error}).") from error
