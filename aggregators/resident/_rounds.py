"""Runs one round: clients on all workers, then merging of their sums and the server's part on the first."""

import concurrent.futures
import itertools
import logging
from collections.abc import Sequence
from typing import Any

import tensorflow_federated as tff

from ..computations.forms import RoundForm
from ..workers.worker import WorkerLostError
from . import _arguments
from ._cohorts import Summing
from .connection import Connection

_LOG = logging.getLogger(__name__)


def run_round(
    workers: list[Connection], form: RoundForm, summing: Summing, server: Any, clients: Sequence[object]
) -> Any:
    """Returns the result of a round, a value of the first worker.

    Of the server's state, only what clients are sent leaves the first worker, and nothing that clients return is
    released before the sum over all of them is in the first worker. If another worker dies, it is removed from
    `workers` and its clients are run again on the others; no noise has been drawn by then.

    Args:
        workers: The live workers, the first of which holds the server's values.
        form: The round.
        summing: Sums over clients in one worker.
        server: The first worker's value of the server's arguments.
        clients: Arguments of each client.

    Raises:
        WorkerLostError: If the first worker has died.
    """
    home = workers[0]
    sent = home.call(form.prepare, server)
    total, pending = home.call(form.zero), list(clients)
    while pending:
        others = workers[1:]
        shares = _split(pending, len(workers))
        summing.prepare(form, max(map(len, shares)))
        # Before the first worker is busy with its own clients.
        message = home.read(sent) if any(shares[1:]) else None
        with concurrent.futures.ThreadPoolExecutor(max(1, len(others))) as pool:
            sums = [
                pool.submit(_partial_sum, worker, form, summing, message, share)
                for worker, share in zip(others, shares[1:], strict=True)
            ]
            total = summing.sum(home, form, sent, shares[0], start=total)
        pending = []
        for worker, share, partial in zip(others, shares[1:], sums, strict=True):
            try:
                arrived = partial.result()
            except WorkerLostError:
                _LOG.warning(
                    "The worker at %s is lost; its clients of this round are run on the other workers.", worker.address
                )
                workers.remove(worker)
                worker.close()
                pending += share
                continue
            if share:
                there = home.create(arrived, form.zero.type_signature.result)
                total = home.call(form.merge, home.struct(_arguments.pair(total, there)))
    reported = home.call(form.report, total)
    # The three empty places belong to secure sums, which TFF's worker cannot compute.
    nothing = home.struct(tff.structure.Struct([]))
    aggregated = home.struct(tff.structure.Struct([(None, reported), *[(None, nothing)] * 3]))
    return home.select(home.call(form.update, home.struct(_arguments.pair(server, aggregated))), 1)


def _partial_sum(
    worker: Connection, form: RoundForm, summing: Summing, message: object, clients: Sequence[object]
) -> Any:
    if not clients:
        return None
    sent = worker.create(message, form.prepare.type_signature.result)
    return worker.read(summing.sum(worker, form, sent, clients, start=worker.call(form.zero)))


def _split(clients: Sequence[object], parts: int) -> list[Sequence[object]]:
    bounds = [len(clients) * part // parts for part in range(parts + 1)]
    return [clients[start:end] for start, end in itertools.pairwise(bounds)]
