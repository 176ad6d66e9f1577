"""`ledger.jsonl`: which rounds began, with whom, and which were released: a line each, on disk before data are read.

Below it, what a plan allows its rounds: how many there are, who may take part in which, and what bounds their sums.
"""

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
from typing import Annotated, Any

import msgspec

import tff_mf
from tff_mf.base.errors import InputValueError

from ..output import files
from ..output.typed import Count, CountOrZero, Number, Record
from .names import RUN_JSON

# Why a report is refused; no text from a device gets into a ledger.
REASONS = (
    *("no regular file", "too large", "damaged", "empty", "missing leaf", "extra leaf", "dtype", "shape"),
    *("not chosen", "duplicate", "another round", "late"),
)
VERSION = 1


class ReportCounts(Record):
    """Counts of the device reports of a round.

    Attributes:
        came: Reports that arrived.
        counted: Reports whose updates are in the sum, including scaled and zeroed ones.
        clipped: Updates above the clip norm, which the server scaled down to it.
        zeroed: Updates that were not finite, which the server replaced by zero.
        refused: Reports that are not in the sum, by reason.

    Example:
        >>> ReportCounts(came=5, counted=4, clipped=1, zeroed=0, refused={"late": 1}).bad
        2
    """

    came: CountOrZero
    counted: CountOrZero
    clipped: CountOrZero
    zeroed: CountOrZero
    refused: dict[str, CountOrZero]

    def __post_init__(self) -> None:
        if not set(self.refused) <= set(REASONS):
            raise InputValueError(f"refused={self.refused!r:.200} must have counts by reason, of {REASONS}.")
        numbers = (self.came, self.counted, self.clipped, self.zeroed, *self.refused.values())
        consistent = self.came == self.counted + sum(self.refused.values())
        if min(numbers) < 0 or not consistent or self.clipped + self.zeroed > self.counted:
            raise InputValueError(f"{self!r} contradicts itself: each report that came is counted or refused.")

    @property
    def bad(self) -> int:
        """Reports that were refused, scaled or zeroed."""
        return sum(self.refused.values()) + self.clipped + self.zeroed


class Opened(Record, tag="opened", tag_field="kind"):
    """The first line: the format, the run, the hash of its `run.json`, and the time by the clock of the machine."""

    version: int
    run: str
    bound_to: str
    time: Annotated[datetime.datetime, msgspec.Meta(tz=True)]


class Begun(Record, tag="begun", tag_field="kind"):
    """An attempt to compute a round: numbers counted from 1, clients, and what bounds their updates.

    Of a secret cohort, nobody is listed. `restarts` is whether the noise starts anew in the round. `nonce` is random,
    so that a copy of the folder that goes on has another ledger, also with the same cohorts.
    """

    round: Count
    attempt: Count
    clients: tuple[str, ...]
    divisor: Number
    clip_norm: Number
    restarts: bool = False
    nonce: str = msgspec.field(default_factory=lambda: secrets.token_hex(8))


class Released(Record, tag="released", tag_field="kind", omit_defaults=True):
    """A round whose result may leave the server, with counts of its devices' reports if they were counted."""

    round: Count
    reports: ReportCounts | None = None


class Ended(Record, tag="ended", tag_field="kind", omit_defaults=True):
    """The last line, with the time by the clock of the machine; without, where no line lists a client.

    How long secret cohorts take depends on how many clients they have.
    """

    rounds: CountOrZero
    time: Annotated[datetime.datetime, msgspec.Meta(tz=True)] | None = None


Line = Opened | Begun | Released | Ended
_LINES = msgspec.json.Decoder(Line)


def as_text(line: Line) -> str:
    """Returns a line as it stands in a ledger."""
    return msgspec.json.encode(line).decode() + "\n"


def cohort_digest(clients: Sequence[str]) -> str:
    """Returns a hash of the clients of a round, which does not depend on their order.

    Example:
        >>> cohort_digest(["b", "a"]) == cohort_digest(["a", "b"]) != cohort_digest(["a"])
        True
    """
    return hashlib.sha256(json.dumps(sorted(clients)).encode()).hexdigest()[:16]


