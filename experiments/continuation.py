"""Whether the files of a run that was stopped say the same as its checkpoint: what was released is not run again."""

import csv
import pathlib

from tff_mf.errors import InputValueError

from . import reporting
from .ledger import LEDGER, LedgerRecord, cohort_digest, read_ledger
from .reports import file_hash

_REMEDY = "Put the newest checkpoint and the files of the run back, or start another run in another folder."


def check(folder: pathlib.Path, round_number: int, *, participation: pathlib.Path, metrics: pathlib.Path) -> None:
    """Raises unless a run may go on after `round_number`.

    Formal guarantee: no round runs again of which the ledger or the metrics say that something was released. A run
    whose newest checkpoint is lost therefore ends where it is: its report covers what it released.

    Args:
        folder: The run's folder.
        round_number: Last round of its newest checkpoint; 0 if it has none.
        participation: The participation log.
        metrics: The metrics.

    Raises:
        InputValueError: If it may not, or a file is damaged.
    """
    logged = _cohorts(participation)
    if not (folder / LEDGER).exists():
        if round_number or logged:
            raise InputValueError(f"ledger={str(folder / LEDGER)!r} is missing, and the run has begun. {_REMEDY}")
        return
    record = _without_partial_line(folder / LEDGER)
    if record.configuration not in (None, file_hash(folder / reporting.CONFIGURATION)):
        raise InputValueError(
            f"run={str(folder / reporting.CONFIGURATION)!r} was changed since the run began. {_REMEDY}"
        )
    released = max([0, *record.released, *_evaluated(metrics)])
    if released > round_number:
        raise InputValueError(
            f"round {released} was released, and the newest checkpoint is of round {round_number}: to run rounds again "
            f"would release them twice. {_REMEDY}"
        )
    if max(logged, default=0) > max(record.attempts, default=0) + 1:
        raise InputValueError(f"ledger={str(folder / LEDGER)!r} lacks rounds that {participation.name} has. {_REMEDY}")
    for number in range(1, round_number + 1):
        if cohort_digest(logged.get(number, [])) != record.cohorts.get(number):
            raise InputValueError(
                f"path={str(participation)!r} has other clients in round {number} than the ledger: one of them was "
                f"changed. {_REMEDY}"
            )


def _without_partial_line(path: pathlib.Path) -> LedgerRecord:
    record = read_ledger(path)
    # A last line that was not written to its end is of something that did not happen.
    if record.problems and not path.read_bytes().endswith(b"\n"):
        return record
    if record.problems:
        raise InputValueError(f"ledger={str(path)!r} cannot go on: {'; '.join(record.problems)}. {_REMEDY}")
    return record


def _cohorts(path: pathlib.Path) -> dict[int, list[str]]:
    """Returns the clients of each round; a line that was not written to its end is none."""
    found: dict[int, list[str]] = {}
    for row in _rows(path):
        if row.get("client") is not None:
            found.setdefault(_round(path, row), []).append(row["client"])
    return found


def _evaluated(path: pathlib.Path) -> list[int]:
    """Returns the rounds of which there is more than how long they took: what was computed from the model."""
    known = ("round", "seconds")
    return [_round(path, row) for row in _rows(path) if any(row[name] for name in row if name not in known)]


def _round(path: pathlib.Path, row: dict[str, str]) -> int:
    try:
        return int(row["round"])
    except (KeyError, TypeError, ValueError):
        raise InputValueError(f"path={str(path)!r} has the damaged line {row}. {_REMEDY}") from None


def _rows(path: pathlib.Path) -> list[dict[str, str]]:
    if not path.exists():
        return []
    try:
        with path.open(newline="", encoding="utf-8") as file:
            reader = csv.DictReader(file)
            if "round" not in (reader.fieldnames or ()):
                raise ValueError("its first line names no column round")
            return list(reader)
    except (OSError, ValueError, csv.Error) as error:
        raise InputValueError(f"path={str(path)!r} cannot be read: {error}. {_REMEDY}") from error
