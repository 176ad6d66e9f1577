"""Ends TFF's worker process, which would otherwise outlive Python and hold its output and memory."""

import atexit
import contextlib
import gc
import time
from collections.abc import Iterator

import psutil
import tensorflow_federated as tff

from ..computations import secure, transfers
from ..computations.clear_errors import cleared

_WORKER = "worker_binary"
_PATIENCE_SECONDS = 10.0
_POLL_SECONDS = 0.05


@contextlib.contextmanager
def tff_session(*, max_concurrent_computation_calls: int = -1) -> Iterator[tff.framework.SyncContext]:
    """Runs TFF with a worker of its own, gone when the block ends, however it ends.

    TFF 0.87.0 starts a C++ worker that inherits standard output and is never told to stop: a pipe
    that reads from the program waits for ever, and the worker's memory stays taken. Workers that
    were started outside of a session by this process end with the program, since importing this
    module registers that. Sessions do not nest.

    A process whose state is large is slow here, which is said in a `LargeStateWarning` before it
    starts. Secure sums are simulated, without cryptography.

    Args:
        max_concurrent_computation_calls: Computations (clients of a round, mostly) that the worker
            runs at once; no bound if not positive.

    Yields:
        The execution context, which is TFF's default one inside the block.

    Raises:
        NoRoundsLeftError: In the block, after the last round of a mechanism.

    Example:
        >>> with tff_session() as context:
        ...     tff.framework.get_context_stack().current is context
        True
    """
    # TFF's native context, but for sums that are secure.
    context = _Session(
        tff.backends.test.create_sync_test_cpp_execution_context(
            max_concurrent_computation_calls=max_concurrent_computation_calls
        )
    )
    stack = tff.framework.get_context_stack()
    before = stack.current
    try:
        with ending_workers():
            stack.set_default_context(context)
            try:
                yield context
            finally:
                stack.set_default_context(before)
    finally:
        # When its context is collected, TFF interrupts the worker and waits for its end without a limit: for ever if it
        # ignores interrupts, as what a script starts in the background does. By now the worker has ended.
        # Computations may still hold the context in a cycle.
        del context
        gc.collect()


class _Session(tff.framework.SyncContext):
    """TFF's context, which says beforehand what will be slow, and afterwards clearly what went wrong."""

    def __init__(self, context: tff.framework.SyncExecutionContext) -> None:
        self._context = context
        self._has_warned = False

    @property
    def executor_factory(self) -> object:
        return self._context.executor_factory

    def invoke(self, comp: tff.Computation, arg: object) -> object:
        secure.mention(comp)
        self._has_warned = self._has_warned or transfers.check(comp)
        with cleared():
            return self._context.invoke(comp, arg)


@contextlib.contextmanager
def ending_workers() -> Iterator[None]:
    """Ends with the block every worker that was started in it."""
    others = {worker.pid for worker in _workers()}
    try:
        yield
    finally:
        _end([worker for worker in _workers() if worker.pid not in others])


def _workers() -> list[psutil.Process]:
    return [child for child in psutil.Process().children() if _runs(child)]


def _runs(process: psutil.Process) -> bool:
    # A worker that has ended stays a zombie: TFF signals and reaps it when its context is collected,
    # and would fail if somebody else had reaped it.
    with contextlib.suppress(psutil.NoSuchProcess):
        return process.name().startswith(_WORKER) and process.status() != psutil.STATUS_ZOMBIE
    return False


def _end(workers: list[psutil.Process]) -> None:
    for end in (psutil.Process.terminate, psutil.Process.kill):
        for worker in workers:
            with contextlib.suppress(psutil.NoSuchProcess):
                end(worker)
        deadline = time.monotonic() + _PATIENCE_SECONDS
        while (workers := [worker for worker in workers if _runs(worker)]) and time.monotonic() < deadline:
            time.sleep(_POLL_SECONDS)


class _Ended(tff.framework.SyncContext):
    """Stands where TFF's default context stood: left until Python takes its modules apart, that reports an error."""

    def invoke(self, comp: object, arg: object) -> object:
        raise RuntimeError("The program has ended, and TFF's context with it.")


@atexit.register
def _end_all() -> None:
    _end(_workers())
    tff.framework.get_context_stack().set_default_context(_Ended())
    gc.collect()
