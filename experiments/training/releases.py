"""Saves and releases rounds in order: a round is saved while the next one trains, and released once it is on disk."""

import asyncio
import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent import futures

import tensorflow_federated as tff

from ..run_folder import run_log
from .checkpoints import Progress, Recovery

OnRound = Callable[[int, Mapping[str, float]], None]


@dataclasses.dataclass(kw_only=True)
class Releases:
    """The rounds of a run after they are computed. Made by `opened`.

    Formal guarantee: nothing of a round is released, nor does the ledger say so, before the round is on disk if it has
    to be (see `Recovery.save`), and before all rounds before it are released. At most one round is not yet saved while
    the next one is computed; after a save has failed, nothing more is released.

    Attributes:
        saved: The checkpoints.
        log: The ledger and the participation log.
        managers: Where metrics are released.
        on_round: Called after every release with the number of the round and its metrics.
    """

    saved: Recovery
    log: run_log.RunLog
    managers: Sequence[tff.program.ReleaseManager]
    on_round: OnRound
    _thread: futures.Executor
    _pending: tuple[Progress, Mapping[str, float], futures.Future[bool]] | None = None

    def add(self, progress: Progress, metrics: Mapping[str, float]) -> None:
        """Releases the round before, and this one unless it must be saved first, which then begins.

        Args:
            progress: Where the run is.
            metrics: The metrics of the round's model; empty if it is not evaluated.

        Raises:
            OSError: If the round before could not be saved.
        """
        self.finish()
        saving = self._thread.submit(self.saved.save, progress, released=bool(metrics))
        self._pending = progress, metrics, saving
        if not self.saved.is_due(progress.round_number, released=bool(metrics)):
            self.finish()

    def finish(self) -> None:
        """Releases the round that is being saved, once it is on disk.

        Raises:
            OSError: If it could not be saved.
        """
        if self._pending is None:
            return
        progress, metrics, saving = self._pending
        self._pending = None
        if saving.result():
            self.log.released_until(progress.round_number)
        release(self.managers, progress)
        self.on_round(progress.round_number, metrics)


@contextlib.contextmanager
def opened(
    saved: Recovery, log: run_log.RunLog, managers: Sequence[tff.program.ReleaseManager], on_round: OnRound
) -> Iterator[Releases]:
    """Yields the releases of a run; the last round is released at the end of the block.

    If the block raises, a save that has begun is finished, and its round is not released.

    Args:
        saved: The checkpoints.
        log: The ledger and the participation log.
        managers: Where metrics are released.
        on_round: Called after every release with the number of the round and its metrics.
    """
    with futures.ThreadPoolExecutor(1) as thread:
        releases = Releases(saved=saved, log=log, managers=managers, on_round=on_round, _thread=thread)
        yield releases
        releases.finish()


def release(managers: Sequence[tff.program.ReleaseManager], progress: Progress) -> None:
    """Releases the metrics of a round that is on disk."""
    for manager in managers:
        asyncio.run(manager.release(progress.row, progress.round_number))