@dataclasses.dataclass(kw_only=True)
class LedgerRecord:
    """What the lines of a ledger say, up to one of them.

    Rounds are begun in order. A run that goes back to a round that was not released abandons all attempts from that
    round on, and begins the rounds again as further attempts. The next round to be released is always the first that
    was not released yet, by its newest attempt.

    Formal guarantee: if no line is refused, no round is released twice and no abandoned attempt is released. An attempt
    that was replaced by a later attempt of its round was therefore never released.

    Attributes:
        run: Random identifier of the run; empty if the first line is missing.
        bound_to: Hash of `run.json` when the run began; `None` if the first line is missing.
        started: When the ledger was opened, by the clock of the machine.
        finished: When the run ended; likewise.
        begun: Every attempt, in order.
        attempts: How often each round was begun.
        released: How often each round was released.
        last_released: The last round that was released, 0 before the first; all rounds before it were released too.
        position: The round that was begun last, 0 before the first.
        reports: For rounds whose device reports were counted, the counts; for the operator only.
        ended: Whether the last line says that the run ended.
        problems: What is wrong with the file; empty if every line can be read.
        impossible: Lines that no run can have written in this order, such as a round that is released twice.
    """

    run: str = ""
    bound_to: str | None = None
    started: datetime.datetime | None = None
    finished: datetime.datetime | None = None
    begun: list[Begun] = dataclasses.field(default_factory=list)
    attempts: Counter[int] = dataclasses.field(default_factory=Counter)
    released: Counter[int] = dataclasses.field(default_factory=Counter)
    last_released: int = 0
    position: int = 0
    reports: dict[int, ReportCounts] = dataclasses.field(default_factory=dict)
    ended: bool = False
    problems: list[str] = dataclasses.field(default_factory=list)
    impossible: list[str] = dataclasses.field(default_factory=list)

    @property
    def sizes(self) -> dict[int, int]:
        """Clients of each round, in its last attempt."""
        return {line.round: len(line.clients) for line in self.begun}

    @property
    def divisors(self) -> list[float]:
        """Divisors of the noised sums, without repetition."""
        return sorted({line.divisor for line in self.begun})

    @property
    def clip_norms(self) -> list[float]:
        """Clip norms, without repetition."""
        return sorted({line.clip_norm for line in self.begun})

    @property
    def restarts(self) -> list[int]:
        """Rounds whose last attempt started with new noise."""
        newest = {line.round: line for line in self.begun}
        return sorted(number for number, line in newest.items() if line.restarts)

    def refusal(self, line: Line) -> str:
        """Returns why a line cannot come next; an empty text if it can.

        Example:
            >>> LedgerRecord().refusal(Released(round=1))
            'round 1 was released and never begun'
        """
        if self.ended:
            return f"{type(line).__name__.lower()!r} follows the end of the run"
        match line:
            case Opened() if self.run:
                return "the run was opened twice"
            case Begun():
                return self._begin_refusal(line)
            case Released():
                return self._release_refusal(line)
            case Ended() if line.rounds != self.position:
                return f"the run ended after {line.rounds} rounds, and round {self.position} was begun last"
        return ""

    def take(self, line: Line) -> None:
        """Adds a line, even one that is refused: a reader continues with the next."""
        match line:
            case Opened():
                self.run, self.bound_to, self.started = line.run, line.bound_to, line.time
            case Begun():
                self.begun.append(line)
                self.attempts[line.round] += 1
                self.position = line.round
            case Released():
                self.released[line.round] += 1
                self.last_released = max(self.last_released, line.round)
                if line.reports is not None:
                    self.reports[line.round] = line.reports
            case Ended():
                self.ended, self.finished = True, line.time

    def _begin_refusal(self, line: Begun) -> str:
        number, before = line.round, self.attempts[line.round]
        if number <= self.last_released:
            return f"round {number} was begun again after it was released"
        if number > self.position + 1:
            return f"round {number} was begun out of order: after round {self.position}"
        if line.attempt != before + 1:
            return f"attempt {line.attempt} of round {number} follows {before} attempts"
        twice = next((client for client, times in Counter(line.clients).items() if times > 1), None)
        if twice is not None:
            return f"round {number} has the client {twice!r} twice: a client takes part once in a round"
        return ""

    def _release_refusal(self, line: Released) -> str:
        number = line.round
        if number <= self.last_released:
            return f"round {number} was released more than once: two results of a round are two releases"
        if not self.attempts[number]:
            return f"round {number} was released and never begun"
        if number > self.position:
            return f"round {number} was released by an abandoned attempt: round {self.position} was begun after it"
        if number != self.last_released + 1:
            return f"round {number} was released before round {self.last_released + 1}"
        clients = len(self.begun[-1].clients)
        if line.reports is not None and line.reports.counted > clients:
            counted = line.reports.counted
            return f"round {number} counts {counted} reports of {clients} clients: each client counts once"
        return ""


def has_begun(path: pathlib.Path) -> bool:
    """Returns whether a ledger has a whole line: without one, its run never began."""
    return path.is_file() and b"\n" in path.read_bytes()


