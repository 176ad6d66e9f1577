"""The ledger of a folder: every cohort and release, chained by hashes."""

import contextlib
import dataclasses
import datetime
import hashlib
import json
import os
import pathlib
import secrets
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TextIO

import msgspec

from tff_mf.base.errors import InputError, InputValueError

from ..output import files, typed
from ..output.typed import Count, CountOrZero, Number, Record
from .metrics import ReportCounts
from .names import RUN_JSON

VERSION = 1


class Opened(Record, tag_field="kind", tag="opened"):
    """The first entry: the format, the run, the hash of its `run.json`, and the time by the clock of the machine."""

    version: int
    run: str
    configuration: str
    time: str

    def __post_init__(self) -> None:
        _check_time(self.time)
        if self.version != VERSION:
            raise InputValueError(f"version={self.version!r} must be {VERSION}.")


class Begin(Record, tag_field="kind", tag="begin"):
    """An attempt to compute a round: numbers counted from 1, clients and their hash, and what bounds their updates."""

    round: Count
    attempt: Count
    clients: CountOrZero
    cohort: str
    divisor: Number
    clip_norm: Number


class Released(Record, omit_defaults=True, tag_field="kind", tag="released"):
    """A round whose result may leave the server, with counts of its devices' reports if they were counted."""

    round: Count
    attempt: Count
    reports: ReportCounts | None = None


class Restarted(Record, tag_field="kind", tag="restarted"):
    """A round, begun next, in which the noise starts anew."""

    round: Count


class Ended(Record, tag_field="kind", tag="ended"):
    """The last entry, with the time by the clock of the machine."""

    rounds: CountOrZero
    time: str

    def __post_init__(self) -> None:
        _check_time(self.time)


Entry = Opened | Begin | Released | Restarted | Ended


def cohort_digest(clients: Sequence[str]) -> str:
    """Returns a hash of the clients of a round, which does not depend on their order.

    Example:
        >>> cohort_digest(["b", "a"]) == cohort_digest(["a", "b"]) != cohort_digest(["a"])
        True
    """
    return hashlib.sha256(json.dumps(sorted(clients)).encode()).hexdigest()[:16]


class LedgerSequence:
    """The state of a run, by the entries of its ledger so far.

    Rounds are begun in order. A run that goes back to a round that was not released abandons all attempts from that
    round on, and begins the rounds again as further attempts. The next round to be released is always the first that
    was not released yet, by its newest attempt.

    Formal guarantee: if no entry is refused, no round is released twice and no abandoned attempt is released. An
    attempt that was replaced by a later attempt of its round was therefore never released.

    Attributes:
        position: The round that was begun last, 0 before the first.
        released: The last round that was released, 0 before the first; all rounds before it were released too.
        attempts: Number of attempts of each round.
        clients: Number of clients of the round that was begun last.
        ended: Whether the run has ended, so that no entry can follow.
    """

    def __init__(self) -> None:
        self.position = 0
        self.released = 0
        self.attempts: Counter[int] = Counter()
        self.clients = 0
        self.ended = False

    def refusal(self, entry: Entry) -> str:
        """Returns why an entry cannot come next; an empty text if it can.

        Example:
            >>> LedgerSequence().refusal(Released(round=1, attempt=1))
            'round 1 was released and never begun'
        """
        if self.ended:
            return f"{entry.__struct_config__.tag!r} follows the end of the run"
        match entry:
            case Begin():
                return self.begin_refusal(entry.round, entry.attempt)
            case Released():
                return self._release_refusal(entry)
            case Restarted():
                out_of_order = self._out_of_order(entry.round)
                return out_of_order and f"noise started anew in round {entry.round} {out_of_order}"
            case Ended() if entry.rounds != self.position:
                return f"the run ended after {entry.rounds} rounds, and round {self.position} was begun last"
        return ""

    def take(self, entry: Entry) -> None:
        """Updates the state by an entry, even by one that is refused: a reader continues with the next."""
        match entry:
            case Begin():
                self.position = entry.round
                self.attempts[entry.round] += 1
                self.clients = entry.clients
            case Released():
                self.released = max(self.released, entry.round)
            case Ended():
                self.ended = True

    def begin_refusal(self, number: int, attempt: int) -> str:
        """Returns why an attempt of a round cannot begin next; an empty text if it can."""
        if self.ended:
            return "'begin' follows the end of the run"
        if number <= self.released:
            return f"round {number} was begun again after it was released"
        out_of_order = self._out_of_order(number)
        if out_of_order:
            return f"round {number} was begun {out_of_order}"
        if attempt != self.attempts[number] + 1:
            return f"attempt {attempt} of round {number} follows {self.attempts[number]} attempts"
        return ""

    def _release_refusal(self, entry: Released) -> str:
        number = entry.round
        if number <= self.released:
            return f"round {number} was released more than once: two results of a round are two releases"
        if not self.attempts[number]:
            return f"round {number} was released and never begun"
        if number > self.position:
            return f"round {number} was released by an abandoned attempt: round {self.position} was begun after it"
        if number != self.released + 1:
            return f"round {number} was released before round {self.released + 1}"
        if entry.attempt != self.attempts[number]:
            return (
                f"attempt {entry.attempt} of round {number} was released, and attempt {self.attempts[number]} was "
                "begun last"
            )
        counted = entry.reports.counted if entry.reports else 0
        if counted > self.clients:
            return f"round {number} counts {counted} reports of {self.clients} clients: each client counts once"
        return ""

    def _out_of_order(self, number: int) -> str:
        if self.released < number <= self.position + 1:
            return ""
        return f"out of order: after round {self.position}, with rounds released to {self.released}"


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
        configuration: Hash of `run.json` when the run began; `None` if the ledger does not name it.
        head: Hash of all lines.
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
    configuration: str | None
    head: str
    problems: list[str]
    impossible: list[str]
    sequence: LedgerSequence


