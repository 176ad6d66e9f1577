"""`participation.csv`: the clients of each attempt of each round, on disk before the attempt begins."""

import contextlib
import csv
import dataclasses
import io
import itertools
import pathlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TextIO

from ...base.errors import InputValueError
from ..output import files
from ._ledger_lines import Begin, cohort_digest

_FIELDS = ["round", "attempt", "client"]
_MOST_DIGITS = 18

WriteCohort = Callable[[int, int, Sequence[str]], None]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Entry:
    """A line of a log.

    Attributes:
        round_number: The round, counted from 1.
        attempt: The attempt of the round, counted from 1.
        client: The client that took part.
    """

    round_number: int
    attempt: int
    client: str


@contextlib.contextmanager
def open_log(path: pathlib.Path, *, begun: Sequence[Begin] | None = None) -> Iterator[WriteCohort]:
    """Yields a function that appends a round, its attempt and its clients to a log, durably.

    Args:
        path: The log. It must not exist unless the run is resumed.
        begun: The attempts in the ledger of a resumed run. The log keeps the clients of these, and of one more attempt
            that the ledger may lack: clients of an abandoned attempt count too. See `kept_entries`.
    """
    if begun is None:
        if path.exists():
            raise InputValueError(f"path={str(path)!r} is the log of another run: name another folder.")
    else:
        kept = ([entry.round_number, entry.attempt, entry.client] for entry in kept_entries(path, begun))
        files.write_atomically(path, _csv([_FIELDS, *kept]))
    with files.appended(path, new=begun is None) as file:
        if begun is None:
            file.append(_csv([_FIELDS]))

        def log(round_number: int, attempt: int, clients: Sequence[str]) -> None:
            file.append(_csv((round_number, attempt, client) for client in clients))

        yield log


def kept_entries(path: pathlib.Path, begun: Sequence[Begin]) -> list[Entry]:
    """Returns the entries of an interrupted run's log: of all attempts in its ledger, and of at most one more.

    Clients are on disk before the ledger says that their attempt began. So there are two ways in which the log can have
    an attempt that the ledger lacks: the run was stopped in between, or an older ledger was put back, and then that
    attempt may have been released. The two cannot be told apart, so the clients of that attempt count. Only an
    incomplete last line is left out: no attempt begins before its clients are on disk.
    """
    kept: list[Entry] = []
    # Client names are text, but a power failure can leave a last line that is not.
    content = path.read_bytes().decode(errors="replace") if path.exists() else ""
    rows = _rows(path, io.StringIO(content[: content.rfind("\n") + 1], newline=""), strict=True)
    if next(rows, _FIELDS) != _FIELDS:
        raise InputValueError(
            f"path={str(path)!r} cannot be continued: its first line must name the columns {_FIELDS}. Restore it."
        )
    for each in begun:
        found = [_entry(path, row) for row in itertools.islice(rows, each.clients)]
        place = {(entry.round_number, entry.attempt) for entry in found}
        if place - {(each.round, each.attempt)} or cohort_digest([e.client for e in found]) != each.cohort:
            raise InputValueError(
                f"path={str(path)!r} has other clients in round {each.round}, attempt {each.attempt}, than the "
                "ledger: one of them was changed. Restore both."
            )
        kept += found
    return kept + _one_more(path, rows)


def _one_more(path: pathlib.Path, rows: Iterator[list[str]]) -> list[Entry]:
    """Returns the entries of the one attempt that the ledger lacks, up to the first damaged line."""
    found: list[Entry] = []
    with contextlib.suppress(InputValueError):
        found.extend(_entry(path, row) for row in rows)
    if len({(entry.round_number, entry.attempt) for entry in found}) > 1:
        raise InputValueError(f"path={str(path)!r} has rounds that the ledger lacks: restore both.")
    return found


def read_entries(path: pathlib.Path) -> Iterator[Entry]:
    """Yields each line of a log."""
    try:
        with path.open(newline="", encoding="utf-8") as file:
            rows = _rows(path, file)
            fields = next(rows, None)
            if fields != _FIELDS:
                raise InputValueError(
                    f"path={str(path)!r} is not a participation log: it must have the columns {_FIELDS}."
                )
            yield from _in_order(path, (_entry(path, row) for row in rows))
    except UnicodeDecodeError as error:
        raise InputValueError(f"path={str(path)!r} is damaged: {error}.") from error


def _in_order(path: pathlib.Path, entries: Iterable[Entry]) -> Iterator[Entry]:
    """Yields entries whose rounds increase, except for entries of a further attempt."""
    newest: dict[int, int] = {}
    current = (0, 0)
    for entry in entries:
        number, attempt = entry.round_number, entry.attempt
        if (number, attempt) != current:
            again = attempt > newest.get(number, 0) and attempt > 1
            if number <= current[0] and not again:
                raise InputValueError(
                    f"path={str(path)!r} has round {number}, attempt {attempt}, after round {current[0]}."
                )
            current = (number, attempt)
            newest[number] = attempt
        yield entry


def _entry(path: pathlib.Path, row: list[str]) -> Entry:
    """Returns the entry of a line."""
    *numbers, client = row or [""]
    whole = all(text.isdecimal() and len(text) <= _MOST_DIGITS and int(text) >= 1 for text in numbers)
    if not whole or len(numbers) != 2:
        raise InputValueError(f"path={str(path)!r} has the damaged line {row}.")
    return Entry(round_number=int(numbers[0]), attempt=int(numbers[1]), client=client)


def _rows(path: pathlib.Path, file: TextIO, *, strict: bool = False) -> Iterator[list[str]]:
    """Yields the lines of a CSV file."""
    try:
        yield from csv.reader(file, strict=strict)
    except csv.Error as error:
        raise InputValueError(f"path={str(path)!r} is damaged: {error}.") from error


def _csv(lines: Iterable[Iterable[object]]) -> str:
    text = io.StringIO(newline="")
    csv.writer(text).writerows(lines)
    return text.getvalue()
