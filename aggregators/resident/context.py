"""A TFF execution context whose server values stay in the worker."""

import contextlib
import functools
from collections.abc import Iterator
from typing import Any

import tensorflow_federated as tff

from tff_mf.errors import InputValueError

from ..computations import forms
from ..workers import worker
from . import _arguments, _rounds, values
from ._cohorts import Summing
from .connection import Connection


class ResidentContext(tff.program.FederatedContext):
    """Runs computations on workers, and leaves their results there; created by `resident_context`.

    A result is the structure that the ordinary context returns, with a `ResidentValue` in place of every tensor.
    Computations take such values by reference: noise state, optimizer and model never leave the worker unless they are
    read. Small tensors, such as metrics, are read at once. `tff.program` and `tff.learning.programs` work with this
    context.

    A round is run as TFF's map-reduce form, so that the number of clients may differ from round to round. A computation
    without such a form is run as TFF's ordinary context runs it, with arguments and results sent over the wire.

    Args:
        workers: The workers. The first holds the server's values; clients are spread over all.
        summing: Sums over clients in one worker.
    """

    def __init__(self, workers: list[Connection], summing: Summing) -> None:
        self._workers = workers
        self._summing = summing
        self._take_apart = functools.lru_cache(maxsize=128)(forms.take_apart)

    def invoke(self, comp: tff.Computation, arg: object) -> Any:
        """Returns the result of a computation, once it has been computed.

        Raises:
            ValueError: If the result has anything but structures and tensors of the server.
            WorkerLostError: If the worker with the server's values has died; the values are lost.
        """
        form, signature, home = self._take_apart(comp), comp.type_signature, self._workers[0]
        if isinstance(form, forms.PlacedForm):
            result = home.run_placed(form.run, *_arguments.placed(arg, signature.parameter))
            return tff.types.type_to_py_container(result, signature.result)
        value = self._run(form, arg, signature.parameter)
        return values.references(home, value, signature.result)

    def _run(self, form: forms.ServerForm | forms.RoundForm, arg: object, parameter: tff.Type | None) -> Any:
        """Returns the first worker's value of the result."""
        home = self._workers[0]
        if isinstance(form, forms.RoundForm):
            arguments = _arguments.arguments(arg, parameter)
            server = _arguments.server_value(home, arguments, parameter, form.server_arguments)
            clients = _arguments.clients(arguments, form.client_arguments)
            return _rounds.run_round(self._workers, form, self._summing, server, clients)
        if parameter is None:
            return home.call(form.run)
        if not form.one_by_one:
            return home.call(form.run, _arguments.ingest(home, arg, parameter))
        arguments = _arguments.arguments(arg, parameter)
        return home.call(form.run, _arguments.server_value(home, arguments, parameter, range(len(arguments))))


@contextlib.contextmanager
def resident_context(
    *,
    workers: tuple[str, ...] = (),
    clients_at_once: int | None = None,
    threads: int | None = None,
    max_concurrent_computation_calls: int = -1,
) -> Iterator[ResidentContext]:
    """Runs TFF with server values that stay in the worker, and ends the worker with the block.

    Inside the block a loop of `state = process.next(state, data).state`, `tff.program` and
    `tff.learning.programs.train_model` work as with the ordinary context, and the time of a round does not depend on
    the size of the noise state. A value (metrics, a model to evaluate, a checkpoint) is sent to Python when it is read.
    See `docs/resident.md`.

    Args:
        workers: Addresses (`host:port`, or `unix:/path`) of running workers to use, the first for the server's values.
            If empty, the block starts its own worker on this machine, which listens on every interface. Workers have no
            access control and no encryption: see `docs/workers.md`.
        clients_at_once: Number of clients that each worker runs at the same time, where the clients of a round are one
            computation; as many as this machine has cores if `None`. It does not change results.
        threads: Number of threads inside an operation of the block's own worker; see `running_worker`.
        max_concurrent_computation_calls: Number of computations that the block's own worker runs at once, such as
            clients that are called one by one; unlimited if not positive.

    Yields:
        The execution context, which is TFF's default one inside the block.

    Raises:
        InputValueError: If an address or a number is invalid, or threads are given for workers that run already.
        WorkerLostError: If a worker does not answer; and, in the block, if the worker with the server's values dies.

    Example:
        >>> import numpy as np
        >>> total = tff.federated_computation(tff.federated_sum, tff.FederatedType(np.int32, tff.CLIENTS))
        >>> with resident_context():
        ...     int(total([1, 2])), int(total([1, 2, 3]))
        (3, 6)
    """
    for address in workers:
        worker.check_address(address)
    if workers and threads is not None:
        raise InputValueError(
            f"threads={threads} is for the block's own worker: pass it where {workers[0]} is started."
        )
    summing = Summing(clients_at_once)
    with contextlib.ExitStack() as ends:
        stack = tff.framework.get_context_stack()
        ends.callback(stack.set_default_context, stack.current)
        if not workers:
            own = worker.running_worker(
                max_concurrent_computation_calls=max_concurrent_computation_calls, threads=threads
            )
            workers = (ends.enter_context(own).address,)
        connections = [Connection(address) for address in workers]
        for connection in connections:
            ends.callback(connection.close)
        context = ResidentContext(connections, summing)
        stack.set_default_context(context)
        yield context
