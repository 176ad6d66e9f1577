"""What a run released, on disk before and after every round: attempts, cohorts, restarts, clip norms.

A line is a JSON object and names the hash of all lines before it, so that a line that is changed, left out or put in
breaks the chain behind it. Somebody who writes the whole file anew is not found out by that: a report therefore holds
the last hash, and whoever has the digest of the report can tell. Lines also have an order that a run cannot break.
"""

import contextlib
import hashlib
import os
import pathlib
import secrets
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, TextIO

from tff_mf.errors import InputValueError

from . import _ledger_lines
from ._ledger_lines import Attempt as Attempt
from ._ledger_lines import LedgerRecord as LedgerRecord
from ._ledger_lines import cohort_digest as cohort_digest
from ._ledger_lines import read_ledger as read_ledger
from ._ledger_sequence import LedgerSequence
from .names import RUN_JSON
from .report_counts import ReportCounts as ReportCounts
from .report_counts import read_counts as read_counts

LEDGER = "ledger.jsonl"


class Ledger:
    """Appends to a ledger, each entry durably before the call returns. Made by `open_ledger`.

    Formal guarantee: that of `LedgerSequence`: what cannot follow is refused, and not written.
    """

    def __init__(self, file: TextIO, run: str, record: LedgerRecord | None = None) -> None:
        self._file, self._run = file, run
        self._head = "" if record is None else record.head
        self._sequence = LedgerSequence() if record is None else record.sequence
        self._begun = () if record is None else tuple(record.begun)

    @property
    def run(self) -> str:
        """Which run it is, of all that were ever begun."""
        return self._run

    @property
    def begun(self) -> tuple[Attempt, ...]:
        """The attempts that an earlier process began, in order."""
        return self._begun

    @property
    def last_released(self) -> int:
        """The last round that was released, 0 if none was."""
        return self._sequence.released

    def next_attempt(self, round_number: int, clients: Sequence[str]) -> int:
        """Returns which attempt of a round would be begun now.

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
        self._check({"kind": "begin", "round": round_number, "attempt": attempt})
        return attempt

    def begin(self, round_number: int, clients: Sequence[str], *, divisor: float, clip_norm: float) -> None:
        """Notes that a round is about to be computed, for the first time or again.

        Args:
            round_number: The round, counted from 1.
            clients: Who takes part; nobody twice.
            divisor: What the noised sum will be divided by.
            clip_norm: Bound on the norm of a client's update in this round.

        Raises:
            InputValueError: If the round was released, is not the next one, or a client is twice among its clients.
        """
        entry = {
            "attempt": self.next_attempt(round_number, clients),
            "clients": len(clients),
            "cohort": cohort_digest(clients),
            "divisor": divisor,
            "clip_norm": clip_norm,
        }
        self._append("begin", round=round_number, **entry)

    def released(self, round_number: int, *, reports: ReportCounts | None = None) -> None:
        """Notes that the round may be seen from now on; to be called before anything of it leaves the server.

        Args:
            round_number: The round, counted from 1.
            reports: What became of its devices' reports, if they were counted.

        Raises:
            InputValueError: If it was released before, was never begun, or a round before it is not released.
        """
        about = {} if reports is None else {"reports": reports.as_json()}
        self._append("released", round=round_number, attempt=self._sequence.attempts[round_number], **about)

    def released_until(self, round_number: int, *, reports: ReportCounts | None = None) -> None:
        """Notes of all rounds to this one that may be seen from now on, if that was not noted before.

        Args:
            round_number: The round, counted from 1.
            reports: What became of the reports of this round, if they were counted.

        Raises:
            InputValueError: If one of them was never begun, or its attempt was given up.
        """
        for number in range(self._sequence.released + 1, round_number + 1):
            self.released(number, reports=reports if number == round_number else None)

    def restarted(self, round_number: int) -> None:
        """Notes that noise starts anew in this round, counted from 1, which is begun next."""
        self._append("restarted", round=round_number)

    def ended(self) -> None:
        """Notes that no round will follow."""
        self._append("ended", rounds=self._sequence.position)

    def _append(self, kind: str, **about: Any) -> None:
        entry = {"kind": kind, **about}
        self._check(entry)
        line, self._head = _ledger_lines.chained(self._head, entry)
        self._file.write(line)
        self._file.flush()
        os.fsync(self._file.fileno())
        self._sequence.take(entry)

    def _check(self, entry: dict[str, Any]) -> None:
        refusal = self._sequence.refusal(entry)
        if refusal:
            raise InputValueError(
                f"ledger={self._file.name!r}: {refusal}. Go on after the last released round, "
                f"{self._sequence.released}, from a checkpoint of it."
            )


@contextlib.contextmanager
def open_ledger(
    path: pathlib.Path, *, configuration: pathlib.Path | None = None, run: str | None = None
) -> Iterator[Ledger]:
    """Yields the ledger of a run: a new one, or the one that is there, to which a resumed run is added.

    A last line that was not written to its end, when the run was killed, is of something that did not happen; it is
    cut.

    Args:
        path: The ledger.
        configuration: The file that says what the run is set to do: a new ledger's first line names its hash, and no
            report takes a ledger that names none. `run.json` beside the ledger if not given.
        run: Which run the checkpoints are of that it goes on from: a ledger of another one is refused, and a new one
            is opened for it. If not given, a new ledger is of a run of its own.

    Raises:
        InputValueError: If there is no such configuration or it was changed since the run began, or the ledger that is
            there is damaged, has an impossible sequence of entries, or has ended.
    """
    configuration = path.with_name(RUN_JSON) if configuration is None else configuration
    if not configuration.is_file():
        raise InputValueError(
            f"configuration={str(configuration)!r} is missing: a ledger names the hash of what its run was set to do. "
            "Write it first, with reports.write_configuration."
        )
    about = hashlib.sha256(configuration.read_bytes()).hexdigest()
    if path.exists() and _cut_partial_line(path):
        record = read_ledger(path)
        problems = [*record.problems, *record.impossible, *(["its run has ended"] if record.ended else [])]
        if record.configuration != about:
            problems.append(f"it is not of {configuration.name} as it is now: put that back as the run began with it")
        if run not in (None, record.run):
            problems.append(
                f"it is of run {record.run[:8]}, and the checkpoints are of {run:.8}: put the run's own back"
            )
        if problems:
            raise InputValueError(f"ledger={str(path)!r} cannot go on: {'; '.join(problems)}.")
        with path.open("a", encoding="utf-8") as file:
            yield Ledger(file, record.run, record)
        return
    with path.open("a", encoding="utf-8") as file:
        ledger = Ledger(file, run or secrets.token_hex(16))
        ledger._append("opened", version=_ledger_lines.VERSION, run=ledger.run, configuration=about)
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
        yield ledger


def _cut_partial_line(path: pathlib.Path) -> int:
    """Cuts what was not written to its end, and returns the bytes that are left: none if the run never began."""
    with path.open("r+b") as file:
        content = file.read()
        whole = content.rfind(b"\n") + 1
        if whole < len(content):
            file.truncate(whole)
            os.fsync(file.fileno())
        return whole
