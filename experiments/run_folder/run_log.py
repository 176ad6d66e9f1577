"""Ledger and participation log of a run, written together: who takes part is on disk before a round begins."""

import bisect
import contextlib
import pathlib
from collections.abc import Iterator, Mapping, Sequence

from tff_mf.errors import InputValueError

from . import ledger, participation_log, run_json
from .participation_log import PARTICIPATION


class RunLog:
    """Both files of a run. Made by `open_run_log`."""

    def __init__(self, book: ledger.Ledger, write: participation_log.WriteCohort, past: dict[str, list[int]]) -> None:
        self._book, self._write, self._past = book, write, past

    @property
    def past(self) -> Mapping[str, Sequence[int]]:
        """The rounds of each client, counted from 1, in order; those of attempts that were given up among them."""
        return self._past

    @property
    def run(self) -> str:
        """Which run this is, of all that were ever begun: to be kept in its checkpoints."""
        return self._book.run

    @property
    def last_released(self) -> int:
        """The last round that was released, 0 if none was."""
        return self._book.last_released

    def begin(
        self, round_number: int, clients: Sequence[str], *, divisor: float, clip_norm: float, restarts: bool = False
    ) -> None:
        """Writes down that a round is about to be computed, for the first time or again.

        Args:
            round_number: The round, counted from 1.
            clients: Who takes part; nobody twice.
            divisor: What the noised sum will be divided by.
            clip_norm: Bound on the norm of a client's update in this round.
            restarts: Whether noise starts anew in this round.

        Raises:
            InputValueError: If the round was released, is not the next one, or a client is twice among its clients;
                nothing is written then.
        """
        attempt = self._book.next_attempt(round_number, clients)
        self._write(round_number, attempt, clients)
        self.note(round_number, clients, divisor=divisor, clip_norm=clip_norm, restarts=restarts)

    def note(
        self, round_number: int, clients: Sequence[str], *, divisor: float, clip_norm: float, restarts: bool
    ) -> None:
        """Writes to the ledger that a round begins whose clients are on disk; the arguments are those of `begin`."""
        if restarts:
            self._book.restarted(round_number)
        self._book.begin(round_number, clients, divisor=divisor, clip_norm=clip_norm)
        for client in clients:
            self.remember(client, round_number)

    def remember(self, client: str, round_number: int) -> None:
        """Counts a round of a client."""
        rounds = self._past.setdefault(client, [])
        if round_number not in rounds:
            bisect.insort(rounds, round_number)

    def released_until(self, round_number: int, *, reports: ledger.ReportCounts | None = None) -> None:
        """Writes down that all rounds to this one may be seen from now on; see `Ledger.released_until`."""
        self._book.released_until(round_number, reports=reports)

    def ended(self) -> None:
        """Writes down that no round will follow."""
        self._book.ended()


@contextlib.contextmanager
def open_run_log(folder: pathlib.Path, *, run: str | None = None) -> Iterator[RunLog]:
    """Yields the log of a run: a new one, or the one that is there, to which a run that goes on adds.

    Formal guarantee: who is on disk counts. An attempt of which the clients are there, and which the ledger lacks, is
    written to it as begun.

    Args:
        folder: The run's folder, with its configuration.
        run: Which run the checkpoints are of, if that is known; see `ledger.open_ledger`.

    Raises:
        InputValueError: If there is no configuration, or the files that are there are damaged, do not agree, or say
            that the run has ended.
    """
    book_path, path = folder / ledger.LEDGER, folder / PARTICIPATION
    goes_on = book_path.exists()
    with (
        ledger.open_ledger(book_path, run=run) as book,
        participation_log.open_log(path, begun=book.begun if goes_on else None) as write,
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
    """Writes to the ledger that an attempt began whose clients are on disk already.

    Raises:
        InputValueError: If it is none that can be begun now.
    """
    number, clients = entries[0].round_number, [entry.client for entry in entries]
    if entries[0].attempt != book.next_attempt(number, clients):
        raise InputValueError(
            f"path={str(folder / PARTICIPATION)!r} has attempt {entries[0].attempt} of round {number}, which does not "
            "follow from the ledger: one of them is of before. Put both back as they were."
        )
    configuration = run_json.read_configuration(folder)
    log.note(
        number,
        clients,
        divisor=configuration.divisor or configuration.clients_per_round,
        clip_norm=book.begun[-1].clip_norm if book.begun else configuration.clip_norm,
        restarts=configuration.restarts_in(number),
    )
