"""The ledger of a folder: every cohort and release, chained by hashes."""

import contextlib
import dataclasses
import hashlib
import os
import pathlib
import secrets
from collections import Counter
from collections.abc import Iterator, Sequence

from ...base import strict_json
from ...base.errors import InputValueError
from ..output import files
from ._ledger_lines import REASONS as REASONS
from ._ledger_lines import (
    VERSION,
    Begin,
    Ended,
    Entry,
    LedgerSequence,
    Opened,
    Released,
    ReportCounts,
    Restarted,
    chained,
    cohort_digest,
    entry_of,
    now,
)
from .names import RUN_JSON


@dataclasses.dataclass(frozen=True, kw_only=True)
class LedgerRecord:
    """The content of a ledger.

    Attributes:
        attempts: How often each round was computed.
        released: How often each round was released.
        cohorts: Hash of the cohort of each round, in its last attempt.
        sizes: Clients of each round, in its last attempt.
        begun: Every attempt, in order.
        divisors: Divisors of the noised sums, without repetition.
        clip_norms: Clip norms, without repetition.
        restarts: Rounds in which the noise started anew.
        reports: For rounds whose device reports were counted, the counts; for the operator only.
        ended: Whether the last entry says that the run ended.
        started: When the ledger was opened, by the clock of the machine; `None` if it does not say so.
        finished: When the run ended; likewise.
        run: Random identifier of the run; empty if the first line is missing.
        bound_to: Hash of `run.json` when the run began; `None` if the ledger does not name it.
        head: Hash of all lines.
        heads: Hash of all lines up to the newest attempt of each round.
        chain: Hash of all lines up to each line: those of an earlier state of the run are among them.
        problems: What is wrong with the file; empty if it is intact.
        impossible: Entries that no run can have written in this order, such as a round that is released twice.
        sequence: The state of the run after the last line.
    """

    attempts: dict[int, int]
    released: dict[int, int]
    cohorts: dict[int, str]
    sizes: dict[int, int]
    begun: list[Begin]
    divisors: list[float]
    clip_norms: list[float]
    restarts: list[int]
    reports: dict[int, ReportCounts]
    ended: bool
    started: str | None
    finished: str | None
    run: str
    bound_to: str | None
    head: str
    heads: dict[int, str]
    chain: list[str]
    problems: list[str]
    impossible: list[str]
    sequence: LedgerSequence


def has_begun(path: pathlib.Path) -> bool:
    """Returns whether a ledger has a whole line: without one, its run never began."""
    return path.is_file() and b"\n" in path.read_bytes()


def read_ledger(path: pathlib.Path) -> LedgerRecord:
    """Returns the content of a ledger, as far as its lines are intact, and what is wrong with the rest.

    Raises:
        InputValueError: If the file does not exist or cannot be read.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    except (OSError, UnicodeDecodeError) as error:
        raise InputValueError(f"ledger={str(path)!r} cannot be read: {error}.") from error
    heads, entries, problems = _intact(lines)
    begun = [entry for entry in entries if isinstance(entry, Begin)]
    released = [entry for entry in entries if isinstance(entry, Released)]
    first, last = (entries[0], entries[-1]) if entries else (None, None)
    opened, ended = first if isinstance(first, Opened) else None, last if isinstance(last, Ended) else None
    sequence, impossible = LedgerSequence(), []
    for entry in entries:
        refusal = sequence.refusal(entry)
        sequence.take(entry)
        if refusal:
            impossible.append(refusal)
    return LedgerRecord(
        attempts=dict(Counter(entry.round for entry in begun)),
        released=dict(Counter(entry.round for entry in released)),
        cohorts={entry.round: entry.cohort for entry in begun},
        sizes={entry.round: entry.clients for entry in begun},
        begun=begun,
        divisors=sorted({entry.divisor for entry in begun}),
        clip_norms=sorted({entry.clip_norm for entry in begun}),
        restarts=_restarts(entries),
        reports={entry.round: entry.reports for entry in released if entry.reports},
        ended=ended is not None,
        started=opened.time if opened else None,
        finished=ended.time if ended else None,
        run=opened.run if opened else "",
        bound_to=opened.bound_to if opened else None,
        head=heads[-1] if heads else "",
        heads={entry.round: head for entry, head in zip(entries, heads, strict=True) if isinstance(entry, Begin)},
        chain=heads,
        problems=problems,
        impossible=impossible,
        sequence=sequence,
    )


def _restarts(entries: Sequence[Entry]) -> list[int]:
    """Returns the rounds whose last attempt started with new noise, and restarts that no attempt followed."""
    found: set[int] = set()
    announced: set[int] = set()
    for entry in entries:
        if isinstance(entry, Restarted):
            announced.add(entry.round)
        elif isinstance(entry, Begin):
            found.discard(entry.round)
            found |= announced
            announced.clear()
    return sorted(found | announced)


def _intact(lines: list[str]) -> tuple[list[str], list[Entry], list[str]]:
    """Returns the intact lines at the start, as hashes and entries, and what is wrong with the line after them."""
    heads, entries, problems = [], [], []
    head = ""
    for number, line in enumerate(lines, start=1):
        try:
            content = strict_json.loads(line)
            claimed = content.pop("chain")
            expected, new_head = chained(head, content)
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            problems.append(f"line {number} is damaged")
            break
        if expected != line or claimed != new_head:
            problems.append(f"line {number} does not follow from the lines before it")
            break
        try:
            entry = entry_of(content)
        except InputValueError as error:
            problems.append(f"line {number} has an entry that this release does not know: {error}")
            break
        if isinstance(entry, Opened) != (number == 1):
            problems.append(f"line {number} has an entry that belongs elsewhere")
            break
        head = new_head
        heads.append(head)
        entries.append(entry)
    if not entries:
        problems.append("its first line is missing")
    return heads, entries, problems


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
    path: pathlib.Path, *, bound_to: pathlib.Path | None = None, run: str | None = None, ended: bool = False
) -> Iterator[Ledger]:
    """Yields the ledger of a run: a new one, or the existing one of a run that is resumed.

    If the run was killed while it wrote a line, that line is incomplete and its entry did not take effect: it is cut.

    Args:
        path: The ledger.
        bound_to: The file with the settings of the run, whose hash is in the first line of the ledger: a report
            accepts no ledger without it. `run.json` in the folder of the ledger if not given.
        run: Identifier of the run in the checkpoints from which it is resumed: a ledger of another run is refused, and
            a new ledger gets this identifier. If not given, a new ledger gets a new one.
        ended: Whether the run may have ended; then nothing can be appended.

    Raises:
        InputValueError: If the file `bound_to` is missing or was changed since the run began, or the existing ledger is
            damaged, has an impossible sequence of entries, or has ended.
    """
    bound_to = path.with_name(RUN_JSON) if bound_to is None else bound_to
    if not bound_to.is_file():
        raise InputValueError(
            f"bound_to={str(bound_to)!r} is missing, and the ledger must contain its hash: write it first "
            "with reports.write_record."
        )
    about = hashlib.sha256(bound_to.read_bytes()).hexdigest()
    if path.exists() and _cut_partial_line(path):
        record = read_ledger(path)
        problems = [
            *record.problems,
            *record.impossible,
            *(["its run has ended"] if record.ended and not ended else []),
        ]
        if record.bound_to != about:
            problems.append(f"{bound_to.name} was changed since the run began")
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
        opened = Opened(version=VERSION, run=ledger.run, bound_to=about, time=now())
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
