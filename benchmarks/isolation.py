"""Time of a round on an isolated worker, relative to that on a worker that everyone can reach.

python benchmarks/isolation.py [--rounds N] [--repetitions N]

Clients' values are sent to the worker, and the mean is read, in every round; the workers differ only in the forwarding
between two namespaces. They take turns, so that the load of the machine affects all of them.
"""

import argparse
import os
import socket
import statistics
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np
import tensorflow_federated as tff

import tff_mf
from tff_mf import aggregators

CLIENTS = 4
DIMENSIONS = (5_000, 250_000, 4_000_000)
UNTIMED = 2


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def seconds(dimension: int, address: str, rounds: int) -> float:
    """Returns the median seconds of a round."""
    process = aggregators.build_mf_aggregator(
        tff_mf.BLT.production("b400"), clip_norm=1.0, noise_multiplier=7.379, clients_per_round=CLIENTS
    ).create(tff.TensorType(np.float32, [dimension]))
    values = [np.ones(dimension, np.float32)] * CLIENTS
    found = []
    with aggregators.resident_context(workers=(address,)):
        state = process.initialize()
        for _ in range(rounds + UNTIMED):
            start = time.perf_counter()
            output = process.next(state, values)
            state, _ = output.state, np.asarray(output.result)
            found.append(time.perf_counter() - start)
    return statistics.median(found[UNTIMED:])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--repetitions", type=int, default=3)
    arguments = parser.parse_args()
    with (
        aggregators.running_worker() as public,
        aggregators.running_worker(isolated=True) as by_socket,
        aggregators.running_worker(isolated=True, port=free_port()) as by_port,
    ):
        addresses = [worker.address for worker in (public, by_socket, by_port)]
        print("| MB sent and read a round | s, public | s, isolated, Unix socket | s, isolated, port | over public |")
        print("|--:|--:|--:|--:|--:|")
        for dimension in DIMENSIONS:
            turns = [
                [seconds(dimension, address, arguments.rounds) for address in addresses]
                for _ in range(arguments.repetitions)
            ]
            plain, by_file, port = (statistics.median(column) for column in zip(*turns, strict=True))
            ratios = f"{by_file / plain:.2f}, {port / plain:.2f}"
            sent = (CLIENTS + 1) * dimension * 4 / 1e6
            print(f"| {sent:g} | {plain:.3f} | {by_file:.3f} | {port:.3f} | {ratios} |", flush=True)


if __name__ == "__main__":
    main()
