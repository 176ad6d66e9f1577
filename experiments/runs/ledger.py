"""The ledger of a folder: every cohort and release, chained by hashes."""

import contextlib
import hashlib
import os
import pathlib
import secrets
from collections import Counter
from collections.abc import Iterator, Sequence

from ...base.errors import InputValueError
from ..output import files
from ._ledger_lines import (
    VERSION,
    Begin,
    Ended,
    Entry,
    LedgerRecord,
    LedgerSequence,
    Opened,
    Released,
    Restarted,
    chained,
    cohort_digest,
    now,
    read_ledger,
)
from ._ledger_lines import entry_of as entry_of
from .names import RUN_JSON
from .report_counts import ReportCounts


class Ledger:
    """Appends entries to a ledger, each durably before the call returns. Made by `open_ledger`.

    Formal guarantee: as for `LedgerSequence`: an entry that cannot come next is refused and not written.
    """

    def __init__(self, file: files.Appended, run: str, record: LedgerRecord | None = None) -> None:
        self._file, self._run = file, run
        self._head = "" if record is None else record.head
        self._sequence = LedgerSequence() if record is None else record.sequence
        self._begun = () if record is None else tuple(record.begun)
        self._newest = self._begun[-1] if self._begun else None
        self._heads = {} if record is None else dict(record.heads)
        self._reports = {} if record is None else dict(record.reports)

    @property
    def run(self) -> str:
        """Random identifier of the run."""
        return self._run

    @property
    def begun(self) -> tuple[Begin, ...]:
        """The attempts that earlier processes began, in order."""
        return self._begun

    @property
    def newest(self) -> Begin | None:
        """The attempt that was begun last, `None` before the first."""
        return self._newest

    @property
    def last_released(self) -> int:
        """The last round that was released, 0 if none was."""
        return self._sequence.released

    @property
    def has_ended(self) -> bool:
        """Whether the run has ended, so that no entry can follow."""
        return self._sequence.ended

    def head(self, round_number: int) -> str:
        """Returns the hash of all lines up to the newest attempt of a round; an empty text if it was never begun."""
        return self._heads.get(round_number, "")

    def reports(self, round_number: int) -> ReportCounts | None:
        """Returns the counts of a round's reports, if it was released with them."""
        return self._reports.get(round_number)

    def check(self) -> None:
        """Raises unless entries can be appended.

        Raises:
            InputValueError: If an earlier one could not be written, or this is a forked process.
        """
        self._file.check()

    def next_attempt(self, round_number: int, clients: Sequence[str]) -> int:
        """Returns the number of the attempt if a round were begun now.

        Raises:
            InputValueError: If the round cannot be begun now, or a client is twice among its clients.
        """
        twice = next((client for client, times in Counter(clients).items() if times > 1), None)
        if twice is not None:
            raise InputValueError(
                f"clients={list(clients)!r:.80} of round {round_number} has {twice!r} twice: a client takes part once "
                "in a round."
            )
        attempt = self._sequence.attempts[round_number] + 1
        self._refuse(self._sequence.begin_refusal(round_number, attempt))
        return attempt

    def begin(self, round_number: int, clients: Sequence[str], *, divisor: float, clip_norm: float) -> None:
        """Appends that a round is about to be computed, for the first time or again.

        Args:
            round_number: The round, counted from 1.
            clients: The clients that take part, each once.
            divisor: The number by which the noised sum is divided.
            clip_norm: Bound on the norm of a client's update in this round.

        Raises:
            InputValueError: If the round was released, is not the next one, or a client is twice among its clients.
        """
        self._append(
            Begin(
                round=round_number,
                attempt=self.next_attempt(round_number, clients),
                clients=len(clients),
                cohort=cohort_digest(clients),
                divisor=float(divisor),
                clip_norm=float(clip_norm),
            )
        )

    def released(self, round_number: int, *, reports: ReportCounts | None = None) -> None:
        """Appends that a round is released. Call it before any result of the round leaves the server.

        Args:
            round_number: The round, counted from 1.
            reports: Counts of its devices' reports, if they were counted.

        Raises:
            InputValueError: If the round was released before or never begun, or a round before it is not released.
        """
        self._append(Released(round=round_number, attempt=self._sequence.attempts[round_number], reports=reports))

    def released_until(self, round_number: int, *, reports: ReportCounts | None = None) -> None:
        """Appends that all rounds up to this one are released, as far as the ledger does not say so yet.

        Args:
            round_number: The round, counted from 1.
            reports: Counts of the device reports of this round, if they were counted.

        Raises:
            InputValueError: If one of them was never begun, or its attempt was abandoned.
        """
        for number in range(self._sequence.released + 1, round_number + 1):
            self.released(number, reports=reports if number == round_number else None)

    def restarted(self, round_number: int) -> None:
        """Appends that the noise starts anew in this round, counted from 1, which is begun next."""
        self._append(Restarted(round=round_number))

    def ended(self) -> None:
        """Appends that the run has ended."""
        self._append(Ended(rounds=self._sequence.position, time=now()))

    def _append(self, entry: Entry) -> None:
        self._refuse(self._sequence.refusal(entry))
        line, self._head = chained(self._head, entry)
        self._file.append(line)
        self._sequence.take(entry)
        if isinstance(entry, Begin):
            self._newest = entry
            self._heads[entry.round] = self._head
        elif isinstance(entry, Released) and entry.reports is not None:
            self._reports[entry.round] = entry.reports

    def _refuse(self, refusal: str) -> None:
        self.check()
        if refusal:
            raise InputValueError(
                f"ledger={str(self._file.path)!r}: {refusal}. Resume from a checkpoint of the last "
                f"released round, {self._sequence.released}."
            )


