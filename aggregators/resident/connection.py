"""One worker of TFF, reached through TFF's own executor."""

import contextlib
import threading
from collections.abc import Coroutine, Iterator
from typing import Any, TypeVar

import grpc
import tensorflow_federated as tff

from ..computations.clear_errors import cleared
from . import _datasets

_T = TypeVar("_T")
_MAX_MESSAGE_BYTES = 2 * 1000**3
_OPTIONS = [
    ("grpc.max_receive_message_length", _MAX_MESSAGE_BYTES),
    ("grpc.max_send_message_length", _MAX_MESSAGE_BYTES),
]
# TFF reports a worker that does not know an executor any more, as after a restart, as a failed precondition.
_LOST = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.FAILED_PRECONDITION, grpc.StatusCode.CANCELLED)


class WorkerLostError(RuntimeError):
    """A worker has died or cannot be reached, and what it held is gone with it.

    Attributes:
        address: Host and port of the worker.
    """

    def __init__(self, address: str) -> None:
        super().__init__(
            f"TFF's worker at {address} has died or cannot be reached (killed, out of memory, or the network), and the "
            "state that it held is lost. Go on from the last checkpoint."
        )
        self.address = address


class _Stub(tff.framework.RemoteExecutorGrpcStub):
    def create_value(self, request: Any) -> Any:
        _datasets.lighten(request.value)
        return super().create_value(request)

    def dispose(self, request: Any) -> Any:
        # Runs when a reference is collected, where nobody can catch an error; the next call meets it again.
        with contextlib.suppress(grpc.RpcError, ValueError):
            return super().dispose(request)


class _UnwatchedChannel:
    """A channel whose state nobody watches: the thread in which TFF's stub does so would outlive the channel."""

    def __init__(self, channel: grpc.Channel) -> None:
        self._channel = channel

    def subscribe(self, callback: object, try_to_connect: bool = False) -> None:
        """Does nothing: a call that fails says enough about the worker."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._channel, name)


class Connection:
    """Values of one worker, without placements: which of them are on the server is our business.

    Args:
        address: Host and port of a running worker.
        wait_seconds: How long to wait for the worker's first answer.

    Raises:
        WorkerLostError: If it does not answer.
    """

    def __init__(self, address: str, *, wait_seconds: float = 30.0) -> None:
        self.address = address
        self._open = True
        channel = grpc.insecure_channel(address, _OPTIONS)
        try:
            grpc.channel_ready_future(channel).result(timeout=wait_seconds)
        except grpc.FutureTimeoutError:
            raise WorkerLostError(address) from None
        self._channel = channel
        self._stub = _Stub(_UnwatchedChannel(channel))
        # Values go when their last reference goes: a state may be most of the memory.
        self._executor = tff.framework.RemoteExecutor(self._stub, dispose_batch_size=1)
        with self._translated():
            self._executor.set_cardinalities({tff.CLIENTS: 0})
        self._computations: dict[int, tuple[tff.Computation, Any]] = {}
        self._lock = threading.Lock()

    def close(self) -> None:
        """Forgets every value, here and in the worker."""
        self._open = False
        self._computations.clear()
        self._executor.close()
        self._channel.close()

    def create(self, value: object, type_spec: tff.Type) -> Any:
        """Returns a value of the worker, sent there."""
        return self._run(self._executor.create_value(value, type_spec))

    def struct(self, elements: tff.structure.Struct) -> Any:
        """Returns the structure of values that the worker has already."""
        return self._run(self._executor.create_struct(elements))

    def select(self, source: Any, index: int) -> Any:
        """Returns an element of a structure of the worker."""
        return self._run(self._executor.create_selection(source, index))

    def call(self, computation: tff.Computation, argument: Any = None) -> Any:
        """Returns the result of an unplaced computation, which the worker may still be working on."""
        with self._lock:
            if id(computation) not in self._computations:
                sent = self.create(computation, computation.type_signature)
                self._computations[id(computation)] = computation, sent
            sent = self._computations[id(computation)][1]
        return self._run(self._executor.create_call(sent, argument))

    def read(self, value: Any) -> Any:
        """Returns a value, brought here: arrays in `tff.structure.Struct`s. Waits until it is there."""
        return self._run(value.compute())

    def run_placed(self, computation: tff.Computation, argument: object, cardinality: int) -> Any:
        """Returns the result of a computation with placements, argument and result sent over the wire."""
        executor = tff.framework.RemoteExecutor(self._stub, dispose_batch_size=1)
        try:
            with self._translated():
                executor.set_cardinalities({tff.CLIENTS: cardinality})
            function = self._run(executor.create_value(computation, computation.type_signature))
            sent = None
            if computation.type_signature.parameter is not None:
                sent = self._run(executor.create_value(argument, computation.type_signature.parameter))
            return self._run(self._run(executor.create_call(function, sent)).compute())
        finally:
            executor.close()

    def _run(self, coroutine: Coroutine[Any, Any, _T]) -> _T:
        # TFF's remote executor blocks in its coroutines, and never waits: no event loop is needed,
        # and there may be one of the caller's in this thread already.
        with contextlib.closing(coroutine), self._translated():
            try:
                coroutine.send(None)
            except StopIteration as end:
                return end.value
        raise AssertionError("A coroutine of TFF's remote executor waited, which it never does in TFF 0.87.")

    @contextlib.contextmanager
    def _translated(self) -> Iterator[None]:
        if not self._open:
            raise RuntimeError(
                "The resident context has ended, and the values of its worker with it: read them in its block."
            )
        try:
            with cleared():
                yield
        except grpc.RpcError as error:
            if isinstance(error, grpc.Call) and error.code() in _LOST:
                self._executor.close()
                raise WorkerLostError(self.address) from error
            raise
