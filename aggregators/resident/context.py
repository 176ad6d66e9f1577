"""A TFF context whose state stays in the worker, from one round to the next."""

import contextlib
import functools
from collections.abc import Iterator
from typing import Any

import tensorflow_federated as tff

from . import arguments, forms, values
from .connection import Connection
from .summing import Summing
from .worker import running_worker


class _Same:
    """A computation that is known again as the same object: TFF's own hash of it serializes its graphs in each call."""

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
            result = self._worker.run_placed(form.run, *arguments.placed(arg, signature.parameter))
            return tff.types.type_to_py_container(result, signature.result)
        value = self._run(form, arg, signature.parameter)
        return values.references(self._worker, value, signature.result)

    def _run(self, form: forms.ServerForm | forms.RoundForm, arg: object, parameter: tff.Type | None) -> Any:
        worker = self._worker
        if isinstance(form, forms.RoundForm):
            given = arguments.arguments(arg, parameter)
            server = arguments.server_value(worker, given, parameter, form.server_arguments)
            sent = worker.call(form.prepare, server)
            total = self._summing.sum(worker, form, sent, arguments.clients(given, form.client_arguments))
            # The three empty places belong to secure sums, which TFF's worker cannot compute.
            aggregated = worker.pack(worker.call(form.report, total), *[worker.pack()] * 3)
            return worker.select(worker.call(form.update, worker.pack(server, aggregated)), 1)
        if parameter is None:
            return worker.call(form.run)
        if not form.one_by_one:
            return worker.call(form.run, arguments.ingest(worker, arg, parameter))
        given = arguments.arguments(arg, parameter)
        return worker.call(form.run, arguments.server_value(worker, given, parameter, range(len(given))))


@contextlib.contextmanager
def resident_context(*, clients_at_once: int | None = None, threads: int | None = None) -> Iterator[ResidentContext]:
    """Runs TFF with server values that stay in a worker, which ends with the block.

    Inside the block a loop of `state = process.next(state, data).state`, `tff.program` and
    `tff.learning.programs.train_model` work as with the ordinary context, and the time of a round does not depend on
    the size of the noise state. A value (metrics, a model to evaluate, a checkpoint) is sent to Python when it is read.
    See `docs/tff-programs.md`, also for the worker's port, which has no access control and no encryption.

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
    summing = Summing(clients_at_once)
    with contextlib.ExitStack() as ends:
        stack = tff.framework.get_context_stack()
        ends.callback(stack.set_default_context, stack.current)
        worker = Connection(ends.enter_context(running_worker(threads=threads)))
        ends.callback(worker.close)
        context = ResidentContext(worker, summing)
        stack.set_default_context(context)
        yield context
