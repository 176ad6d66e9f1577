"""Checks that the files of a stopped run agree with its checkpoint, so that no released round is run again."""

import csv
import io
import logging
import pathlib
from collections.abc import Mapping, Sequence

from tff_mf.errors import InputValueError

from ..output import files
from ..output.files import file_hash
from ..run_folder import names
from ..run_folder.ledger import LEDGER, LedgerRecord, read_ledger
from ..run_folder.participation_log import kept_entries

_LOG = logging.getLogger(__name__)

_SECONDS = "seconds"
_REMEDY = "Put the newest checkpoint and the files of the run back, or start another run in another folder."


def check(
    folder: pathlib.Path,
    round_number: int,
    *,
    participation: pathlib.Path,
    metrics: pathlib.Path,
    run: str | None = None,
) -> None:
    """Raises unless a run may be resumed after `round_number`.

    Formal guarantee: no round runs again that was released according to the ledger or the metrics. A run whose newest
    checkpoint is lost can therefore not be resumed: its report covers what it released.

    Args:
        folder: The run's folder.
        round_number: Last round of its newest checkpoint; 0 if it has none.
        participation: The participation log.
        metrics: The metrics.
        run: Which run the checkpoint is of, if that is known: the ledger must be of the same.

    Raises:
        InputValueError: If it may not, or a file is damaged.
    """
    if not (folder / LEDGER).exists():
        if round_number or participation.exists():
            raise InputValueError(f"ledger={str(folder / LEDGER)!r} is missing, and the run has begun. {_REMEDY}")
        return
    record = _without_partial_line(folder / LEDGER)
    if record.configuration != file_hash(folder / names.RUN_JSON) and record.begun:
        raise InputValueError(f"run={str(folder / names.RUN_JSON)!r} was changed since the run began. {_REMEDY}")
    if run is not None and record.run not in ("", run):
        raise InputValueError(
            f"ledger={str(folder / LEDGER)!r} is of run {record.run[:8]}, and the checkpoints are of {run[:8]}: its "
            f"log would lack who took part in their rounds. {_REMEDY}"
        )
    released = max([0, *record.released, *_evaluated(metrics)])
    if released > round_number:
        raise InputValueError(
            f"round {released} of the run in out={str(folder)!r} was released, and its newest checkpoint is of round "
            f"{round_number}: to run rounds again would release them twice. {_REMEDY}"
        )
    if round_number > record.sequence.position:
        raise InputValueError(
            f"ledger={str(folder / LEDGER)!r} lacks rounds: it ends at {record.sequence.position}, and the newest "
            f"checkpoint is of round {round_number}. {_REMEDY}"
        )
    kept_entries(participation, record.begun)


def _without_partial_line(path: pathlib.Path) -> LedgerRecord:
    record = read_ledger(path)
    if record.impossible:
        raise InputValueError(f"ledger={str(path)!r} cannot go on: {'; '.join(record.impossible)}. {_REMEDY}")
    # A last line that was not written to its end is of something that did not happen.
    if record.problems and not path.read_bytes().endswith(b"\n"):
        return record
    if record.problems:
        raise InputValueError(f"ledger={str(path)!r} cannot go on: {'; '.join(record.problems)}. {_REMEDY}")
    return record


def restore_metrics(path: pathlib.Path, round_number: int, history: Sequence[Mapping[str, float]]) -> None:
    """Rewrites the metrics of all rounds from the checkpoint if the file differs from it, with a warning.

    The durations of the rounds are lost then.

    Args:
        path: The metrics.
        round_number: Last round of the newest checkpoint.
        history: Metrics of each evaluated round, as in the checkpoint.
    """
    if not round_number:
        return
    expected = {number: {"round": str(number)} for number in range(1, round_number + 1)}
    for row in history:
        expected[int(row["round"])] = {name: str(value) for name, value in row.items()}
    kept = [row for row in _metrics(path) if row["round"] in map(str, expected)]
    found = [{name: text for name, text in row.items() if text and name != _SECONDS} for row in kept]
    if found == list(expected.values()):
        return
    _LOG.warning("%r was damaged: it is written anew, from the checkpoint of round %d.", str(path), round_number)
    text = io.StringIO(newline="")
    writer = csv.DictWriter(
        text, ["round", _SECONDS, *dict.fromkeys(name for row in history for name in row if name != "round")]
    )
    writer.writeheader()
    writer.writerows(expected.values())
    files.write_atomically(path, text.getvalue())


def _evaluated(path: pathlib.Path) -> list[int]:
    """Returns the rounds of which there is more than how long they took: what was computed from the model."""
    known = ("round", _SECONDS)
    rows = [row for row in _metrics(path) if any(row[name] for name in row if name not in known)]
    return [int(row["round"]) for row in rows if row["round"].isdecimal()]


def _metrics(path: pathlib.Path) -> list[dict[str, str]]:
    """Returns the rows of the metrics, none if they cannot be read."""
    try:
        with path.open(newline="", encoding="utf-8") as file:
            reader = csv.DictReader(file)
            return [row for row in reader if isinstance(row.get("round"), str) and None not in row]
    except (FileNotFoundError, ValueError, csv.Error):
        return []
    except OSError as error:
        raise InputValueError(f"path={str(path)!r} cannot be read: {error}. {_REMEDY}") from error
