"""Evaluates, saves and releases rounds in order: while the next one trains, and nothing before it is on disk."""

import asyncio
import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent import futures

import tensorflow_federated as tff

from ..run_folder import run_log
from ..run_folder.metrics import ROUND, SECONDS
from .checkpoints import Progress, Recovery

OnRound = Callable[[int, Mapping[str, float]], None]
Evaluate = Callable[[], Mapping[str, float]]
# Where the run is, the metrics of its model, and whether no round until there can be run again.
_Kept = tuple[Progress, Mapping[str, float], bool]


@dataclasses.dataclass(kw_only=True)
class Releases:
    """The rounds of a run after they are computed. Made by `opened`.

    Formal guarantee: nothing of a round is released, nor does the ledger say so, before the round is on disk if it has
    to be (see `Recovery.save`), and before all rounds before it are released. At most one round is not yet evaluated
    and saved while the next one is computed; after an evaluation or a save has failed, nothing more is released.

    Attributes:
        saved: The checkpoints.
        log: The ledger and the participation log.
        managers: Where metrics are released.
        on_round: Called after every release with the number of the round and its metrics.
        history: Metrics of each evaluated round that is released.
    """

    saved: Recovery
    log: run_log.RunLog
    managers: Sequence[tff.program.ReleaseManager]
    on_round: OnRound
    history: tuple[dict[str, float], ...]
    _thread: futures.Executor
    _pending: futures.Future[_Kept] | None = None

    def add(self, progress: Progress, evaluate: Evaluate | None = None) -> None:
        """Releases the round before, and this one unless it must be evaluated or saved first, which then begins.

        Args:
            progress: Where the run is; its row and history are added here.
            evaluate: Returns the metrics of the round's model, in a thread; `None` if it is not evaluated.

        Raises:
            Exception: What evaluating or saving the round before raised.
        """
        self.finish()
        # A state in the worker does not change: it belongs to this round, whatever is computed meanwhile.
        self._pending = self._thread.submit(self._kept, progress, evaluate)
        if evaluate is None and not self.saved.is_due(progress.round_number, released=False):
            self.finish()

    def _kept(self, progress: Progress, evaluate: Evaluate | None) -> _Kept:
        metrics = dict(evaluate()) if evaluate else {}
        evaluated = ({ROUND: progress.round_number, **metrics},) if metrics else ()
        row = {SECONDS: progress.seconds, **metrics}
        progress = dataclasses.replace(progress, row=row, history=(*self.history, *evaluated))
        return progress, metrics, self.saved.save(progress, released=bool(metrics))

    def finish(self) -> None:
        """Releases the round that is being evaluated and saved, once it is on disk.

        Raises:
            Exception: What evaluating or saving it raised.
        """
        if self._pending is None:
            return
        pending, self._pending = self._pending, None
        progress, metrics, is_final = pending.result()
        if is_final:
            self.log.released_until(progress.round_number)
        self.history = progress.history
        release(self.managers, progress)
        self.on_round(progress.round_number, metrics)


@contextlib.contextmanager
def opened(
    saved: Recovery,
    log: run_log.RunLog,
    managers: Sequence[tff.program.ReleaseManager],
    on_round: OnRound,
    history: tuple[dict[str, float], ...],
) -> Iterator[Releases]:
    """Yields the releases of a run; the last round is released at the end of the block.

    If the block raises, an evaluation and a save that have begun are finished, and their round is not released.

    Args:
        saved: The checkpoints.
        log: The ledger and the participation log.
        managers: Where metrics are released.
        on_round: Called after every release with the number of the round and its metrics.
        history: Metrics of each evaluated round so far.
    """
    with futures.ThreadPoolExecutor(1) as thread:
        releases = Releases(saved=saved, log=log, managers=managers, on_round=on_round, history=history, _thread=thread)
        yield releases
        releases.finish()


def release(managers: Sequence[tff.program.ReleaseManager], progress: Progress) -> None:
    """Releases the metrics of a round that is on disk."""
    for manager in managers:
        asyncio.run(manager.release(progress.row, progress.round_number))
