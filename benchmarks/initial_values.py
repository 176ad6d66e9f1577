"""Time of a round of the papers' LSTM with and without initial values that the clients' work overwrites.

python benchmarks/initial_values.py [--clients N] [--rounds N]

Clients of `pydoc`, in a resident context. Both processes are the same, and take turns round by round, so that the load
of the machine affects both; their models are compared after the last round.
"""

import argparse
import os
import statistics
import time
import unittest.mock

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np
from _common import header, row
from _lstm import CLIENTS, Lstm

from tff_mf import aggregators
from tff_mf.aggregators.resident import graphs


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, default=CLIENTS)
    parser.add_argument("--rounds", type=int, default=6)
    arguments = parser.parse_args()
    lstm = Lstm(arguments.clients)
    computed = unittest.mock.patch.object(graphs, "without_overwritten", lambda computation: computation)
    seconds: dict[bool, list[float]] = {True: [], False: []}
    with aggregators.resident_context(max_concurrent_computation_calls=os.cpu_count() or 1):
        processes = {spared: lstm.process(None) for spared in seconds}
        states = {
            spared: process.set_model_weights(process.initialize(), lstm.task.initial_weights)
            for spared, process in processes.items()
        }
        for number in range(arguments.rounds + 1):
            for spared, process in processes.items():
                started = time.perf_counter()
                if spared:
                    states[spared] = process.next(states[spared], lstm.cohort).state
                else:
                    with computed:
                        states[spared] = process.next(states[spared], lstm.cohort).state
                if number:
                    # In the first round, the computations are taken apart and traced.
                    seconds[spared].append(time.perf_counter() - started)
        models = [
            [np.asarray(part) for part in processes[spared].get_model_weights(states[spared]).trainable]
            for spared in seconds
        ]
    equal = all(np.array_equal(one, other) for one, other in zip(*models, strict=True))
    header(f"round of {arguments.clients} clients", "seconds, median")
    for spared, found in seconds.items():
        row("without them" if spared else "with initial values", f"{statistics.median(found):.2f}", "")
    ratio = statistics.median(one / other for one, other in zip(seconds[True], seconds[False], strict=True))
    row("ratio", f"{ratio:.3f}; models equal to the bit: {equal}", "")


if __name__ == "__main__":
    main()
