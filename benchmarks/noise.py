"""Time of one round of noise, as a ratio to one draw of as many normals in the same run.

python benchmarks/noise.py [--dimension D] [--rounds N]
"""

import argparse
import os
import statistics
import time
from collections.abc import Callable

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import tensorflow as tf

import tff_mf
from tff_mf.noise import build_stream

STACKOVERFLOW_LSTM = 4_050_748
MECHANISMS = {
    "identity": tff_mf.Identity(),
    "blt, 1 buffer": tff_mf.BLT(theta=[0.9], omega=[0.4]),
    "blt, 2 buffers": tff_mf.BLT(theta=[0.99, 0.7], omega=[0.2, 0.2]),
    "blt, 4 buffers": tff_mf.BLT.production("b400"),
}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--dimension", type=int, default=STACKOVERFLOW_LSTM)
    parser.add_argument("--rounds", type=int, default=15)
    arguments = parser.parse_args()
    steps = {"one draw of normals": _draw(arguments.dimension)}
    steps.update({name: _stream(mechanism, arguments.dimension) for name, mechanism in MECHANISMS.items()})
    seconds: dict[str, list[float]] = {name: [] for name in steps}
    # In turn, so that a change in the machine's load meets all of them.
    for _ in range(arguments.rounds):
        for name, step in steps.items():
            start = time.perf_counter()
            step()
            seconds[name].append(time.perf_counter() - start)
    base = statistics.median(seconds["one draw of normals"][2:])
    print(f"dimension {arguments.dimension}, {arguments.rounds} rounds, {os.cpu_count()} cores")
    for name, values in seconds.items():
        median = statistics.median(values[2:])
        print(f"{name:22} {1000 * median:8.1f} ms   ratio {median / base:5.2f}")


def _draw(dimension: int) -> Callable[[], object]:
    draw = tf.function(lambda seed: tf.random.stateless_normal([dimension], seed, alg="philox"))
    seeds = iter(range(10**9))
    return lambda: draw(tf.constant([next(seeds), 7], tf.int64)).numpy()


def _stream(mechanism: tff_mf.Mechanism, dimension: int) -> Callable[[], object]:
    stream = build_stream(mechanism, dimension=dimension, stddev=1.0)
    advance = tf.function(stream.next, reduce_retracing=True)
    state = stream.init()

    def step() -> None:
        nonlocal state
        row, state = advance(state)
        row.numpy()

    return step


if __name__ == "__main__":
    main()
