"""Ledger and participation log of a run, written together: the clients of a round are on disk before it begins."""

import bisect
import contextlib
import pathlib
from collections.abc import Iterator, Mapping, Sequence

from tff_mf.base.errors import InputValueError

from . import ledger, participation_log, run_record
from .names import LEDGER, PARTICIPATION


class RunLog:
    """The ledger and the participation log of a run. Made by `open_run_log`."""

    def __init__(self, book: ledger.Ledger, write: participation_log.WriteCohort, past: dict[str, list[int]]) -> None:
        self._book, self._write, self._past = book, write, past

    @property
    def past(self) -> Mapping[str, Sequence[int]]:
        """The rounds of each client, counted from 1, in order, abandoned attempts included."""
        return self._past

    @property
    def run(self) -> str:
        """Random identifier of the run, to be kept in its checkpoints."""
        return self._book.run

    @property
    def last_released(self) -> int:
        """The last round that was released, 0 before the first."""
        return self._book.last_released

    def begin(
        self, round_number: int, clients: Sequence[str], *, divisor: float, clip_norm: float, restarts: bool = False
    ) -> None:
        """Records that a round is about to be computed, for the first time or again.

        Args:
            round_number: The round, counted from 1.
            clients: The clients that take part, each once.
            divisor: The number by which the noised sum is divided.
            clip_norm: Bound on the norm of a client's update in this round.
            restarts: Whether the noise starts anew in this round.

        Raises:
            InputValueError: If the round was released, is not the next one, or a client is listed twice; nothing is
                written then.
        """
        attempt = self._book.next_attempt(round_number, clients)
        self._write(round_number, attempt, clients)
        self.note(round_number, clients, divisor=divisor, clip_norm=clip_norm, restarts=restarts)

    def note(
        self, round_number: int, clients: Sequence[str], *, divisor: float, clip_norm: float, restarts: bool
    ) -> None:
        """Appends to the ledger that a round begins whose clients are on disk; the arguments are as for `begin`."""
        if restarts:
            self._book.restarted(round_number)
        self._book.begin(round_number, clients, divisor=divisor, clip_norm=clip_norm)
        for client in clients:
            self.remember(client, round_number)

    def remember(self, client: str, round_number: int) -> None:
        """Adds a round to a client's rounds."""
        rounds = self._past.setdefault(client, [])
        if round_number not in rounds:
            bisect.insort(rounds, round_number)

    def released_until(self, round_number: int, *, reports: ledger.ReportCounts | None = None) -> None:
        """Records that all rounds up to this one are released; see `Ledger.released_until`."""
        self._book.released_until(round_number, reports=reports)

    def ended(self) -> None:
        """Records that the run has ended."""
        self._book.ended()


@contextlib.contextmanager
def open_run_log(folder: pathlib.Path, *, run: str | None = None) -> Iterator[RunLog]:
    """Yields the log of a run: a new one, or the existing one of a run that is resumed.

    Formal guarantee: clients that are on disk count. If the ledger lacks an attempt whose clients are on disk, the
    attempt is appended to the ledger as begun.

    Args:
        folder: The run's folder, with `run.json`.
        run: Identifier of the run in its checkpoints, if known; see `ledger.open_ledger`.

    Raises:
        InputValueError: If `run.json` is missing, or the existing files are damaged, do not agree, or say that the
            run has ended.
    """
    book_path, path = folder / LEDGER, folder / PARTICIPATION
    resumed = book_path.exists()
    with (
        ledger.open_ledger(book_path, run=run) as book,
        participation_log.open_log(path, begun=book.begun if resumed else None) as write,
    ):
        log = RunLog(book, write, {})
        entries = list(participation_log.read_entries(path))
        known = sum(each.clients for each in book.begun)
        for entry in entries[:known]:
            log.remember(entry.client, entry.round_number)
        if len(entries) > known:
            _begin_what_is_on_disk(log, folder, book, entries[known:])
        yield log


def _begin_what_is_on_disk(
    log: RunLog, folder: pathlib.Path, book: ledger.Ledger, entries: Sequence[participation_log.Entry]
) -> None:
    """Appends to the ledger that an attempt began whose clients are already on disk.

    Raises:
        InputValueError: If this attempt cannot be begun now.
    """
    number, clients = entries[0].round_number, [entry.client for entry in entries]
    if entries[0].attempt != book.next_attempt(number, clients):
        raise InputValueError(
            f"path={str(folder / PARTICIPATION)!r} has attempt {entries[0].attempt} of round {number}, which does not "
            "follow from the ledger: one of the two files is an older version. Restore both."
        )
    record = run_record.read_record(folder)
    log.note(
        number,
        clients,
        divisor=record.divisor_or_default,
        clip_norm=book.begun[-1].clip_norm if book.begun else record.clip_norm,
        restarts=record.restarts_in(number),
    )
