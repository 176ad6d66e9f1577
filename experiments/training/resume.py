"""Checks that the files of a stopped run agree with its checkpoint, so that no released round is run again."""

import logging
import pathlib
from collections.abc import Mapping, Sequence

from tff_mf.errors import InputValueError

from ..output.files import file_hash
from ..run_folder.ledger import LedgerRecord, read_ledger
from ..run_folder.metrics import ROUND, SECONDS, read_metrics, write_metrics
from ..run_folder.names import LEDGER, RUN_JSON
from ..run_folder.participation_log import kept_entries

_LOG = logging.getLogger(__name__)

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
    if record.configuration != file_hash(folder / RUN_JSON) and record.begun:
        raise InputValueError(f"run={str(folder / RUN_JSON)!r} was changed since the run began. {_REMEDY}")
    if run is not None and record.run not in ("", run):
        raise InputValueError(
            f"ledger={str(folder / LEDGER)!r} is of run {record.run[:8]}, and the checkpoints are of {run[:8]}: its "
            f"log would lack who took part in their rounds. {_REMEDY}"
        )
    released = max([0, *record.released, read_metrics(metrics).last_evaluated])
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
    expected = {number: {ROUND: str(number)} for number in range(1, round_number + 1)}
    for row in history:
        expected[int(row[ROUND])] = {name: str(value) for name, value in row.items()}
    metrics = read_metrics(path)
    kept = [row for row in metrics.rows if row[ROUND] in map(str, expected)]
    found = [{name: text for name, text in row.items() if text and name != SECONDS} for row in kept]
    if found == list(expected.values()) and not metrics.problems:
        return
    _LOG.warning("%r was damaged: it is written anew, from the checkpoint of round %d.", str(path), round_number)
    write_metrics(path, expected.values())