def read_ledger(path: pathlib.Path) -> LedgerRecord:
    """Returns the content of a ledger up to the first line that cannot be read, and what is wrong with that.

    Raises:
        InputValueError: If the file does not exist or cannot be read.
    """
    try:
        content = path.read_bytes()
    except OSError as error:
        raise InputValueError(f"ledger={str(path)!r} cannot be read: {error}.") from error
    record = LedgerRecord()
    for number, text in enumerate(content.splitlines(keepends=True), start=1):
        try:
            line = _LINES.decode(text)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            record.problems.append(f"line {number} is damaged ({error})")
            break
        if isinstance(line, Opened) != (number == 1) or not text.endswith(b"\n"):
            record.problems.append(f"line {number} belongs elsewhere, or is incomplete")
            break
        if isinstance(line, Opened) and line.version != VERSION:
            record.problems.append(f"it has version {line.version}, and this release reads version {VERSION}")
            break
        refusal = record.refusal(line)
        record.take(line)
        if refusal:
            record.impossible.append(refusal)
    if not record.run and not record.problems:
        record.problems.append("its first line is missing")
    return record


class Ledger:
    """Appends lines to a ledger, each durably before the call returns. Made by `open_ledger`.

    Formal guarantee: as for `LedgerRecord`: a line that cannot come next is refused and not written. After a write that
    failed or was interrupted, no further one succeeds: nobody knows how much of it is in the file, and what follows
    would not be read as it was written. A forked process appends nothing.

    Attributes:
        record: What all lines say.
    """

    def __init__(self, path: pathlib.Path, descriptor: int, record: LedgerRecord, content: bytes) -> None:
        self._path, self._descriptor, self.record = path, descriptor, record
        self._length, self._digest = len(content), hashlib.sha256(content)
        self._owner, self._failed = os.getpid(), False

    def check(self) -> None:
        """Raises unless lines can be appended.

        Raises:
            InputValueError: If an earlier one could not be written, or this is a forked process.
        """
        if self._failed:
            raise InputValueError(
                f"path={str(self._path)!r} could not be written to, and its end may be incomplete: make room on the "
                "disk, and open the run again, which repairs the file."
            )
        if os.getpid() != self._owner:
            raise InputValueError(
                f"path={str(self._path)!r} was opened by process {self._owner}, and process {os.getpid()} is a fork of "
                "it: two at once would release rounds twice. Use the run in the process that opened it."
            )

    def seen(self) -> dict[str, Any]:
        """Returns the length and the SHA-256 of the ledger, which a state is saved with."""
        return {"bytes": self._length, "sha256": self._digest.hexdigest()}

    def has_seen(self, seen: Mapping[str, Any]) -> bool:
        """Returns whether the ledger is the one that a state was saved with, or goes on after it."""
        with self._path.open("rb") as file:
            content = file.read(seen["bytes"])
        return seen == {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}

    def begin(
        self, round_number: int, clients: Sequence[str], *, divisor: float, clip_norm: float, restarts: bool = False
    ) -> None:
        """Appends that a round is about to be computed, for the first time or again.

        Args:
            round_number: The round, counted from 1.
            clients: The clients that take part, each once; nobody of a secret cohort.
            divisor: The number by which the noised sum is divided.
            clip_norm: Bound on the norm of a client's update in this round.
            restarts: Whether the noise starts anew in this round.

        Raises:
            InputValueError: If the round was released, is not the next one, or a client is twice among its clients.
        """
        line = Begun(
            round=round_number,
            attempt=self.record.attempts[round_number] + 1,
            clients=tuple(clients),
            divisor=float(divisor),
            clip_norm=float(clip_norm),
            restarts=restarts,
        )
        self.append(line)

    def released_until(self, round_number: int, *, reports: ReportCounts | None = None) -> None:
        """Appends that all rounds up to this one are released, as far as the ledger does not say so yet.

        Call it before any result of the round leaves the server.

        Args:
            round_number: The round, counted from 1.
            reports: Counts of the device reports of this round, if they were counted.

        Raises:
            InputValueError: If one of them was never begun, or its attempt was abandoned.
        """
        for number in range(self.record.last_released + 1, round_number + 1):
            self.append(Released(round=number, reports=reports if number == round_number else None))

    def end(self) -> None:
        """Appends that the run has ended."""
        shown = any(line.clients for line in self.record.begun)
        self.append(Ended(rounds=self.record.position, time=_now() if shown else None))

    def append(self, line: Line) -> None:
        """Appends a line, durably.

        Raises:
            InputValueError: If it cannot come next.
        """
        self.check()
        if refusal := self.record.refusal(line):
            raise InputValueError(
                f"ledger={str(self._path)!r}: {refusal}. Resume from a checkpoint of the last released round, "
                f"{self.record.last_released}."
            )
        text = as_text(line).encode()
        self._failed = True
        left = text
        while left:
            left = left[os.write(self._descriptor, left) :]
        os.fsync(self._descriptor)
        self._failed = False
        self._length += len(text)
        self._digest.update(text)
        self.record.take(line)


