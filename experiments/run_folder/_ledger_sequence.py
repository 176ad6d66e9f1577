"""The order of a ledger's entries: each round is released once, in order, by its last attempt."""

from collections import Counter
from collections.abc import Mapping
from typing import Any


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

    def refusal(self, entry: Mapping[str, Any]) -> str:
        """Returns why an entry cannot come next; an empty text if it can.

        Example:
            >>> LedgerSequence().refusal({"kind": "released", "round": 1, "attempt": 1})
            'round 1 was released and never begun'
        """
        kind = entry["kind"]
        if self.ended:
            return f"{kind!r} follows the end of the run"
        judge = {"begin": self._begin, "released": self._release, "restarted": self._restart, "ended": self._end}
        return judge[kind](entry) if kind in judge else ""

    def take(self, entry: Mapping[str, Any]) -> None:
        """Updates the state by an entry, even by one that is refused: a reader continues with the next."""
        kind = entry["kind"]
        if kind == "begin":
            self.position = entry["round"]
            self.attempts[entry["round"]] += 1
            self.clients = entry["clients"]
        elif kind == "released":
            self.released = max(self.released, entry["round"])
        elif kind == "ended":
            self.ended = True

    def _begin(self, entry: Mapping[str, Any]) -> str:
        number = entry["round"]
        if number <= self.released:
            return f"round {number} was begun again after it was released"
        out_of_order = self._out_of_order(number)
        if out_of_order:
            return f"round {number} was begun {out_of_order}"
        if entry["attempt"] != self.attempts[number] + 1:
            return f"attempt {entry['attempt']} of round {number} follows {self.attempts[number]} attempts"
        return ""

    def _release(self, entry: Mapping[str, Any]) -> str:
        number = entry["round"]
        if number <= self.released:
            return f"round {number} was released more than once: two results of a round are two releases"
        if not self.attempts[number]:
            return f"round {number} was released and never begun"
        if number > self.position:
            return f"round {number} was released by an abandoned attempt: round {self.position} was begun after it"
        if number != self.released + 1:
            return f"round {number} was released before round {self.released + 1}"
        if entry["attempt"] != self.attempts[number]:
            return (
                f"attempt {entry['attempt']} of round {number} was released, and attempt {self.attempts[number]} was "
                "begun last"
            )
        counted = entry["reports"]["counted"] if "reports" in entry else 0
        if counted > self.clients:
            return f"round {number} counts {counted} reports of {self.clients} clients: each client counts once"
        return ""

    def _restart(self, entry: Mapping[str, Any]) -> str:
        out_of_order = self._out_of_order(entry["round"])
        return out_of_order and f"noise started anew in round {entry['round']} {out_of_order}"

    def _end(self, entry: Mapping[str, Any]) -> str:
        if entry["rounds"] != self.position:
            return f"the run ended after {entry['rounds']} rounds, and round {self.position} was begun last"
        return ""

    def _out_of_order(self, number: int) -> str:
        if self.released < number <= self.position + 1:
            return ""
        return f"out of order: after round {self.position}, with rounds released to {self.released}"
