"""A TFF context whose state stays in the worker, from one round to the next."""

import concurrent.futures
import contextlib
import functools
import gc
import itertools
import logging
from collections.abc import Iterator, Sequence
from typing import Any

import tensorflow_federated as tff

from tff_mf.base.errors import InputValueError

from . import _arguments, forms, secure, transfers, values
from ._summing import Summing
from .clear_errors import cleared
from .connection import Connection
from .forms import RoundForm
from .workers import WorkerLostError, check_address, ending_workers, quiet_workers, running_worker

_LOG = logging.getLogger(__name__)


def run_round(
    workers: list[Connection], form: RoundForm, summing: Summing, server: Any, clients: Sequence[object]
) -> Any:
    """Returns the result of a round, a value of the first worker.

    Of the server's state, only what clients are sent leaves the first worker, and nothing that clients return is
    released before the sum over all of them is in the first worker. If another worker dies, it is removed from
    `workers` and its clients are run again on the others; no noise has been drawn by then.
    """
    home = workers[0]
    sent = home.call(form.prepare, server)
    total, pending = home.call(form.zero), list(clients)
    while pending:
        others = workers[1:]
        bounds = [len(pending) * part // len(workers) for part in range(len(workers) + 1)]
        shares = [pending[start:end] for start, end in itertools.pairwise(bounds)]
        # A graph is built in one thread, before several threads sum.
        summing.computation(form, max(map(len, shares)))
        # Before the first worker is busy with its own clients.
        message = home.read(sent) if any(shares[1:]) else None
        with concurrent.futures.ThreadPoolExecutor(max(1, len(others))) as pool:
            sums = [
                pool.submit(_partial_sum, other, form, summing, message, share)
                for other, share in zip(others, shares[1:], strict=True)
            ]
            total = summing.sum(home, form, sent, shares[0], start=total)
        pending = []
        for other, share, partial in zip(others, shares[1:], sums, strict=True):
            try:
                arrived = partial.result()
            except WorkerLostError:
                _LOG.warning(
                    "The worker at %s is lost; its clients of this round are run on the other workers.", other.address
                )
                workers.remove(other)
                other.close()
                pending += share
                continue
            if share:
                there = home.create(arrived, form.zero.type_signature.result)
                total = home.call(form.merge, home.pack(total, there))
    # The three empty places belong to secure sums, which TFF's worker cannot compute.
    aggregated = home.pack(home.call(form.report, total), *[home.pack()] * 3)
    return home.select(home.call(form.update, home.pack(server, aggregated)), 1)


def _partial_sum(
    worker: Connection, form: RoundForm, summing: Summing, message: object, clients: Sequence[object]
) -> Any:
    if not clients:
        return None
    sent = worker.create(message, form.prepare.type_signature.result)
    return worker.read(summing.sum(worker, form, sent, clients, start=worker.call(form.zero)))


@contextlib.contextmanager
def tff_session(*, max_concurrent_computation_calls: int = -1) -> Iterator[tff.framework.SyncContext]:
    """Runs TFF with a worker of its own, which ends with the block, however the block ends.

    TFF 0.87.0 starts a C++ worker that inherits standard output and is never told to stop: a pipe that reads from the
    program waits forever, and the worker's memory stays taken. A worker that TFF's own context starts outside of a
    session ends with the program. Sessions do not nest.

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
        with quiet_workers(), ending_workers():
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


class _Same:
    """A computation that is known again as the same object: TFF's own hash of it serializes its graphs in each call."""

    def __init__(self, computation: tff.Computation) -> None:
        self.computation = computation

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and other.computation is self.computation

    def __hash__(self) -> int:
        return id(self.computation)


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
        take_apart = functools.lru_cache(maxsize=128)(forms.take_apart)
        self._parts = functools.lru_cache(maxsize=128)(lambda same: take_apart(same.computation))

    def parts(self, computation: tff.Computation) -> forms.Form:
        """Returns the parts that a computation is run in, taken apart once."""
        return self._parts(_Same(computation))

    def invoke(self, comp: tff.Computation, arg: object) -> Any:
        """Returns the result of a computation, once it has been computed.

        Raises:
            ValueError: If the result has anything but structures and tensors of the server.
            WorkerLostError: If the worker with the server's values has died; the values are lost.
        """
        form, signature, home = self.parts(comp), comp.type_signature, self._workers[0]
        if isinstance(form, forms.PlacedForm):
            result = home.run_placed(form.run, *_arguments.placed(arg, signature.parameter))
            return tff.types.type_to_py_container(result, signature.result)
        value = self._run(form, arg, signature.parameter)
        return values.references(home, value, signature.result)

    def _run(self, form: forms.ServerForm | forms.RoundForm, arg: object, parameter: tff.Type | None) -> Any:
        home = self._workers[0]
        if isinstance(form, forms.RoundForm):
            arguments = _arguments.arguments(arg, parameter)
            server = _arguments.server_value(home, arguments, parameter, form.server_arguments)
            clients = _arguments.clients(arguments, form.client_arguments)
            return run_round(self._workers, form, self._summing, server, clients)
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
    See `docs/tff-programs.md`.

    Args:
        workers: Addresses (`host:port`, or `unix:/path`) of running workers to use, the first for the server's values.
            If empty, the block starts its own worker on this machine, which listens on every interface. Workers have no
            access control and no encryption: see `docs/tff-programs.md`.
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
        check_address(address)
    if workers and threads is not None:
        raise InputValueError(
            f"threads={threads} is for the block's own worker: pass it where {workers[0]} is started."
        )
    summing = Summing(clients_at_once)
    with contextlib.ExitStack() as ends:
        stack = tff.framework.get_context_stack()
        ends.callback(stack.set_default_context, stack.current)
        if not workers:
            own = running_worker(max_concurrent_computation_calls=max_concurrent_computation_calls, threads=threads)
            workers = (ends.enter_context(own).address,)
        connections = [Connection(address) for address in workers]
        for connection in connections:
            ends.callback(connection.close)
        context = ResidentContext(connections, summing)
        stack.set_default_context(context)
        yield context
