"""What a run released, on disk before and after every round: attempts, cohorts, restarts, clip norms.

A line is a JSON object and names the hash of all lines before it, so that a line that is changed, left out or put in
breaks the chain behind it. Somebody who writes the whole file anew is not found out by that: a report therefore holds
the last hash, and whoever has the report can tell.
"""

import contextlib
import dataclasses
import hashlib
import json
import os
import pathlib
import secrets
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, TextIO

from tff_mf.errors import InputValueError

LEDGER = "ledger.jsonl"

_VERSION = 1
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


def cohort_digest(clients: Sequence[str]) -> str:
    """Returns a hash of the clients of a round, in whatever order.

    Example:
        >>> cohort_digest(["b", "a"]) == cohort_digest(["a", "b"]) != cohort_digest(["a"])
        True
    """
    return hashlib.sha256(json.dumps(sorted(clients)).encode()).hexdigest()[:16]


class Ledger:
    """Appends to a ledger, each entry durably before the call returns. Made by `open_ledger`."""

    def __init__(self, file: TextIO, head: str, attempts: Counter[int], released: set[int]) -> None:
        self._file = file
        self._head = head
        self._attempts = attempts
        self._released = released

    def begin(self, round_number: int, clients: Sequence[str], *, divisor: float, clip_norm: float) -> None:
        """Notes that a round is about to be computed, for the first time or again.

        Args:
            round_number: The round, counted from 1.
            clients: Who takes part.
            divisor: What the noised sum will be divided by.
            clip_norm: Bound on the norm of a client's update in this round.
        """
        self._attempts[round_number] += 1
        entry = {
            "clients": len(clients),
            "cohort": cohort_digest(clients),
            "divisor": divisor,
            "clip_norm": clip_norm,
        }
        self._append("begin", round=round_number, attempt=self._attempts[round_number], **entry)

    def released(self, round_number: int) -> None:
        """Notes that the round may be seen from now on; to be called before anything of it leaves the server."""
        self._append("released", round=round_number, attempt=self._attempts[round_number])
        self._released.add(round_number)

    def released_until(self, round_number: int) -> None:
        """Notes of all rounds to this one that may be seen from now on, if that was not noted before."""
        for earlier in range(1, round_number + 1):
            if earlier not in self._released:
                self.released(earlier)

    def restarted(self, round_number: int) -> None:
        """Notes that noise starts anew in this round, counted from 1."""
        self._append("restarted", round=round_number)

    def ended(self) -> None:
        """Notes that no round will follow."""
        self._append("ended", rounds=len(self._attempts))

    def _append(self, kind: str, **entry: Any) -> None:
        line, self._head = _chained(self._head, {"kind": kind, **entry})
        self._file.write(line)
        self._file.flush()
        os.fsync(self._file.fileno())


@contextlib.contextmanager
def open_ledger(path: pathlib.Path, *, configuration: pathlib.Path | None = None) -> Iterator[Ledger]:
    """Yields the ledger of a run: a new one, or the one that is there, to which a resumed run is added.

    A last line that was not written to its end, when the run was killed, is of something that did not happen; it is
    cut.

    Args:
        path: The ledger.
        configuration: The file that says what the run is set to do: a new ledger's first line names its hash.

    Raises:
        InputValueError: If the file that is there is damaged or has ended.
    """
    if path.exists():
        _cut_partial_line(path)
        record = read_ledger(path)
        if record.problems or record.ended:
            raise InputValueError(
                f"ledger={str(path)!r} cannot go on: {'; '.join(record.problems) or 'its run has ended'}."
            )
        with path.open("a", encoding="utf-8") as file:
            yield Ledger(file, record.head, Counter(record.attempts), set(record.released))
        return
    with path.open("x", encoding="utf-8") as file:
        ledger = Ledger(file, "", Counter(), set())
        about = None if configuration is None else hashlib.sha256(configuration.read_bytes()).hexdigest()
        ledger._append("opened", version=_VERSION, run=secrets.token_hex(16), configuration=about)
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
        yield ledger


