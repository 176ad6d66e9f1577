"""The one loop of a server: begin, work, save, release, report, whatever computes the rounds and keeps the states.

Every engine calls it: TFF's training, Flower's strategy, and pipelines with a guard.
"""

import bisect
import contextlib
import pathlib
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import msgspec

from ...base import validation
from ...base.errors import InputValueError
from ..output import typed
from . import ledger
from .checkpoints import Storage
from .ledger import ReportCounts
from .names import LEDGER
from .rules import RefusedCohortError, Rules, checked_ids, refusal


class ServerLoop:
    """The rounds of one run on its server, in files that survive a kill at any moment. Made by `open_loop`.

    An engine begins a round, computes it from the state of the round before, and passes the new state to `finish`, or
    to `save` and then `released`. Only then it publishes anything of the round.

    Formal guarantee, for one process at a time in the folder:

    * Before `begin` returns, the clients of the round are on disk, and none of them exceeds the schema of the rules,
      counting all rounds that were ever begun in the folder, also by processes that were killed and in attempts that
      were given up. If `begin` raises, nothing was written.
    * `finish` records a round as released only once its state is on disk. Rounds are released in order, each once, by
      its newest attempt; a released round is never begun again, and a round that was not begun is never released.
    * After a kill at any point, `resume` continues with the newest state. If the round of that state was not recorded
      as released, it is now, since it may have been seen; no other round was, and their clients count all the same.
    * A run whose newest state is older than its ledger, or than what it published, is refused, and so is a ledger that
      does not begin with all that the state saw. That the whole folder was replaced by an older copy cannot be noticed.
    * After a write that failed, no round is begun until the run is opened again. A forked process begins and releases
      nothing.

    Threads may share a loop.
    """

    def __init__(
        self,
        folder: pathlib.Path,
        rules: Rules,
        book: ledger.Ledger,
    ) -> None:
        self._folder, self._rules, self._book = folder, rules, book
        self._lock = threading.RLock()
        self._storage: Storage | None = None
        self._past: dict[str, list[int]] = {}
        for begun in book.record.begun:
            self._remember(begun.clients, begun.round)
        # Only the engine knows whether the rounds of an earlier process are in a state.
        self._last = None if book.record.begun else 0

    @property
    def folder(self) -> pathlib.Path:
        """The run's folder."""
        return self._folder

    @property
    def run(self) -> str:
        """Random identifier of the run: keep it with its states."""
        return self._book.record.run

    @property
    def rounds(self) -> int:
        """Number of rounds that were accounted for."""
        return self._rules.rounds

    @property
    def last_released(self) -> int:
        """The last round that was released, 0 before the first."""
        return self._book.record.last_released

    @property
    def has_ended(self) -> bool:
        """Whether the run has ended, so that no round follows."""
        return self._book.record.ended

    @property
    def next_round(self) -> int:
        """The next round, counted from 1.

        Raises:
            InputValueError: If the run is resumed, and neither `resume` nor `goes_on_after` was called yet.
        """
        if self._last is None:
            raise InputValueError(
                f"out={str(self._folder)!r} holds a run that was stopped: call goes_on_after with the round of its "
                "newest checkpoint, or 0 if there is none."
            )
        return self._last + 1

    @property
    def last_round(self) -> int:
        """The round that was begun last, or after which the run was resumed; 0 before the first."""
        return self._last or 0

    def rounds_of(self, client: str) -> list[int]:
        """Returns the rounds that a client was chosen for, also in attempts that were given up."""
        return list(self._past.get(client, ()))

    def allowed(self, clients: Iterable[str]) -> list[str]:
        """Returns the clients that may take part in the next round."""
        return [client for client in clients if not self._refusal(client)]

    def begin(self, clients: Sequence[str], *, clip_norm: float | None = None) -> int:
        """Records the clients of the next round, and returns the round, counted from 1.

        Args:
            clients: Ids of all chosen clients, including those that may never report. May be empty.
            clip_norm: Clip norm of this round, if it adapts; the rules' if not given.

        Raises:
            RefusedCohortError: If the schema forbids the round to a client.
            InputTypeError: If an id is not a string.
            InputValueError: If a client is listed twice, an id cannot be written, the run has ended, or all rounds were
                begun.
        """
        read = checked_ids(clients)
        with self._lock:
            number = self.next_round
            self._check_unmixed()
            if number > self.rounds:
                raise InputValueError(f"round={number} is beyond the rounds={self.rounds} that were accounted for.")
            self._check_schema(number, read)
            norm = self._rules.clip_norm if clip_norm is None else validation.positive("clip_norm", clip_norm)
            restarts = self._rules.restarts_in(number)
            self._book.begin(number, read, divisor=self._rules.divisor, clip_norm=norm, restarts=restarts)
            self._remember(read, number)
            self._last = number
            return number

    def save(
        self,
        round_number: int,
        state: Any,
        *,
        reports: ReportCounts | None = None,
        facts: Mapping[str, Any] | None = None,
    ) -> None:
        """Saves the state after a round that was begun; `released` must follow before anything of it is published.

        Args:
            round_number: The round, counted from 1.
            state: What the storage keeps.
            reports: Counts of the clients' reports in the round, if they were counted.
            facts: What else the engine needs to go on after the round.

        Raises:
            InputValueError: If the round was not begun, the ledger could not be written, or this is a forked process.
        """
        assert self._storage is not None, "call resume first"
        self._book.check()
        if not self._book.record.attempts[round_number]:
            raise InputValueError(f"round_number={round_number} was never begun.")
        about = {"run": self.run, "round": round_number, "ledger": self._book.seen(), **(facts or {})}
        self._storage.save(round_number, state, {**about, "reports": msgspec.to_builtins(reports)})

    def released(self, round_number: int, *, reports: ReportCounts | None = None) -> None:
        """Records that all rounds up to this one are released; their states must be on disk.

        Args:
            round_number: The round, counted from 1.
            reports: Counts of the clients' reports in the round, if they were counted.

        Raises:
            InputValueError: If the round was not begun.
        """
        number = validation.whole("round_number", round_number)
        with self._lock:
            if number > self.last_round:
                raise InputValueError(f"round_number={number} was never begun: the last one was {self.last_round}.")
            self._check_unmixed()
            self._book.released_until(number, reports=reports)

    def finish(self, state: Any, *, reports: ReportCounts | None = None) -> None:
        """Saves the state after the round that was begun last, and records the round as released.

        Raises:
            InputValueError: If the round was not begun.
        """
        with self._lock:
            self.save(self.last_round, state, reports=reports)
            self.released(self.last_round, reports=reports)

    def resume(self, storage: Storage, *, published: int = 0, every_round: bool = False) -> int:
        """Continues after the newest state, and returns its round, 0 if there is none.

        Args:
            storage: Where the run's states are.
            published: The last round of which anything is known to be published.
            every_round: Whether the engine saves every round before it begins the next.

        Raises:
            InputValueError: If the newest state is lost, or belongs to another ledger.
        """
        self._storage = storage
        saved = storage.rounds()
        newest = max(saved, default=0)
        last = max(self.last_released, published)
        begun = self._book.record.newest
        if every_round and begun is not None:
            # The round before it was saved, and may be released although the ledger does not say so yet.
            last = max(last, begun.round - 1)
        if newest < last:
            raise InputValueError(
                f"round {last} of the run in out={str(self._folder)!r} was released, and its newest checkpoint is of "
                f"round {newest}: to run rounds again would release them twice. Put the newest checkpoint back, or end "
                "the run here, with tff-mf report FOLDER --end."
            )
        # Also where nothing of it is needed: a state of another run is refused before anything is done.
        about = storage.about(newest) if saved else {}
        if saved and (about["run"], about["round"]) != (self.run, newest):
            raise InputValueError(
                f"checkpoint of round {newest} in out={str(self._folder)!r} is of round {about['round']} of run "
                f"{about['run']:.8}, and not of this one, {self.run:.8}: put the run's own checkpoint back."
            )
        if newest and not self._book.has_seen(about["ledger"]):
            raise InputValueError(
                f"ledger={str(self._folder / LEDGER)!r} is older than the checkpoint of round {newest}, and lacks who "
                "took part, or was changed since, or the checkpoint is of a copy of the folder that went on too: put "
                "the newest ledger back, with the checkpoint of the same folder."
            )
        reports = None
        if newest > self.last_released:
            reports = typed.convert(about["reports"], ReportCounts | None)
        if not self.has_ended:
            self.record_resumed(newest, reports=reports)
        return newest

    def record_resumed(self, round_number: int, *, reports: ReportCounts | None = None) -> int:
        """Records that the run continues after a round whose state the engine has, and returns the round.

        Raises:
            InputValueError: If a later round was released, so that rounds would be released twice, or the round was
                never begun.
        """
        number = validation.whole("round_number", round_number, at_least=0)
        with self._lock:
            if number < self.last_released:
                raise InputValueError(
                    f"round_number={number}: round {self.last_released} of the run in out={str(self._folder)!r} was "
                    "released, and its newest checkpoint is older: restore the newest checkpoint, or end the run here, "
                    "with tff-mf report FOLDER --end."
                )
            if number > self.last_released:
                self._check_unmixed()
            # A round in a state can be seen, and the process may have been stopped before it recorded the release.
            self._book.released_until(number, reports=reports)
            self._last = number
            return number

    def goes_back_to(self, round_number: int) -> None:
        """Goes back to a round that was begun, to begin it again; its results so far must be discarded.

        Raises:
            InputValueError: If the round was released or not begun, or is not far enough back.
        """
        number = validation.whole("round_number", round_number)
        with self._lock:
            if not self.last_released < number <= self.next_round:
                raise InputValueError(
                    f"round_number={number} must be at least {self.last_released + 1}, the first round not "
                    f"released yet, and at most {self.next_round}, the next round."
                )
            if number != self.last_released + 1:
                self._check_unmixed()
            self._last = number - 1

    def record_end(self) -> None:
        """Records that the run has ended: no round follows."""
        self._book.end()

    def _check_unmixed(self) -> None:
        """Raises after a state of other rounds than were begun was seen: for loops that look into states."""

    def _check_schema(self, number: int, clients: Sequence[str]) -> None:
        refused = {client: reason for client in clients if (reason := self._refusal(client))}
        if refused:
            client, reason = next(iter(refused.items()))
            raise RefusedCohortError(
                f"clients={len(clients)} of round {number}: {len(refused)} may not take part, for example "
                f"{client!r}, which {reason}. Choose others.",
                list(refused),
            )

    def _refusal(self, client: str) -> str:
        schema = self._rules.schema
        return "" if schema is None else refusal(schema, self._past.get(client, ()), self.next_round)

    def _remember(self, clients: Iterable[str], round_number: int) -> None:
        for client in clients:
            rounds = self._past.setdefault(client, [])
            if round_number not in rounds:
                bisect.insort(rounds, round_number)


MakeLoop = Callable[[pathlib.Path, Rules, ledger.Ledger], ServerLoop]


@contextlib.contextmanager
def open_loop(
    folder: pathlib.Path,
    *,
    rules: Rules,
    bound_to: pathlib.Path | None = None,
    run: str | None = None,
    ended: bool = False,
    make: MakeLoop = ServerLoop,
) -> Iterator[Any]:
    """Yields the loop of a run: a new one, or one that is resumed.

    Args:
        folder: The run's folder.
        rules: The rules of its rounds. Without a schema, no client is refused.
        bound_to: The file that states what the run is, as for `ledger.open_ledger`; the `run.json` in the folder if not
            given.
        run: Identifier of the run in its states, if known; see `ledger.open_ledger`.
        ended: Whether the run may have ended.
        make: Makes the loop, a `ServerLoop` or a kind of it.

    Raises:
        InputValueError: If `run.json` is missing, or the existing ledger is damaged, is of another `run.json`, or says
            that the run has ended.
    """
    with ledger.open_ledger(folder / LEDGER, bound_to=bound_to, run=run, ended=ended) as book:
        yield make(folder, rules, book)