@contextlib.contextmanager
def open_ledger(path: pathlib.Path, *, bound_to: pathlib.Path | None = None, ended: bool = False) -> Iterator[Ledger]:
    """Yields the ledger of a run: a new one, or the existing one of a run that is resumed.

    If the run was killed while it wrote a line, that line is incomplete and it did not take effect: it is cut.

    Args:
        path: The ledger.
        bound_to: The file with the settings of the run, whose hash is in the first line of the ledger: a report
            accepts no ledger without it. `run.json` in the folder of the ledger if not given.
        ended: Whether the run may have ended; then nothing can be appended.

    Raises:
        InputValueError: If the file `bound_to` is missing or was changed since the run began, or the existing ledger is
            damaged, has an impossible sequence of lines, or has ended.
    """
    bound_to = path.with_name(RUN_JSON) if bound_to is None else bound_to
    if not bound_to.is_file():
        raise InputValueError(
            f"bound_to={str(bound_to)!r} is missing, and the ledger must contain its hash: write it first "
            "with reports.write_record."
        )
    about = files.file_hash(bound_to)
    record, content = LedgerRecord(), b""
    if path.exists() and _cut_partial_line(path):
        record, content = read_ledger(path), path.read_bytes()
        problems = [
            *record.problems,
            *record.impossible,
            *(["its run has ended"] if record.ended and not ended else []),
        ]
        if record.bound_to != about:
            problems.append(f"{bound_to.name} was changed since the run began")
        if problems:
            raise InputValueError(
                f"ledger={str(path)!r} cannot be continued: {'; '.join(problems)}. Put the newest files of the run "
                "back, or start another run in another folder."
            )
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
    try:
        files.sync_folder(path.parent)
        ledger = Ledger(path, descriptor, record, content)
        if not content:
            ledger.append(Opened(version=VERSION, run=secrets.token_hex(16), bound_to=about, time=_now()))
        yield ledger
    finally:
        os.close(descriptor)


def _now() -> datetime.datetime:
    return datetime.datetime.now(datetime.UTC).replace(microsecond=0)


def _cut_partial_line(path: pathlib.Path) -> int:
    """Cuts an incomplete last line, and returns the number of bytes that are left: 0 if the run never began."""
    with path.open("r+b") as file:
        content = file.read()
        whole = content.rfind(b"\n") + 1
        if whole < len(content):
            file.truncate(whole)
            os.fsync(file.fileno())
        return whole


def refusal(schema: tff_mf.Participation, past: Sequence[int], round_number: int) -> str:
    """Returns why a client may not take part in a round, given its past rounds; an empty text if it may.

    Past rounds can be later ones, from abandoned attempts. If the round is among them, it counts once.

    Formal guarantee: if the text is empty and the past rounds are a pattern of the schema, the round and they are.

    Args:
        schema: The participation schema.
        past: Rounds for which the client was chosen.
        round_number: The round.

    Example:
        >>> refusal(tff_mf.MinSep(min_sep=3, max_participations=2), [1], 3)
        'took part in rounds 1, which MinSep(min_sep=3, max_participations=2) does not allow together with round 3'
    """
    rounds = sorted({*past, round_number})
    if schema.allows(rounds):
        return ""
    others = ", ".join(str(number) for number in rounds if number != round_number)
    return f"took part in rounds {others}, which {schema!r} does not allow together with round {round_number}"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Rules:
    """The rules of a run's rounds.

    Attributes:
        rounds: Number of rounds that were accounted for.
        schema: The participation schema; `None` if no client is refused, for runs for which no ε is stated.
        divisor: Constant by which noised sums are divided.
        clip_norm: Bound on the norm of a client's update; if it adapts, the first round's.
        restart_every: Rounds after which noise starts anew, or `None`.
    """

    rounds: int
    schema: tff_mf.Participation | None
    divisor: float
    clip_norm: float
    restart_every: int | None = None

    @classmethod
    def of(cls, plan: tff_mf.Plan) -> "Rules":
        """Returns the rules of a plan."""
        return cls(
            rounds=plan.rounds,
            schema=plan.participation,
            divisor=plan.clients_per_round,
            clip_norm=plan.clip_norm,
            restart_every=plan.restart_every,
        )

    def restarts_in(self, round_number: int) -> bool:
        """Returns whether the noise starts anew in a round, counted from 1."""
        return self.restart_every is not None and round_number > 1 and (round_number - 1) % self.restart_every == 0


class RefusedCohortError(InputValueError):
    """A cohort that the participation schema forbids. Nothing was written, and no data may be handed out.

    Attributes:
        clients: The clients that may not take part.
    """

    def __init__(self, message: str, clients: Sequence[str]) -> None:
        super().__init__(message)
        self.clients = list(clients)
