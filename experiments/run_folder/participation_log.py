"""Who took part in which attempt of which round, on disk before it runs; what was observed is read back from it."""

import contextlib
import csv
import dataclasses
import io
import itertools
import os
import pathlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence

from tff_mf.errors import InputValueError

from ..output import files
from ..sampling import ObservedParticipation
from .ledger import Attempt, cohort_digest

PARTICIPATION = "participation.csv"

_FIELDS = ["round", "attempt", "client"]
# Format 1: only the last attempt of a round was kept.
_FIELDS_WITHOUT_ATTEMPTS = ["round", "client"]
_MOST_DIGITS = 18

WriteCohort = Callable[[int, int, Sequence[str]], None]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Entry:
    """A line of a log.

    Attributes:
        round_number: The round, counted from 1.
        attempt: How often the round was begun, with this time; `None` in a log of format 1.
        client: Who took part.
    """

    round_number: int
    attempt: int | None
    client: str


@contextlib.contextmanager
def open_log(path: pathlib.Path, *, begun: Sequence[Attempt] | None = None) -> Iterator[WriteCohort]:
    """Yields a function that writes a round, its attempt and its clients to a CSV file, durably.

    Args:
        path: The file, which must be new unless a run goes on.
        begun: The attempts that a run which goes on had begun, by its ledger. All of them stay in the file, with one
            that the ledger may lack: clients of an attempt that was given up count too. See `kept_entries`.

    Raises:
        InputValueError: If the file is another run's, or not that of the attempts.
    """
    if begun is None:
        if path.exists():
            raise InputValueError(f"path={str(path)!r} is the log of another run: name another folder.")
    else:
        _replace(path, [_FIELDS, *_as_lines(kept_entries(path, begun))])
    with path.open("x" if begun is None else "a", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        if begun is None:
            writer.writerow(_FIELDS)
            file.flush()

        def log(round_number: int, attempt: int, clients: Sequence[str]) -> None:
            writer.writerows((round_number, attempt, client) for client in clients)
            file.flush()
            os.fsync(file.fileno())

        yield log


def kept_entries(path: pathlib.Path, begun: Sequence[Attempt]) -> list[Entry]:
    """Returns the entries of a log of a run that was stopped: of every attempt that its ledger has, and of one.

    Clients are on disk before the ledger says that their attempt began. One attempt that the ledger lacks is therefore
    there if the run was stopped in between; or if a ledger of before was put back, and then that attempt may have been
    released. Nobody can tell the two apart, and its clients count. Only a last line that was not written to its end is
    left out: no attempt begins before its clients are on disk.

    Raises:
        InputValueError: If the log is not that of the attempts, or has more than one that the ledger lacks.
    """
    kept: list[Entry] = []
    # Names of clients are text, but what a power cut left of a last line need not be.
    content = path.read_bytes().decode(errors="replace") if path.exists() else ""
    content = content[: content.rfind("\n") + 1]
    reader = csv.reader(io.StringIO(content, newline=""), strict=True)
    rows = _rows(path, reader)
    if content and next(rows, None) != _FIELDS:
        raise InputValueError(
            f"path={str(path)!r} cannot go on: its first line must name the columns {_FIELDS}. A log without attempts "
            "is of format 1, which says too little of a run that goes on: end that run where it is."
        )
    for each in begun:
        found = [_entry(path, row) for row in itertools.islice(rows, each.clients)]
        place = {(entry.round_number, entry.attempt) for entry in found}
        if place - {(each.round_number, each.attempt)} or cohort_digest([e.client for e in found]) != each.cohort:
            raise InputValueError(
                f"path={str(path)!r} has other clients in round {each.round_number} than the ledger (attempt "
                f"{each.attempt}): one of them was changed. Put both back as they were."
            )
        kept += found
    return kept + _one_more(path, rows)


def _one_more(path: pathlib.Path, rows: Iterator[list[str]]) -> list[Entry]:
    """Returns the entries of the one attempt that the ledger lacks, up to what a power cut damaged."""
    found: list[Entry] = []
    with contextlib.suppress(InputValueError):
        found.extend(_entry(path, row) for row in rows)
    if len({(entry.round_number, entry.attempt) for entry in found}) > 1:
        raise InputValueError(f"path={str(path)!r} has rounds that the ledger lacks: put both back as they were.")
    return found


def read_observed(path: pathlib.Path) -> ObservedParticipation:
    """Returns how often, and how far apart, clients took part according to a log, in whatever attempt.

    Formal guarantee: a client that is in several attempts of a round took part in it once, since one attempt is
    released at most; one that is in an attempt that was given up took part in its round all the same. A client that is
    listed twice in one attempt has separation 0.

    Raises:
        InputValueError: If the file is not such a log, or its rounds are not in order.
    """
    listed = Counter((entry.client, entry.round_number, entry.attempt) for entry in read_entries(path))
    rounds: dict[str, dict[int, int]] = {}
    for (client, number, _), times in listed.items():
        of_client = rounds.setdefault(client, {})
        of_client[number] = max(times, of_client.get(number, 0))
    apart = [b - a for each in rounds.values() for a, b in itertools.pairwise(sorted(each))]
    if any(times > 1 for each in rounds.values() for times in each.values()):
        apart.append(0)
    counts = (sum(each.values()) for each in rounds.values())
    return ObservedParticipation(min_sep=min(apart, default=None), max_participations=max(counts, default=0))


def read_entries(path: pathlib.Path) -> Iterator[Entry]:
    """Yields every line of a log.

    Raises:
        InputValueError: If the file is not such a log, or its rounds are not in order.
    """
    try:
        with path.open(newline="", encoding="utf-8") as file:
            reader = csv.reader(file)
            fields = next(reader, None)
            if fields not in (_FIELDS, _FIELDS_WITHOUT_ATTEMPTS):
                raise InputValueError(
                    f"path={str(path)!r} is not a participation log: it must have the columns {_FIELDS}."
                )
            entries = (_entry(path, row, attempts=fields == _FIELDS) for row in reader)
            yield from _in_order(path, entries)
    except (UnicodeDecodeError, csv.Error) as error:
        raise InputValueError(f"path={str(path)!r} is damaged: {error}.") from error


def _in_order(path: pathlib.Path, entries: Iterable[Entry]) -> Iterator[Entry]:
    """Yields entries whose rounds grow, but for those of a further attempt."""
    newest: dict[int, int] = {}
    current = (0, 0)
    for entry in entries:
        number, attempt = entry.round_number, entry.attempt or 1
        if (number, attempt) != current:
            again = attempt > newest.get(number, 0) and attempt > 1
            if number <= current[0] and not again:
                raise InputValueError(
                    f"path={str(path)!r} has round {number}, attempt {attempt}, after round {current[0]}."
                )
            current = (number, attempt)
            newest[number] = attempt
        yield entry


def _entry(path: pathlib.Path, row: list[str], *, attempts: bool = True) -> Entry:
    """Returns what a line says."""
    *numbers, client = row or [""]
    whole = all(text.isdecimal() and len(text) <= _MOST_DIGITS and int(text) >= 1 for text in numbers)
    if not whole or len(numbers) != (2 if attempts else 1):
        raise InputValueError(f"path={str(path)!r} has the damaged line {row}.")
    return Entry(round_number=int(numbers[0]), attempt=int(numbers[1]) if attempts else None, client=client)


def _rows(path: pathlib.Path, reader: Iterator[list[str]]) -> Iterator[list[str]]:
    while True:
        try:
            row = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            raise InputValueError(f"path={str(path)!r} is damaged: {error}.") from error
        yield row


def _as_lines(entries: Iterable[Entry]) -> Iterator[list[object]]:
    return ([entry.round_number, entry.attempt, entry.client] for entry in entries)


def _replace(path: pathlib.Path, lines: Iterable[Sequence[object]]) -> None:
    with files.atomic_file(path) as file:
        text = io.TextIOWrapper(file, encoding="utf-8", newline="")
        csv.writer(text).writerows(lines)
        # Writes what is left of the text, and leaves the file open.
        text.detach()
    files.sync_folder(path.parent)
