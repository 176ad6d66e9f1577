"""A TFF context whose state stays in the worker, from one round to the next."""

import contextlib
import functools
import logging
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import tensorflow_federated as tff

from tff_mf.base import validation
from tff_mf.base.errors import InputValueError

from . import cohort_graph, forms, values
from .connection import Connection
from .session import MAX_MESSAGE_BYTES, state_bytes
from .worker import cores, running_worker

_LOG = logging.getLogger(__name__)

# Each keeps several updates in the worker, while a copy of the sum costs as much as two messages of a model.
_CLIENTS_BETWEEN_COPIES = 16
# For fewer clients, building the graph is not worth the time.
_FEWEST = 4
# The first call has few clients, so that the worker begins while the data of others are prepared; each further call has
# twice as many, so that a large cohort takes few calls.
_FIRST_CALL = 8
_CALL_BYTES = 64e6
# A value keeps what it was computed from in the worker.
_KEPT_BYTES = 256e6
_MOST_AT_ONCE = 1024


class Summing:
    """Sums over clients, and the computations for them; `clients_at_once` is as for `resident_context`."""

    def __init__(self, clients_at_once: int | None = None) -> None:
        if clients_at_once is None:
            clients_at_once = cores()
        if validation.whole("clients_at_once", clients_at_once, at_least=1) > _MOST_AT_ONCE:
            raise InputValueError(f"clients_at_once={clients_at_once} must be at most {_MOST_AT_ONCE:,}.")
        self._clients_at_once = clients_at_once
        self._cohort = functools.lru_cache(maxsize=128)(self._combined)

    def _combined(self, form: forms.RoundForm) -> tff.Computation | None:
        """Returns the sum over clients as one computation, or `None` if they must be called one by one."""
        try:
            run = cohort_graph.cohort(form, self._clients_at_once)
        except cohort_graph.NotInOneGraphError as reason:
            _LOG.info("Clients are called one by one: %s.", reason)
            return None
        _LOG.info("Clients of a round are one computation, %d of them at a time.", self._clients_at_once)
        return run

    def sum(self, worker: Connection, form: forms.RoundForm, sent: Any, clients: Sequence[tff.structure.Struct]) -> Any:
        """Returns the worker's sum over clients; the worker may still be computing it."""
        run = self._cohort(form) if len(clients) >= _FEWEST else None
        if run is None:
            return _one_by_one(worker, form, sent, clients)
        total, zero, held = worker.call(form.zero), form.zero.type_signature.result, 0
        copied = state_bytes(zero) < MAX_MESSAGE_BYTES
        for batch in _calls(clients, form.client_type):
            size = sum(len(leaf) for client in batch for leaf in client)
            if copied and held and held + size > _KEPT_BYTES:
                total, held = worker.create(worker.read(total), zero), 0
            held += size
            matrix = np.empty((len(batch), len(batch[0])), object)
            matrix[:] = batch
            data = worker.create(matrix, run.type_signature.parameter[1])
            total = worker.call(run, worker.pack(total, data, sent))
        return total


def _calls(clients: Sequence[tff.structure.Struct], client_type: tff.Type) -> Iterator[list[list[bytes]]]:
    """Yields the clients' data, for one call at a time: at most `_CALL_BYTES`, or one client."""
    batch, size, most = [], 0, _FIRST_CALL
    before: Any = None
    encoded: list[bytes] = []
    for client in clients:
        # A check may repeat one client hundreds of times in a round.
        if before is None or any(new is not old for new, old in zip(client, before, strict=True)):
            before, encoded = client, values.encoded_client(client, client_type)
        own = sum(map(len, encoded))
        if batch and (len(batch) == most or size + own > _CALL_BYTES):
            yield batch
            batch, size, most = [], 0, 2 * most
        batch.append(encoded)
        size += own
    if batch:
        yield batch


def _one_by_one(worker: Connection, form: forms.RoundForm, sent: Any, clients: Sequence[tff.structure.Struct]) -> Any:
    """Returns the worker's sum over clients. Calls return at once, so that clients run concurrently, some at a time."""
    total, zero = worker.call(form.zero), form.zero.type_signature.result
    copied = state_bytes(zero) < MAX_MESSAGE_BYTES
    for number, client in enumerate(clients):
        if copied and number and number % _CLIENTS_BETWEEN_COPIES == 0:
            # A value keeps what it was computed from in the worker: without copies, the updates of all clients.
            total = worker.create(worker.read(total), zero)
        own = worker.create(values.materialized(client, form.client_type), form.client_type)
        returned = worker.call(form.work, worker.pack(own, sent))
        total = worker.call(form.accumulate, worker.pack(total, worker.select(returned, 0)))
    return total


