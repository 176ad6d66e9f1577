"""The lines of a ledger: their format, their chain of hashes, and the record that they add up to."""

import dataclasses
import datetime
import hashlib
import json
import pathlib
import sys
from collections import Counter
from collections.abc import Sequence
from typing import Any

from tff_mf.errors import InputValueError

from ._ledger_sequence import LedgerSequence
from .report_counts import ReportCounts, read_counts

VERSION = 1
_KINDS: dict[str, dict[str, type | tuple[type, ...]]] = {
    "opened": {"version": int, "run": str, "configuration": (str, type(None))},
    "begin": {
        "round": int,
        "attempt": int,
        "clients": int,
        "cohort": str,
        "divisor": (int, float),
        "clip_norm": (int, float),
    },
    "released": {"round": int, "attempt": int},
    "restarted": {"round": int},
    "ended": {"rounds": int},
}
# Optional fields of an entry: only a server with devices counts reports, and a ledger can be without a clock.
_OPTIONAL = {"released": {"reports"}, "opened": {"time"}, "ended": {"time"}}


def cohort_digest(clients: Sequence[str]) -> str:
    """Returns a hash of the clients of a round, which does not depend on their order.

    Example:
        >>> cohort_digest(["b", "a"]) == cohort_digest(["a", "b"]) != cohort_digest(["a"])
        True
    """
    return hashlib.sha256(json.dumps(sorted(clients)).encode()).hexdigest()[:16]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Attempt:
    """An attempt to compute a round.

    Attributes:
        round_number: The round, counted from 1.
        attempt: The attempt of the round, counted from 1.
        clients: Number of clients.
        cohort: Hash of the clients.
        clip_norm: Bound on the norm of a client's update.
    """

    round_number: int
    attempt: int
    clients: int
    cohort: str
    clip_norm: float


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
    begun: list[Attempt]
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
    begun = [entry for entry in entries if entry["kind"] == "begin"]
    sequence, impossible = LedgerSequence(), []
    for entry in entries:
        refusal = sequence.refusal(entry)
        sequence.take(entry)
        if refusal:
            impossible.append(refusal)
    return LedgerRecord(
        attempts=dict(Counter(entry["round"] for entry in begun)),
        released=dict(Counter(entry["round"] for entry in entries if entry["kind"] == "released")),
        cohorts={entry["round"]: entry["cohort"] for entry in begun},
        sizes={entry["round"]: entry["clients"] for entry in begun},
        begun=[
            Attempt(
                round_number=entry["round"],
                attempt=entry["attempt"],
                clients=entry["clients"],
                cohort=entry["cohort"],
                clip_norm=entry["clip_norm"],
            )
            for entry in begun
        ],
        divisors=sorted({entry["divisor"] for entry in begun}),
        clip_norms=sorted({entry["clip_norm"] for entry in begun}),
        restarts=_restarts(entries),
        reports={entry["round"]: read_counts(entry["reports"]) for entry in entries if "reports" in entry},
        ended=bool(entries) and entries[-1]["kind"] == "ended",
        started=entries[0].get("time") if entries else None,
        finished=entries[-1].get("time") if entries and entries[-1]["kind"] == "ended" else None,
        run=entries[0]["run"] if entries else "",
        configuration=entries[0].get("configuration") if entries else None,
        head=head,
        problems=problems,
        impossible=impossible,
        sequence=sequence,
    )


def _restarts(entries: list[dict[str, Any]]) -> list[int]:
    """Returns the rounds whose last attempt started with new noise, and restarts that no attempt followed."""
    found: set[int] = set()
    announced: set[int] = set()
    for entry in entries:
        if entry["kind"] == "restarted":
            announced.add(entry["round"])
        elif entry["kind"] == "begin":
            found.discard(entry["round"])
            found |= announced
            announced.clear()
    return sorted(found | announced)


def _intact(lines: list[str]) -> tuple[str, list[dict[str, Any]], list[str]]:
    """Returns the hash of the intact lines at the start, their entries, and what is wrong with the line after them."""
    head, entries, problems = "", [], []
    for number, line in enumerate(lines, start=1):
        try:
            entry = json.loads(line)
            claimed = entry.pop("chain")
            expected, new_head = chained(head, entry)
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            problems.append(f"line {number} is damaged")
            break
        if expected != line or claimed != new_head:
            problems.append(f"line {number} does not follow from the lines before it")
            break
        if not _is_known(entry, first=number == 1):
            problems.append(f"line {number} has an entry that this release does not know")
            break
        head = new_head
        entries.append(entry)
    if not entries:
        problems.append("its first line is missing")
    return head, entries, problems


def _is_known(entry: dict[str, Any], *, first: bool) -> bool:
    """Returns whether this release writes such an entry."""
    kind = entry.get("kind")
    if not isinstance(kind, str) or kind not in _KINDS or first != (kind == "opened"):
        return False
    if set(entry) - _OPTIONAL.get(kind, set()) != {"kind", *_KINDS[kind]}:
        return False
    fits = all(
        isinstance(entry[name], types) and not isinstance(entry[name], bool) for name, types in _KINDS[kind].items()
    )
    return fits and _in_range(entry) and (not first or entry["version"] == VERSION)


def _in_range(entry: dict[str, Any]) -> bool:
    """Returns whether the numbers and times of an entry are in the range that a run can have."""
    if "time" in entry and not _is_time(entry["time"]):
        return False
    if "reports" in entry:
        try:
            read_counts(entry["reports"])
        except InputValueError:
            return False
    counted = all(entry.get(name, 1) >= 1 for name in ("round", "attempt")) and entry.get("clients", 0) >= 0
    return counted and all(abs(entry.get(name, 1)) <= sys.float_info.max for name in ("divisor", "clip_norm"))


def now() -> str:
    """Returns the time of the machine's clock, as entries have it."""
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")


def _is_time(value: Any) -> bool:
    try:
        found = datetime.datetime.fromisoformat(value)
    except (TypeError, ValueError):
        return False
    return found.utcoffset() == datetime.timedelta() and found.isoformat(timespec="seconds") == value


def chained(head: str, entry: dict[str, Any]) -> tuple[str, str]:
    """Returns the line of an entry, and the hash of all lines up to it."""
    new_head = hashlib.sha256((head + json.dumps(entry, sort_keys=True)).encode()).hexdigest()
    return json.dumps({**entry, "chain": new_head}) + "\n", new_head
