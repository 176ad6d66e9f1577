"""Where a private training computes: a resident context that survives its worker."""

import asyncio
import concurrent.futures
import contextlib
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

import tensorflow_federated as tff

from ... import aggregators

# TensorFlow compiles what DATASET_REDUCE does for each client anew: rounds take up to three times as long, and the
# worker's memory grows with each client. TensorFlow Lite, on the other hand, has no iterators.
SIMULATION_LOOP = tff.learning.LoopImplementation.DATASET_ITERATOR
DEVICE_LOOP = tff.learning.LoopImplementation.DATASET_REDUCE


class Computing(contextlib.AbstractContextManager["Computing"]):
    """A resident context that is current only where it is installed, and that is replaced if its worker dies.

    Args:
        options: Arguments of `aggregators.resident_context`.
    """

    def __init__(self, **options: Any) -> None:
        self._options, self._ends = options, contextlib.ExitStack()
        self._context: aggregators.ResidentContext | None = None

    def revive(self) -> None:
        """Starts a worker; one that runs is ended, with all of its values."""
        self._end()
        with _same_default():
            self._context = self._ends.enter_context(aggregators.resident_context(**self._options))

    @contextlib.contextmanager
    def installed(self) -> Iterator[None]:
        """Makes the context the current one for a block."""
        assert self._context is not None
        with tff.framework.get_context_stack().install(self._context):
            yield

    def wait(self, work: Callable[..., Coroutine[Any, Any, Any]], *arguments: Any) -> Any:
        """Returns the result of asynchronous work, also in a notebook, whose thread has a loop of its own."""

        def done() -> Any:
            with self.installed():
                return asyncio.run(work(*arguments))

        try:
            asyncio.get_running_loop()
        except RuntimeError:
            return done()
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            return pool.submit(done).result()

    def __exit__(self, *error: object) -> None:
        self._end()

    def _end(self) -> None:
        with _same_default():
            self._ends.close()
        self._context = None


@contextlib.contextmanager
def _same_default() -> Iterator[None]:
    """Leaves the caller's context as it is, whatever the block does to it."""
    stack = tff.framework.get_context_stack()
    before = stack.current
    try:
        yield
    finally:
        stack.set_default_context(before)
