"""TFF's ordinary context: for a block, with a warning before slow rounds, clear errors, and an end of its worker."""

import contextlib
import functools
import gc
import logging
import math
import warnings
from collections.abc import Iterator

import numpy as np
import tensorflow_federated as tff

from .worker import clear_errors, ending_workers

_LOG = logging.getLogger(__name__)
_SECURE = b"federated_secure_"
_LARGE_BYTES = 64e6
MAX_MESSAGE_BYTES = 2e9


class LargeStateWarning(UserWarning):
    """A state is so large that sending it costs the ordinary context seconds in every round."""


def state_bytes(type_spec: tff.Type | None) -> int:
    """Returns the bytes of all tensors of fixed shape in a type that are at the server or have no placement."""
    if isinstance(type_spec, tff.FederatedType):
        return 0 if type_spec.placement is tff.CLIENTS else state_bytes(type_spec.member)
    if isinstance(type_spec, tff.StructType):
        return sum(state_bytes(child) for child in type_spec.children())
    if not isinstance(type_spec, tff.TensorType) or type_spec.shape is None:
        return 0
    return math.prod(length or 0 for length in type_spec.shape) * np.dtype(type_spec.dtype).itemsize


def warn_of_large(computation: tff.Computation) -> bool:
    """Returns whether the ordinary context would send a large state to or from the worker, and warns if so."""
    signature = computation.type_signature
    size = max(state_bytes(signature.parameter), state_bytes(signature.result))
    if size < _LARGE_BYTES:
        return False
    # Measured: 35 ms per MB for states of 64 to 900 MB; on a busier machine, 96 s and 14 GB of memory for one of 1 GB.
    warnings.warn(
        f"TFF's ordinary context sends the server's state of {size / 1e6:,.0f} MB to the worker and back in every "
        "round, which takes 35 to 100 s and 14 GB of memory for 1 GB, and may fail above 2 GB. Run in `with "
        "tff_mf.aggregators.resident_context():`, where it stays in the worker.",
        LargeStateWarning,
        stacklevel=2,
    )
    return True


class Session(tff.framework.SyncContext):
    """TFF's context, which warns beforehand of slow rounds and raises clear errors."""

    def __init__(self, context: tff.framework.SyncExecutionContext) -> None:
        self._context = context
        self._has_warned = False

    def invoke(self, comp: tff.Computation, arg: object) -> object:
        has_secure_sums(comp)
        self._has_warned = self._has_warned or warn_of_large(comp)
        with clear_errors():
            return self._context.invoke(comp, arg)


@contextlib.contextmanager
def tff_session() -> Iterator[tff.framework.SyncContext]:
    """Runs TFF with a worker of its own, which ends with the block, however the block ends.

    TFF 0.87.0 starts a C++ worker that inherits standard output and is never told to stop: a pipe that reads from the
    program waits forever, and the worker's memory stays taken. A worker that TFF's own context starts outside of a
    session ends with the program. Sessions do not nest.

    A process with a large state is slow here; a `LargeStateWarning` says so before its first round. Secure sums are
    simulated, without cryptography.

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
    context = Session(tff.backends.test.create_sync_test_cpp_execution_context())
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


def simulated(computation: tff.Computation) -> tff.Computation:
    """Returns a computation with plain sums in place of secure ones, which TFF's worker cannot compute.

    The numbers equal a secure sum's, including rounding and modulus. There is no cryptography: the worker sees the
    value of every client.
    """
    if not has_secure_sums(computation):
        return computation
    return tff.backends.test.replace_secure_intrinsics_with_bodies(computation)


def has_secure_sums(computation: tff.Computation) -> bool:
    """Returns whether a computation has secure sums, and warns once that they are simulated."""
    if not _mentions_secure_sums(computation):
        return False
    _say_once()
    return True


@functools.lru_cache(maxsize=128)
def _mentions_secure_sums(computation: tff.Computation) -> bool:
    return _SECURE in tff.framework.serialize_computation(computation).SerializeToString()


@functools.cache
def _say_once() -> None:
    _LOG.warning("Secure sums are simulated: the numbers equal a secure sum's, and there is no cryptography.")
