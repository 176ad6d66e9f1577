"""Where a private training computes, and the states that it keeps."""

import asyncio
import concurrent.futures
import contextlib
import json
from collections.abc import Callable, Coroutine, Iterator, Mapping
from typing import Any

import tensorflow_federated as tff

from ... import aggregators


class Computing(contextlib.AbstractContextManager["Computing"]):
    """A resident context that is current only where it is installed, and that is replaced if its worker dies."""

    def __init__(self) -> None:
        self._ends = contextlib.ExitStack()
        self._context: aggregators.ResidentContext | None = None

    def revive(self) -> None:
        """Starts a worker; one that runs is ended, with all of its values."""
        self._end()
        with _same_default():
            self._context = self._ends.enter_context(aggregators.resident_context())

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


class States:
    """The states of a private training in its checkpoints, of which the newest is loaded. A `Storage` of the loop."""

    def __init__(self, context: Computing, checkpoints: aggregators.CheckpointManager, start: Any) -> None:
        self._context, self._checkpoints = context, checkpoints
        saved, self.newest = context.wait(checkpoints.load_latest, {"state": start, "about": ""})
        self.state = start if saved is None else saved["state"]
        self._about: str = "" if saved is None else saved["about"]

    def rounds(self) -> list[int]:
        """Returns the round of the state that was loaded, or none."""
        return [self.newest] if self._about else []

    def save(self, round_number: int, state: Any, about: Mapping[str, Any]) -> None:
        """Saves the state after a round with facts about it."""
        self._context.wait(self._checkpoints.save, {"state": state, "about": json.dumps(about)}, round_number)

    def about(self, round_number: int) -> Mapping[str, Any]:
        """Returns the facts that were saved with the state that was loaded."""
        return json.loads(self._about)
