"""Time and memory of one round of noise, relative to one draw of as many normals in the same run.

python benchmarks/noise.py [--dimension D] [--only NAME]

Rounds and draws take turns, so that the load of the machine affects both. Each row of the table runs in a separate
process, so that its memory can be measured.
"""

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import time
from collections.abc import Callable

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

STACKOVERFLOW_LSTM = 4_050_748

# Rows of the table: the number of timed rounds, a whole period if the cost differs between rounds; and the share of the
# dimension for which the integers of a grid are measured, smaller where there are many rows, or 0.
ROWS = {
    "identity": (16, 1.0),
    "blt, 1 buffer": (16, 0.0),
    "blt, 4 buffers": (16, 1.0),
    "tree online, 2048 rounds": (64, 1.0),
    "tree full, 2048 rounds": (64, 1.0),
    "banded toeplitz, 8 bands": (16, 1.0),
    "banded toeplitz, 64 bands": (24, 0.0),
    "banded toeplitz, 342 bands": (60, 0.1),
    "structured, 4 diagonals and rank 4": (16, 0.0),
    "tfp tree": (64, 0.0),
    "tfp tree, efficient": (64, 0.0),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dimension", type=int, default=STACKOVERFLOW_LSTM)
    parser.add_argument("--only", choices=ROWS)
    parser.add_argument("--json", action="store_true", help="one row, as JSON, in this process")
    arguments = parser.parse_args()
    if arguments.json:
        print(json.dumps(_measure(arguments.only, arguments.dimension)))
        return
    print(f"dimension {arguments.dimension:,}, {os.cpu_count()} cores; draw: tf.random.stateless_normal")
    print(f"{'':36} {'mean':>7} {'median':>7} {'worst':>7} {'grid':>7}   memory / rows   draw")
    for name in [arguments.only] if arguments.only else ROWS:
        command = [sys.executable, __file__, "--json", "--only", name, "--dimension", str(arguments.dimension)]
        row = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
        ratios = " ".join(f"{row[column]:7.2f}" for column in ("mean", "median", "worst", "grid"))
        memory = f"{row['memory_rows']:7.1f} / {row['rows']:3.0f}"
        print(f"{name:36} {ratios}   {memory}   {1000 * row['draw']:6.1f} ms", flush=True)


def _measure(name: str, dimension: int) -> dict[str, float]:
    import tensorflow as tf

    import tff_mf

    rounds, share = ROWS[name]
    draw = _draw(tf, dimension)
    for small in (_step(tf, name, 16)[0], draw):
        small()
        small()
    # Peak memory from here on.
    pathlib.Path("/proc/self/clear_refs").write_text("5")
    base = _status("VmRSS")
    step, rows, warm_up = _step(tf, name, dimension)
    found = _ratios(draw, step, warm_up, rounds)
    found |= {"rows": rows, "memory_rows": (_status("VmHWM") - base) / (4 * dimension), "grid": float("nan")}
    if share:
        smaller = int(share * dimension)
        step, _, warm_up = _step(tf, name, smaller, tff_mf.Grid(bits=16, max_clients=6500))
        found["grid"] = _ratios(_draw(tf, smaller), step, warm_up, rounds)["mean"]
    return found


def _ratios(draw: Callable[[], object], step: Callable[[], object], warm_up: int, rounds: int) -> dict[str, float]:
    """Returns times of rounds, in draws."""
    for _ in range(warm_up):
        step()
        draw()
    times = [(_time(draw), _time(step)) for _ in range(rounds)]
    draws, seconds = zip(*times, strict=True)
    unit = statistics.median(draws)
    kinds = {"mean": statistics.fmean, "median": statistics.median, "worst": max}
    return {"draw": unit, **{name: kind(seconds) / unit for name, kind in kinds.items()}}


def _step(tf: object, name: str, dimension: int, grid: object = None) -> tuple[Callable[[], object], int, int]:
    """Returns a function that runs one round, the number of rows in its state, and the number of untimed rounds.

    These are at least three: TensorFlow traces the first, and also the next two, whose states have other shapes.
    """
    kind, *numbers = name.replace(",", "").split()
    if kind == "tfp":
        return (*_tfp(tf, "efficient" in numbers, dimension), 3)
    import tff_mf
    from tff_mf.noise.tensorflow import build_stream

    mechanism, warm_up = _mechanism(tff_mf, name)
    stream = build_stream(mechanism, dimension=dimension, stddev=1.0, grid=grid)
    advance = tf.function(stream.next, reduce_retracing=True)
    state = stream.init()

    def step() -> None:
        nonlocal state
        row, state = advance(state)
        # Waits for the row, without a copy of it.
        row[0].numpy()

    return step, len(state.rows), warm_up


def _mechanism(tff_mf: object, name: str) -> tuple[object, int]:
    import numpy as np

    words = name.replace(",", "").split()
    match words[0], words[1] if len(words) > 1 else "":
        case "identity", _:
            return tff_mf.Identity(), 3
        case "blt", "1":
            return tff_mf.BLT(theta=[0.9], omega=[0.4]), 3
        case "blt", _:
            return tff_mf.BLT.production("b400"), 3
        case "tree", variant:
            return tff_mf.Tree(2048, variant=variant), 64
        case "banded", _:
            return tff_mf.BandedToeplitz.square_root(int(words[2])), 3
        case _:
            n = 64
            return tff_mf.BandedPlusLowRank(diagonals=np.ones((4, n)), left=np.ones((n, 4)), right=np.ones((n, 4))), 3


def _tfp(tf: object, efficient: bool, dimension: int) -> tuple[Callable[[], object], int]:
    import tensorflow_privacy as tfp

    query = tfp.TreeResidualSumQuery.build_l2_gaussian_query(
        1.0, 1.0, tf.TensorSpec([dimension]), noise_seed=1, use_efficient=efficient
    )
    zeros = tf.zeros([dimension])
    advance = tf.function(lambda state: query.get_noised_result(zeros, state)[:2], reduce_retracing=True)
    state = query.initial_global_state()

    def step() -> None:
        nonlocal state
        row, state = advance(state)
        row[0].numpy()

    return step, 0


def _draw(tf: object, dimension: int) -> Callable[[], object]:
    draw = tf.function(lambda seed: tf.random.stateless_normal([dimension], seed, alg="philox"))
    seeds = iter(range(10**9))
    return lambda: draw(tf.constant([next(seeds), 7], tf.int64))[0].numpy()


def _time(call: Callable[[], object]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def _status(field: str) -> float:
    """Returns the bytes of memory of this process, as Linux counts them."""
    lines = pathlib.Path("/proc/self/status").read_text().splitlines()
    return 1024 * float(next(line.split()[1] for line in lines if line.startswith(field)))


if __name__ == "__main__":
    main()
