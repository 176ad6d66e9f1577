"""Time of a whole training round on a grid of integers, relative to the same round in floating point.

python benchmarks/grid_round.py [--clients N] [--rounds N]

The LSTM of the papers with a BLT of 4 buffers, clients of `pydoc`, in a resident context. The rounds take turns, so
that the load of the machine affects both; processor seconds are those of TFF's worker, which other programs affect
less.
"""

import argparse
import os
import statistics
import time
from collections.abc import Callable

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

from _common import header, row, worker
from _lstm import CLIENTS, Lstm
from _server_rounds import stepping

import tff_mf
from tff_mf import aggregators

FLOATS, GRID = "in floating point", "on a grid"


def aggregator(grid: str | None, clients: int) -> aggregators.MFAggregationFactory:
    return aggregators.build_mf_aggregator(
        tff_mf.BLT.production("b400"), clip_norm=1.0, noise_multiplier=0.1, clients_per_round=clients, grid=grid
    )


def processor_seconds() -> float:
    """Returns the processor time of this process and of TFF's worker."""
    times = worker().cpu_times()
    return time.process_time() + times.user + times.system


def measured(step: Callable[[], object]) -> tuple[float, float]:
    """Returns the time that a step takes, and its processor time."""
    start, processor = time.perf_counter(), processor_seconds()
    step()
    return time.perf_counter() - start, processor_seconds() - processor


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, default=CLIENTS)
    parser.add_argument("--rounds", type=int, default=12)
    arguments = parser.parse_args()
    lstm = Lstm(arguments.clients)
    with aggregators.resident_context(max_concurrent_computation_calls=os.cpu_count() or 1):
        steps = {
            name: stepping(lstm.process(aggregator(grid, arguments.clients)), lstm.cohort)
            for name, grid in ((FLOATS, None), (GRID, "auto"))
        }
        for step in 2 * list(steps.values()):
            step()
        turns = [{name: measured(step) for name, step in steps.items()} for _ in range(arguments.rounds)]
    header(f"round of {arguments.clients} clients, {lstm.task.parameters:,} parameters", "grid over floats")
    for index, name in enumerate(("time", "processor time")):
        ratios = [turn[GRID][index] / turn[FLOATS][index] for turn in turns]
        median = statistics.median(turn[GRID][index] for turn in turns)
        spread = f"{min(ratios):.2f} to {max(ratios):.2f}, {median:.2f} s"
        row(name, f"{statistics.median(ratios):.3f} ({spread})", "≤ 1.15")


if __name__ == "__main__":
    main()