def read_ledger(path: pathlib.Path) -> LedgerRecord:
    """Returns the content of a ledger, as far as its lines are intact, and what is wrong with the rest.

    Raises:
        InputValueError: If the file does not exist or cannot be read.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    except (OSError, UnicodeDecodeError) as error:
        raise InputValueError(f"ledger={str(path)!r} cannot be read: {error}.") from error
    head, entries, problems = _intact(lines)
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
        configuration=opened.configuration if opened else None,
        head=head,
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


def _intact(lines: list[str]) -> tuple[str, list[Entry], list[str]]:
    """Returns the hash of the intact lines at the start, their entries, and what is wrong with the line after them."""
    head, entries, problems = "", [], []
    for number, line in enumerate(lines, start=1):
        try:
            content = json.loads(line)
            claimed = content.pop("chain")
            expected, new_head = chained(head, content)
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            problems.append(f"line {number} is damaged")
            break
        if expected != line or claimed != new_head:
            problems.append(f"line {number} does not follow from the lines before it")
            break
        try:
            entry = typed.convert(content, Entry, f"line {number} has an entry that this release does not know")
        except InputError as error:
            problems.append(str(error))
            break
        if isinstance(entry, Opened) != (number == 1):
            problems.append(f"line {number} has an entry that belongs elsewhere")
            break
        head = new_head
        entries.append(entry)
    if not entries:
        problems.append("its first line is missing")
    return head, entries, problems


def now() -> str:
    """Returns the time of the machine's clock, as entries have it."""
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")


def _check_time(value: str) -> None:
    try:
        found = datetime.datetime.fromisoformat(value)
    except ValueError:
        found = None
    if found is None or found.utcoffset() != datetime.timedelta() or found.isoformat(timespec="seconds") != value:
        raise InputValueError(f"time={value!r:.80} must be a time of UTC in whole seconds.")


def chained(head: str, entry: Entry | Mapping[str, Any]) -> tuple[str, str]:
    """Returns the line of an entry, and the hash of all lines up to it."""
    content = entry if isinstance(entry, Mapping) else msgspec.to_builtins(entry)
    new_head = hashlib.sha256((head + json.dumps(content, sort_keys=True)).encode()).hexdigest()
    return json.dumps({**content, "chain": new_head}) + "\n", new_head


class Ledger:
    """Appends entries to a ledger, each durably before the call returns. Made by `open_ledger`.

    Formal guarantee: as for `LedgerSequence`: an entry that cannot come next is refused and not written.
    """

    def __init__(self, file: TextIO, run: str, record: LedgerRecord | None = None) -> None:
        self._file, self._run = file, run
        self._head = "" if record is None else record.head
        self._sequence = LedgerSequence() if record is None else record.sequence
        self._begun = () if record is None else tuple(record.begun)

    @property
    def run(self) -> str:
        """Random identifier of the run."""
        return self._run

    @property
    def begun(self) -> tuple[Begin, ...]:
        """The attempts that earlier processes began, in order."""
        return self._begun

    @property
    def last_released(self) -> int:
        """The last round that was released, 0 if none was."""
        return self._sequence.released

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
        self._file.write(line)
        self._file.flush()
        os.fsync(self._file.fileno())
        self._sequence.take(entry)

    def _refuse(self, refusal: str) -> None:
        if refusal:
            raise InputValueError(
                f"ledger={self._file.name!r}: {refusal}. Resume from a checkpoint of the last "
                f"released round, {self._sequence.released}."
            )


@contextlib.contextmanager
def open_ledger(
    path: pathlib.Path, *, configuration: pathlib.Path | None = None, run: str | None = None
) -> Iterator[Ledger]:
    """Yields the ledger of a run: a new one, or the existing one of a run that is resumed.

    If the run was killed while it wrote a line, that line is incomplete and its entry did not take effect: it is cut.

    Args:
        path: The ledger.
        configuration: The file with the settings of the run, whose hash is in the first line of the ledger: a report
            accepts no ledger without it. `run.json` in the folder of the ledger if not given.
        run: Identifier of the run in the checkpoints from which it is resumed: a ledger of another run is refused, and
            a new ledger gets this identifier. If not given, a new ledger gets a new one.

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
        problems = [*record.problems, *record.impossible, *(["its run has ended"] if record.ended else [])]
        if record.configuration != about:
            problems.append(f"{configuration.name} was changed since the run began: restore it")
        if run not in (None, record.run):
            problems.append(
                f"it belongs to run {record.run[:8]}, and the checkpoints to run {run:.8}: restore both from one run"
            )
        if problems:
            raise InputValueError(f"ledger={str(path)!r} cannot be continued: {'; '.join(problems)}.")
        with path.open("a", encoding="utf-8") as file:
            yield Ledger(file, record.run, record)
        return
    with path.open("a", encoding="utf-8") as file:
        ledger = Ledger(file, run or secrets.token_hex(16))
        opened = Opened(version=VERSION, run=ledger.run, configuration=about, time=now())
        ledger._append(opened)
        files.sync_folder(path.parent)
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
