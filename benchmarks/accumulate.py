"""Cost of clipping each update again in the server's `accumulate`, as a share of a round.

python benchmarks/accumulate.py [--clients N] [--rounds N]

The LSTM of the papers, clients of `pydoc`, in a resident context. A round whose sum clips, a round with TFF's plain
sum, and adding an update with and without the clip take turns, so that the load of the machine affects all of them.
"""

import argparse
import os
import statistics
from collections.abc import Callable, Mapping, Sequence

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff
from _common import header, row, seconds_of
from _lstm import CLIENTS, Lstm, blt
from _server_rounds import stepping

from tff_mf import aggregators
from tff_mf.queries import clipping

CLIPPED, PLAIN = "round, sum that clips", "round, TFF's plain sum"
UPDATES = {"passes": 0.5, "is scaled": 2.0}


def added(shapes: Sequence[tuple[int, ...]], length: float | None) -> Callable[[], None]:
    """Returns a function that adds an update of this norm to a sum after clipping it; without clipping if `None`."""
    size = sum(int(np.prod(shape)) for shape in shapes)
    update = [tf.fill(shape, tf.constant((length or 0.5) / size**0.5, tf.float32)) for shape in shapes]
    total = [tf.zeros(shape) for shape in shapes]

    @tf.function(autograph=False)
    def accumulate(total: list[tf.Tensor], update: list[tf.Tensor]) -> list[tf.Tensor]:
        one = update if length is None else clipping.clip_again(update, tf.constant(1.0)).leaves
        return list(map(tf.add, total, one))

    return lambda: [each.numpy().shape for each in accumulate(total, update)][:0]


def shares(seconds: Mapping[str, Sequence[float]], name: str, base: str, times: int, of: str) -> str:
    found = [
        times * (one - other) / whole
        for one, other, whole in zip(seconds[name], seconds[base], seconds[of], strict=True)
    ]
    return f"{statistics.median(found):.2%} ({min(found):.2%} to {max(found):.2%})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, default=CLIENTS)
    parser.add_argument("--rounds", type=int, default=12)
    arguments = parser.parse_args()
    lstm = Lstm(arguments.clients)
    shapes = [np.shape(weight) for weight in lstm.task.initial_weights.trainable]
    with aggregators.resident_context(max_concurrent_computation_calls=os.cpu_count() or 1):
        sums = {CLIPPED: None, PLAIN: tff.aggregators.SumFactory()}
        steps = {name: stepping(lstm.process(blt(record_sum=each)), lstm.cohort) for name, each in sums.items()}
        steps |= {name: added(shapes, length) for name, length in UPDATES.items()}
        seconds = seconds_of({**steps, "is added": added(shapes, None)}, arguments.rounds, warmup=2)
    header(f"{arguments.clients} clients, {lstm.task.parameters:,} parameters", "share of a round")
    for name in UPDATES:
        milliseconds = 1000 * (statistics.median(seconds[name]) - statistics.median(seconds["is added"]))
        cost = shares(seconds, name, "is added", 1, CLIPPED)
        row(f"the clip of one update that {name}", f"{cost}, {milliseconds:.1f} ms", "≤ 5 %")
        row(f"of all, if each {name}", shares(seconds, name, "is added", arguments.clients, CLIPPED), "≤ 5 %")
    whole = shares(seconds, CLIPPED, PLAIN, 1, CLIPPED)
    row("difference of the two rounds", f"{whole}, of {statistics.median(seconds[CLIPPED]):.2f} s", "≤ 5 %")


if __name__ == "__main__":
    main()
