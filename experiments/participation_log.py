"""Who took part in which round, on disk before the round runs; what was observed is read back from it."""

import contextlib
import csv
import os
import pathlib
from collections.abc import Callable, Iterator, Sequence

from tff_mf.errors import InputValueError

from .sampling import ObservedParticipation

_FIELDS = ["round", "client"]
_MOST_DIGITS = 18


@contextlib.contextmanager
def open_log(path: pathlib.Path, *, after_round: int | None = None) -> Iterator[Callable[[int, Sequence[str]], None]]:
    """Yields a function that writes a round and its clients to a CSV file, durably.

    Args:
        path: The file, which must be new unless a run goes on.
        after_round: Round after which a run goes on. Later ones, which were logged but never
            released, are taken out of the file: they are run, and logged, again.
    """
    kept = [] if after_round is None else _lines_until(path, after_round)
    if after_round is not None:
        _replace(path, kept)
    elif path.exists():
        raise InputValueError(f"path={str(path)!r} is the log of another run: name another folder.")
    with path.open("x" if after_round is None else "a", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        if not kept:
            writer.writerow(_FIELDS)
            file.flush()

        def log(round_number: int, clients: Sequence[str]) -> None:
            writer.writerows((round_number, client) for client in clients)
            file.flush()
            os.fsync(file.fileno())

        yield log


def read_observed(path: pathlib.Path) -> ObservedParticipation:
    """Returns how often, and how far apart, clients took part according to a log.

    Raises:
        InputValueError: If the file is not such a log, or its rounds are not in order.
    """
    last: dict[str, int] = {}
    count: dict[str, int] = {}
    separation: int | None = None
    for round_number, client in read_entries(path):
        if client in last:
            apart = round_number - last[client]
            separation = apart if separation is None else min(separation, apart)
        last[client] = round_number
        count[client] = count.get(client, 0) + 1
    return ObservedParticipation(min_sep=separation, max_participations=max(count.values(), default=0))


def read_entries(path: pathlib.Path) -> Iterator[tuple[int, str]]:
    """Yields round and client of every line of a log.

    Raises:
        InputValueError: If the file is not such a log, or its rounds are not in order.
    """
    try:
        with path.open(newline="", encoding="utf-8") as file:
            yield from _entries(path, csv.DictReader(file))
    except (UnicodeDecodeError, csv.Error) as error:
        raise InputValueError(f"path={str(path)!r} is damaged: {error}.") from error


def _entries(path: pathlib.Path, reader: csv.DictReader) -> Iterator[tuple[int, str]]:
    if reader.fieldnames != _FIELDS:
        raise InputValueError(f"path={str(path)!r} is not a participation log: it must have the columns {_FIELDS}.")
    current = 0
    for row in reader:
        client = row["client"]
        if client is None or None in row or not row["round"].isdecimal() or len(row["round"]) > _MOST_DIGITS:
            raise InputValueError(f"path={str(path)!r} has the damaged line {row}.")
        round_number = int(row["round"])
        if round_number < current:
            raise InputValueError(f"path={str(path)!r} has round {round_number} after round {current}.")
        current = round_number
        yield round_number, client


def _lines_until(path: pathlib.Path, last_round: int) -> list[list[str]]:
    """Returns the lines of a log up to a round; a run that was killed may have left a part of a later one."""
    if not path.exists():
        return []
    try:
        with path.open(newline="", encoding="utf-8") as file:
            lines = list(csv.reader(file))
        whole = [line for line in lines[1:] if len(line) == len(_FIELDS)]
        return lines[:1] + [line for line in whole if int(line[0]) <= last_round]
    except (ValueError, csv.Error) as error:
        raise InputValueError(f"path={str(path)!r} is damaged: {error}. The run cannot go on without it.") from error


def _replace(path: pathlib.Path, lines: list[list[str]]) -> None:
    temporary = path.with_suffix(".tmp")
    with temporary.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows(lines)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
