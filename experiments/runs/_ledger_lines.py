"""The lines of a ledger: what each records, in which order they may stand, and how hashes chain them."""

import dataclasses
import datetime
import hashlib
import json
import math
import pathlib
import secrets
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

from ...base import strict_json
from ...base.errors import InputValueError
from .report_counts import ReportCounts

VERSION = 1
# More than the number of people, and small enough that no figure overflows.
_MOST = 10**12


def _whole(least: int) -> Callable[[Any], bool]:
    return lambda value: type(value) is int and least <= value <= _MOST


def _is_number(value: Any) -> bool:
    return (type(value) is int and abs(value) <= _MOST) or (type(value) is float and math.isfinite(value))


def _is_time(value: Any) -> bool:
    try:
        found = datetime.datetime.fromisoformat(value)
    except (ValueError, TypeError):
        return False
    return found.utcoffset() == datetime.timedelta() and found.isoformat(timespec="seconds") == value


# The rule for each field, whatever the entry.
_RULES: Mapping[str, tuple[Callable[[Any], bool], str]] = {
    "version": (lambda value: type(value) is int and value == VERSION, f"{VERSION}"),
    **dict.fromkeys(
        ("run", "configuration", "cohort", "nonce"),
        (lambda value: isinstance(value, str) and value.isprintable(), "a text"),
    ),
    **dict.fromkeys(("round", "attempt"), (_whole(1), "a whole number of at least 1")),
    **dict.fromkeys(("clients", "rounds"), (_whole(0), "a whole number of at least 0")),
    **dict.fromkeys(("divisor", "clip_norm"), (_is_number, "a number")),
    "reports": (lambda value: value is None or isinstance(value, ReportCounts), "counts of reports"),
    "time": (_is_time, "a time of UTC in whole seconds"),
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Entry:
    """A line of a ledger."""

    kind: ClassVar[str] = ""

    def as_json(self) -> dict[str, Any]:
        """Returns the entry as JSON; a field that is not given is left out."""
        given = {name: value for name, value in vars(self).items() if value is not None}
        return {"kind": self.kind, **given}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Opened(Entry):
    """The first entry: the format, the run, the hash of its `run.json`, and the time by the clock of the machine."""

    kind: ClassVar[str] = "opened"
    version: int
    run: str
    configuration: str
    time: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class Begin(Entry):
    """An attempt to compute a round: numbers counted from 1, clients and their hash, and what bounds their updates.

    `nonce` is random, so that a copy of the folder that goes on has another ledger, also with the same cohorts.
    """

    kind: ClassVar[str] = "begin"
    round: int
    attempt: int
    clients: int
    cohort: str
    divisor: float
    clip_norm: float
    nonce: str = dataclasses.field(default_factory=lambda: secrets.token_hex(8))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Released(Entry):
    """A round whose result may leave the server, with counts of its devices' reports if they were counted."""

    kind: ClassVar[str] = "released"
    round: int
    attempt: int
    reports: ReportCounts | None = None

    def as_json(self) -> dict[str, Any]:
        found = super().as_json()
        return found if self.reports is None else {**found, "reports": self.reports.as_json()}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Restarted(Entry):
    """A round, begun next, in which the noise starts anew."""

    kind: ClassVar[str] = "restarted"
    round: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class Ended(Entry):
    """The last entry, with the time by the clock of the machine."""

    kind: ClassVar[str] = "ended"
    rounds: int
    time: str


_KINDS: Mapping[str, type[Entry]] = {each.kind: each for each in (Opened, Begin, Released, Restarted, Ended)}


def entry_of(content: Mapping[str, Any]) -> Entry:
    """Returns the entry that JSON holds.

    Raises:
        InputValueError: If it is none of this release's.

    Example:
        >>> entry_of({"kind": "restarted", "round": 3})
        Restarted(round=3)
    """
    fields = dict(content)
    kind = _KINDS.get(str(fields.pop("kind", None)))
    if kind is None:
        raise InputValueError(f"kind={content.get('kind')!r:.80} must be one of {', '.join(_KINDS)}.")
    if fields.get("reports") is not None:
        fields["reports"] = ReportCounts.of(fields["reports"])
    try:
        found = kind(**fields)
    except TypeError:
        known = [each.name for each in dataclasses.fields(kind)]
        raise InputValueError(f"{', '.join(fields)!r:.200} must be the fields {', '.join(known)}.") from None
    for name, value in vars(found).items():
        is_right, rule = _RULES[name]
        if not is_right(value):
            raise InputValueError(f"{name}={value!r:.80} must be {rule}.")
    return found


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
            return f"{entry.kind!r} follows the end of the run"
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
        heads: Hash of all lines up to the newest attempt of each round.
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
    heads: dict[int, str]
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
        configuration=opened.configuration if opened else None,
        head=heads[-1] if heads else "",
        heads={entry.round: head for entry, head in zip(entries, heads, strict=True) if isinstance(entry, Begin)},
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


def now() -> str:
    """Returns the time of the machine's clock, as entries have it."""
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")


def chained(head: str, entry: Entry | Mapping[str, Any]) -> tuple[str, str]:
    """Returns the line of an entry, and the hash of all lines up to it."""
    content = entry if isinstance(entry, Mapping) else entry.as_json()
    new_head = hashlib.sha256((head + json.dumps(content, sort_keys=True)).encode()).hexdigest()
    return json.dumps({**content, "chain": new_head}) + "\n", new_head
