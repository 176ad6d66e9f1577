"""The worker, reached through TFF's own executor."""

import contextlib
import threading
from collections.abc import Coroutine, Iterator
from typing import Any, TypeVar

import grpc
import tensorflow_federated as tff

from . import datasets
from .worker import WorkerLostError, clear_errors

_T = TypeVar("_T")
_MAX_MESSAGE_BYTES = 2 * 1000**3
_OPTIONS = [
    ("grpc.max_receive_message_length", _MAX_MESSAGE_BYTES),
    ("grpc.max_send_message_length", _MAX_MESSAGE_BYTES),
]
# A worker that no longer knows an executor, for example after a restart, answers with a failed precondition.
_LOST = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.FAILED_PRECONDITION, grpc.StatusCode.CANCELLED)


class _Stub(tff.framework.RemoteExecutorGrpcStub):
    def create_value(self, request: Any) -> Any:
        datasets.lighten(request.value)
        return super().create_value(request)

    def dispose(self, request: Any) -> Any:
        # Runs when a reference is collected, where no caller can catch an error; the next call raises it again.
        with contextlib.suppress(grpc.RpcError, ValueError):
            return super().dispose(request)


class _Executor(tff.framework.RemoteExecutor):
    """TFF's executor, some of whose values are read and released in other threads."""

    def __init__(self, stub: _Stub, **options: Any) -> None:
        super().__init__(stub, **options)
        # Reentrant: a reference may be collected while another one is released.
        self._releasing = threading.RLock()

    def _dispose(self, value_ref: Any, value_executor_id: Any) -> None:
        with self._releasing:
            super()._dispose(value_ref, value_executor_id)


class _UnwatchedChannel:
    """A channel whose state is not watched: the thread in which TFF's stub watches it would outlive the channel."""

    def __init__(self, channel: grpc.Channel) -> None:
        self._channel = channel

    def subscribe(self, callback: object, try_to_connect: bool = False) -> None:
        """Does nothing: a failing call says enough about the worker."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._channel, name)


class Connection:
    """Values of one running worker, without placements: the caller knows which of them are the server's."""

    def __init__(self, address: str, *, wait_seconds: float = 30.0) -> None:
        self._open, self._lost = True, False
        channel = grpc.insecure_channel(address, _OPTIONS)
        try:
            grpc.channel_ready_future(channel).result(timeout=wait_seconds)
        except grpc.FutureTimeoutError:
            raise WorkerLostError from None
        self._channel = channel
        self._stub = _Stub(_UnwatchedChannel(channel))
        # A value is released with its last reference: a state may take most of the memory.
        self._executor = _Executor(self._stub, dispose_batch_size=1)
        with self._translated():
            self._executor.set_cardinalities({tff.CLIENTS: 0})
        self._computations: dict[int, tuple[tff.Computation, Any]] = {}

    def close(self) -> None:
        """Releases every value, here and in the worker."""
        self._open = False
        self._computations.clear()
        self._executor.close()
        self._channel.close()

    def create(self, value: object, type_spec: tff.Type) -> Any:
        """Sends a value to the worker and returns the worker's value."""
        return self._run(self._executor.create_value(value, type_spec))

    def struct(self, elements: tff.structure.Struct) -> Any:
        """Returns a structure of values that are in the worker already."""
        return self._run(self._executor.create_struct(elements))

    def pack(self, *values: Any) -> Any:
        """Returns a structure of values that are in the worker already, without names."""
        return self.struct(tff.structure.Struct([(None, value) for value in values]))

    def select(self, source: Any, index: int) -> Any:
        return self._run(self._executor.create_selection(source, index))

    def call(self, computation: tff.Computation, argument: Any = None) -> Any:
        """Returns the result of an unplaced computation; the worker may still be computing it."""
        if id(computation) not in self._computations:
            self._computations[id(computation)] = computation, self.create(computation, computation.type_signature)
        _, sent = self._computations[id(computation)]
        return self._run(self._executor.create_call(sent, argument))

    def read(self, value: Any) -> Any:
        """Waits for a value and reads it from the worker: arrays in `tff.structure.Struct`s."""
        return self._run(value.compute())

    def run_placed(self, computation: tff.Computation, argument: object, cardinality: int) -> Any:
        """Returns the result of a computation with placements; argument and result are sent over the wire."""
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
        # Coroutines of TFF's remote executor block and never await anything, so that no event loop is needed; this
        # thread may already run one of the caller's.
        with contextlib.closing(coroutine), self._translated():
            try:
                coroutine.send(None)
            except StopIteration as end:
                return end.value
        raise AssertionError("A coroutine of TFF's remote executor awaited something, which none does in TFF 0.87.")

    @contextlib.contextmanager
    def _translated(self) -> Iterator[None]:
        if not self._open:
            raise RuntimeError(
                "The resident context has ended, and its worker's values are gone: read them inside its `with` block."
            )
        if self._lost:
            raise WorkerLostError
        try:
            with clear_errors():
                yield
        except grpc.RpcError as error:
            if isinstance(error, grpc.Call) and error.code() in _LOST:
                self._lost = True
                self._executor.close()
                raise WorkerLostError from error
            raise