@dataclasses.dataclass(frozen=True, kw_only=True)
class LedgerRecord:
    """What a ledger says.

    Attributes:
        attempts: How often each round was computed.
        released: How often each round was released.
        cohorts: Hash of the cohort of each round, in its last attempt.
        sizes: Clients of each round, in its last attempt.
        divisors: What noised sums were divided by, without repetition.
        clip_norms: Clip norms, without repetition.
        restarts: Rounds in which noise started anew.
        ended: Whether the run said that it ended.
        configuration: Hash of what the run was set to do when it began, if the ledger names it.
        head: Hash of all lines.
        problems: What is wrong with the file, if anything.
    """

    attempts: dict[int, int]
    released: dict[int, int]
    cohorts: dict[int, str]
    sizes: dict[int, int]
    divisors: list[float]
    clip_norms: list[float]
    restarts: list[int]
    ended: bool
    configuration: str | None
    head: str
    problems: list[str]


def read_ledger(path: pathlib.Path) -> LedgerRecord:
    """Returns what a ledger says, as far as its lines are intact, and what is wrong with the rest.

    Raises:
        InputValueError: If there is no such file.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    except (OSError, UnicodeDecodeError) as error:
        raise InputValueError(f"ledger={str(path)!r} cannot be read: {error}.") from error
    head, entries, problems = "", [], []
    for number, line in enumerate(lines, start=1):
        try:
            entry = json.loads(line)
            claimed = entry.pop("chain")
            expected, new_head = _chained(head, entry)
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            problems.append(f"line {number} is damaged")
            break
        if expected != line or claimed != new_head:
            problems.append(f"line {number} does not follow from the lines before it")
            break
        if not _is_known(entry, first=number == 1):
            problems.append(f"line {number} is none that this release knows")
            break
        head = new_head
        entries.append(entry)
    if not entries:
        problems.append("its first line is missing")
    begun = [entry for entry in entries if entry["kind"] == "begin"]
    return LedgerRecord(
        attempts=dict(Counter(entry["round"] for entry in begun)),
        released=dict(Counter(entry["round"] for entry in entries if entry["kind"] == "released")),
        cohorts={entry["round"]: entry["cohort"] for entry in begun},
        sizes={entry["round"]: entry["clients"] for entry in begun},
        divisors=sorted({entry["divisor"] for entry in begun}),
        clip_norms=sorted({entry["clip_norm"] for entry in begun}),
        restarts=[entry["round"] for entry in entries if entry["kind"] == "restarted"],
        ended=bool(entries) and entries[-1]["kind"] == "ended",
        configuration=entries[0].get("configuration") if entries else None,
        head=head,
        problems=problems,
    )


def _is_known(entry: dict[str, Any], *, first: bool) -> bool:
    """Returns whether an entry is one that this release writes."""
    kind = entry.get("kind")
    if not isinstance(kind, str) or kind not in _KINDS or first != (kind == "opened"):
        return False
    if set(entry) != {"kind", *_KINDS[kind]}:
        return False
    fits = all(isinstance(entry[name], types) for name, types in _KINDS[kind].items())
    return fits and (not first or entry["version"] == _VERSION)


def _cut_partial_line(path: pathlib.Path) -> None:
    with path.open("r+b") as file:
        content = file.read()
        if not content.endswith(b"\n"):
            file.truncate(content.rfind(b"\n") + 1)
            os.fsync(file.fileno())


def _chained(head: str, entry: dict[str, Any]) -> tuple[str, str]:
    """Returns the line of an entry, and the hash of all lines with it."""
    new_head = hashlib.sha256((head + json.dumps(entry, sort_keys=True)).encode()).hexdigest()
    return json.dumps({**entry, "chain": new_head}) + "\n", new_head