class _Same:
    """A computation that is compared by identity: TFF's own hash of it serializes its graphs in each call."""

    def __init__(self, computation: tff.Computation) -> None:
        self.computation = computation

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and other.computation is self.computation

    def __hash__(self) -> int:
        return id(self.computation)


class ResidentContext(tff.program.FederatedContext):
    """Runs computations in a worker, and leaves their results there; created by `resident_context`.

    A result is the structure that the ordinary context returns, with a `ResidentValue` in place of every large tensor.
    Computations take such values by reference: noise state, optimizer and model never leave the worker unless they are
    read. Small tensors, such as metrics, are arrays. `tff.program` and `tff.learning.programs` work with this context.

    A round is run as TFF's map-reduce form, so that the number of clients may differ from round to round. A computation
    without such a form is run as TFF's ordinary context runs it, with arguments and results sent over the wire.

    Args:
        worker: The worker.
        summing: Sums over clients in it.
    """

    def __init__(self, worker: Connection, summing: Summing) -> None:
        self._worker = worker
        self._summing = summing
        take_apart = functools.lru_cache(maxsize=128)(forms.take_apart)
        self._parts = functools.lru_cache(maxsize=128)(lambda same: take_apart(same.computation))

    def invoke(self, comp: tff.Computation, arg: object) -> Any:
        """Returns the result of a computation, once it has been computed.

        Raises:
            ValueError: If the result has anything but structures and tensors of the server.
            WorkerLostError: If the worker has died; its values are lost.
        """
        form, signature = self._parts(_Same(comp)), comp.type_signature
        if isinstance(form, forms.PlacedForm):
            result = self._worker.run_placed(form.run, *values.placed(arg, signature.parameter))
            return tff.types.type_to_py_container(result, signature.result)
        value = self._run(form, arg, signature.parameter)
        return values.references(self._worker, value, signature.result)

    def _run(self, form: forms.ServerForm | forms.RoundForm, arg: object, parameter: tff.Type | None) -> Any:
        worker = self._worker
        if isinstance(form, forms.RoundForm):
            arguments = values.arguments(arg, parameter)
            server = values.server_value(worker, arguments, parameter, form.server_arguments)
            sent = worker.call(form.prepare, server)
            total = self._summing.sum(worker, form, sent, values.clients(arguments, form.client_arguments))
            # The three empty places belong to secure sums, which TFF's worker cannot compute.
            aggregated = worker.pack(worker.call(form.report, total), *[worker.pack()] * 3)
            return worker.select(worker.call(form.update, worker.pack(server, aggregated)), 1)
        if parameter is None:
            return worker.call(form.run)
        if not form.one_by_one:
            return worker.call(form.run, values.ingest(worker, arg, parameter))
        arguments = values.arguments(arg, parameter)
        return worker.call(form.run, values.server_value(worker, arguments, parameter, range(len(arguments))))


@contextlib.contextmanager
def resident_context(*, clients_at_once: int | None = None, threads: int | None = None) -> Iterator[ResidentContext]:
    """Runs TFF with server values that stay in a worker, which ends with the block.

    Inside the block a loop of `state = process.next(state, data).state`, `tff.program` and
    `tff.learning.programs.train_model` work as with the ordinary context, and the time of a round does not depend on
    the size of the noise state. A value (metrics, a model to evaluate, a checkpoint) is sent to Python when it is read.
    See `docs/swap-in-tff.md`, also for the worker's port, which has no access control and no encryption.

    Args:
        clients_at_once: Number of clients that run at the same time, where the clients of a round are one computation;
            as many as this machine has cores if `None`. It does not change results.
        threads: Number of threads inside an operation of TensorFlow, such as a matrix product; as many as the machine
            has cores if `None`. Sums inside operations may be added in another order, and so be rounded in another way.

    Yields:
        The execution context, which is TFF's default one inside the block.

    Raises:
        InputValueError: If a number is out of range.
        WorkerLostError: If the worker does not answer, or dies in the block.

    Example:
        >>> import numpy as np
        >>> total = tff.federated_computation(tff.federated_sum, tff.FederatedType(np.int32, tff.CLIENTS))
        >>> with resident_context():
        ...     int(total([1, 2])), int(total([1, 2, 3]))
        (3, 6)
    """
    stack = tff.framework.get_context_stack()
    before = stack.current
    with worker_context(clients_at_once=clients_at_once, threads=threads) as context:
        stack.set_default_context(context)
        try:
            yield context
        finally:
            stack.set_default_context(before)


@contextlib.contextmanager
def worker_context(*, clients_at_once: int | None = None, threads: int | None = None) -> Iterator[ResidentContext]:
    """Yields a context like that of `resident_context`, and leaves TFF's default one as it is."""
    summing = Summing(clients_at_once)
    with running_worker(threads=threads) as address, contextlib.closing(Connection(address)) as worker:
        yield ResidentContext(worker, summing)