@contextlib.contextmanager
def open_ledger(
    path: pathlib.Path, *, configuration: pathlib.Path | None = None, run: str | None = None, ended: bool = False
) -> Iterator[Ledger]:
    """Yields the ledger of a run: a new one, or the existing one of a run that is resumed.

    If the run was killed while it wrote a line, that line is incomplete and its entry did not take effect: it is cut.

    Args:
        path: The ledger.
        configuration: The file with the settings of the run, whose hash is in the first line of the ledger: a report
            accepts no ledger without it. `run.json` in the folder of the ledger if not given.
        run: Identifier of the run in the checkpoints from which it is resumed: a ledger of another run is refused, and
            a new ledger gets this identifier. If not given, a new ledger gets a new one.
        ended: Whether the run may have ended; then nothing can be appended.

    Raises:
        InputValueError: If the configuration is missing or was changed since the run began, or the existing ledger is
            damaged, has an impossible sequence of entries, or has ended.
    """
    configuration = path.with_name(RUN_JSON) if configuration is None else configuration
    if not configuration.is_file():
        raise InputValueError(
            f"configuration={str(configuration)!r} is missing, and the ledger must contain its hash: write it first "
            "with reports.write_configuration."
        )
    about = hashlib.sha256(configuration.read_bytes()).hexdigest()
    if path.exists() and _cut_partial_line(path):
        record = read_ledger(path)
        problems = [
            *record.problems,
            *record.impossible,
            *(["its run has ended"] if record.ended and not ended else []),
        ]
        if record.configuration != about:
            problems.append(f"{configuration.name} was changed since the run began")
        if run not in (None, record.run):
            problems.append(
                f"it belongs to run {record.run[:8]}, and the checkpoints to run {run:.8}: restore both from one run"
            )
        if problems:
            raise InputValueError(
                f"ledger={str(path)!r} cannot be continued: {'; '.join(problems)}. Put the newest files of the run "
                "back, or start another run in another folder."
            )
        with files.appended(path) as file:
            yield Ledger(file, record.run, record)
        return
    with files.appended(path) as file:
        ledger = Ledger(file, run or secrets.token_hex(16))
        opened = Opened(version=VERSION, run=ledger.run, configuration=about, time=now())
        ledger._append(opened)
        yield ledger


def _cut_partial_line(path: pathlib.Path) -> int:
    """Cuts an incomplete last line, and returns the number of bytes that are left: 0 if the run never began."""
    with path.open("r+b") as file:
        content = file.read()
        whole = content.rfind(b"\n") + 1
        if whole < len(content):
            file.truncate(whole)
            os.fsync(file.fileno())
        return whole
