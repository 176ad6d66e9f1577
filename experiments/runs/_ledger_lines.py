"""The lines of a ledger: what each records, counts of reports, in which order they may stand, how hashes chain them."""

import dataclasses
import datetime
import hashlib
import json
import math
import secrets
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

from ...base.errors import InputValueError

# Why a report is refused; no text from a device gets into a ledger.
REASONS = (
    *("no regular file", "too large", "damaged", "empty", "missing leaf", "extra leaf", "dtype", "shape"),
    *("not chosen", "duplicate", "another round", "late"),
)
_NUMBERS = ("came", "counted", "clipped", "zeroed")
# More than the number of devices.
_MOST = 10**12


@dataclasses.dataclass(frozen=True, kw_only=True)
class ReportCounts:
    """Counts of the device reports of one or several rounds.

    Attributes:
        came: Reports that arrived.
        counted: Reports whose updates are in the sum, including scaled and zeroed ones.
        clipped: Updates above the clip norm, which the server scaled down to it.
        zeroed: Updates that were not finite, which the server replaced by zero.
        refused: Reports that are not in the sum, by reason.

    Example:
        >>> one = ReportCounts(came=5, counted=4, clipped=1, zeroed=0, refused={"late": 1})
        >>> (one + one).refused, one.bad
        ({'late': 2}, 2)
    """

    came: int
    counted: int
    clipped: int
    zeroed: int
    refused: Mapping[str, int]

    def __post_init__(self) -> None:
        if not isinstance(self.refused, Mapping) or not set(self.refused) <= set(REASONS):
            raise InputValueError(f"refused={self.refused!r:.200} must have counts by reason, of {REASONS}.")
        for name, value in {**{name: getattr(self, name) for name in _NUMBERS}, **self.refused}.items():
            if type(value) is not int or not 0 <= value <= _MOST:
                raise InputValueError(f"{name}={value!r:.80} must be a whole number of at least 0.")
        if self.came != self.counted + sum(self.refused.values()) or self.clipped + self.zeroed > self.counted:
            raise InputValueError(f"{self!r} contradicts itself: each report that came is counted or refused.")

    @classmethod
    def of(cls, content: Any) -> "ReportCounts":
        """Returns the counts in JSON."""
        try:
            return cls(**content)
        except TypeError as error:
            raise InputValueError(f"reports={content!r:.200} are no counts of reports.") from error

    def as_json(self) -> dict[str, Any]:
        """Returns the counts as JSON."""
        return {**{name: getattr(self, name) for name in _NUMBERS}, "refused": dict(self.refused)}

    def __add__(self, other: "ReportCounts") -> "ReportCounts":
        refused = {
            reason: self.refused.get(reason, 0) + other.refused.get(reason, 0)
            for reason in REASONS
            if reason in self.refused or reason in other.refused
        }
        return ReportCounts(
            **{name: getattr(self, name) + getattr(other, name) for name in _NUMBERS},
            refused=refused,
        )

    @property
    def bad(self) -> int:
        """Reports that were refused, scaled or zeroed."""
        return sum(self.refused.values()) + self.clipped + self.zeroed

    @property
    def in_the_model(self) -> int:
        """Updates in the sum that were not replaced by zero."""
        return self.counted - self.zeroed


VERSION = 1


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
        ("run", "bound_to", "cohort", "nonce"),
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
    bound_to: str
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


def now() -> str:
    """Returns the time of the machine's clock, as entries have it."""
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")


def chained(head: str, entry: Entry | Mapping[str, Any]) -> tuple[str, str]:
    """Returns the line of an entry, and the hash of all lines up to it."""
    content = entry if isinstance(entry, Mapping) else entry.as_json()
    new_head = hashlib.sha256((head + json.dumps(content, sort_keys=True)).encode()).hexdigest()
    return json.dumps({**content, "chain": new_head}) + "\n", new_head
