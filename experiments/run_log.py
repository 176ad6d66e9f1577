"""Ledger and participation log of a run, written together: who takes part is on disk before a round begins."""

import contextlib
import pathlib
from collections.abc import Iterator, Mapping, Sequence

from . import ledger, participation_log
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
        if restarts:
            self._book.restarted(round_number)
        self._book.begin(round_number, clients, divisor=divisor, clip_norm=clip_norm)
        for client in clients:
            rounds = self._past.setdefault(client, [])
            if round_number not in rounds:
                rounds.append(round_number)
                rounds.sort()

    def released_until(self, round_number: int) -> None:
        """Writes down that all rounds to this one may be seen from now on; see `Ledger.released_until`."""
        self._book.released_until(round_number)

    def ended(self) -> None:
        """Writes down that no round will follow."""
        self._book.ended()


@contextlib.contextmanager
def open_run_log(folder: pathlib.Path, *, run: str | None = None) -> Iterator[RunLog]:
    """Yields the log of a run: a new one, or the one that is there, to which a run that goes on adds.

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
        past: dict[str, set[int]] = {}
        for entry in participation_log.read_entries(path):
            past.setdefault(entry.client, set()).add(entry.round_number)
        yield RunLog(book, write, {client: sorted(rounds) for client, rounds in past.items()})
