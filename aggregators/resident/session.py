"""TFF's ordinary execution context, with a worker that ends with a block."""

import contextlib
import gc
from collections.abc import Iterator

import tensorflow_federated as tff

from ..computations import secure, transfers
from ..computations.clear_errors import cleared
from ..workers.processes import ending_workers


@contextlib.contextmanager
def tff_session(*, max_concurrent_computation_calls: int = -1) -> Iterator[tff.framework.SyncContext]:
    """Runs TFF with a worker of its own, which ends with the block, however the block ends.

    TFF 0.87.0 starts a C++ worker that inherits standard output and is never told to stop: a pipe that reads from the
    program waits forever, and the worker's memory stays taken. A worker that TFF's own context starts outside of a
    session ends with the program if it runs an aggregator of this package. Sessions do not nest.

    A process with a large state is slow here; a `LargeStateWarning` says so before its first round. Secure sums are
    simulated, without cryptography.

    Args:
        max_concurrent_computation_calls: Number of computations (mostly clients of a round) that the worker runs at
            once; unlimited if not positive.

    Yields:
        The execution context, which is TFF's default one inside the block.

    Raises:
        NoRoundsLeftError: In the block, after the last round of a mechanism.

    Example:
        >>> with tff_session() as context:
        ...     tff.framework.get_context_stack().current is context
        True
    """
    # TFF's native context, except that it simulates secure sums.
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
        # When its context is collected, TFF interrupts the worker and waits for its end without a limit: forever if the
        # worker ignores interrupts, as background jobs of a shell script do. By now the worker has ended. Computations
        # may still hold the context in a reference cycle.
        del context
        gc.collect()


class _Session(tff.framework.SyncContext):
    """TFF's context, which warns beforehand of slow rounds and raises clear errors."""

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
