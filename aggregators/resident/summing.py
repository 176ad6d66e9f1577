"""The sum over clients in the worker: in one graph where that is possible, and client by client otherwise."""

import functools
import logging
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import tensorflow_federated as tff

from tff_mf.base import validation
from tff_mf.base.errors import InputValueError

from . import arguments, cohort_graph
from .connection import Connection
from .forms import RoundForm
from .session import MAX_MESSAGE_BYTES, state_bytes
from .worker import cores

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

    def _combined(self, form: RoundForm) -> tff.Computation | None:
        """Returns the sum over clients as one computation, or `None` if they must be called one by one."""
        try:
            run = cohort_graph.cohort(form, self._clients_at_once)
        except cohort_graph.NotInOneGraphError as reason:
            _LOG.info("Clients are called one by one: %s.", reason)
            return None
        _LOG.info("Clients of a round are one computation, %d of them at a time.", self._clients_at_once)
        return run

    def sum(self, worker: Connection, form: RoundForm, sent: Any, clients: Sequence[tff.structure.Struct]) -> Any:
        """Returns the worker's sum over clients; the worker may still be computing it."""
        run = self._cohort(form) if len(clients) >= _FEWEST else None
        if run is None:
            return _one_by_one(worker, form, sent, clients)
        total, zero, kept = worker.call(form.zero), form.zero.type_signature.result, 0
        copied = state_bytes(zero) < MAX_MESSAGE_BYTES
        for part in _calls(clients, form.client_type):
            size = sum(len(leaf) for client in part for leaf in client)
            if copied and kept and kept + size > _KEPT_BYTES:
                total, kept = worker.create(worker.read(total), zero), 0
            kept += size
            matrix = np.empty((len(part), len(part[0])), object)
            matrix[:] = part
            data = worker.create(matrix, run.type_signature.parameter[1])
            total = worker.call(run, worker.pack(total, data, sent))
        return total


def _calls(clients: Sequence[tff.structure.Struct], client_type: tff.Type) -> Iterator[list[list[bytes]]]:
    """Yields the clients' data, for one call at a time: at most `_CALL_BYTES`, or one client."""
    part, size, most = [], 0, _FIRST_CALL
    before: Any = None
    encoded: list[bytes] = []
    for client in clients:
        # A check may repeat one client hundreds of times in a round.
        if before is None or any(new is not old for new, old in zip(client, before, strict=True)):
            before, encoded = client, arguments.encoded_client(client, client_type)
        own = sum(map(len, encoded))
        if part and (len(part) == most or size + own > _CALL_BYTES):
            yield part
            part, size, most = [], 0, 2 * most
        part.append(encoded)
        size += own
    if part:
        yield part


def _one_by_one(worker: Connection, form: RoundForm, sent: Any, clients: Sequence[tff.structure.Struct]) -> Any:
    """Returns the worker's sum over clients. Calls return at once, so that clients run concurrently, some at a time."""
    total, zero = worker.call(form.zero), form.zero.type_signature.result
    copied = state_bytes(zero) < MAX_MESSAGE_BYTES
    for number, client in enumerate(clients):
        if copied and number and number % _CLIENTS_BETWEEN_COPIES == 0:
            # A value keeps what it was computed from in the worker: without copies, the updates of all clients.
            total = worker.create(worker.read(total), zero)
        own = worker.create(arguments.materialized(client, form.client_type), form.client_type)
        returned = worker.call(form.work, worker.pack(own, sent))
        total = worker.call(form.accumulate, worker.pack(total, worker.select(returned, 0)))
    return total
