"""Time and memory of one round of noise, relative to one draw of as many normals in the same run.

python benchmarks/noise.py [--dimension D] [--only NAME] [--sweep --plot FILE]

Each row of the table runs in a separate process, so that its memory can be measured.
"""

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

STACKOVERFLOW_LSTM = 4_050_748

# Rows of the table with the number of timed rounds: a whole period, if the cost differs between rounds.
ROWS = {
    "identity": 16,
    "blt, 1 buffer": 16,
    "blt, 4 buffers": 16,
    "tree online, 2048 rounds": 64,
    "tree full, 2048 rounds": 64,
    "banded toeplitz, 8 bands": 16,
    "banded toeplitz, 64 bands": 24,
    "banded toeplitz, 342 bands": 60,
    "structured, 4 diagonals and rank 4": 16,
    "tfp tree": 64,
    "tfp tree, efficient": 64,
}
BANDS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
DIMENSIONS = (10_000, 100_000, 1_000_000, 10_000_000)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dimension", type=int, default=STACKOVERFLOW_LSTM)
    parser.add_argument("--only", choices=ROWS)
    parser.add_argument("--json", action="store_true", help="one row, as JSON, in this process")
    parser.add_argument("--sweep", action="store_true", help="only time against bands and against dimension")
    parser.add_argument("--plot", metavar="FILE")
    arguments = parser.parse_args()
    if arguments.json:
        print(json.dumps(_measure(arguments.only, arguments.dimension)))
        return
    if arguments.sweep:
        _sweep(arguments.plot)
        return
    print(f"dimension {arguments.dimension:,}, {os.cpu_count()} cores; draw: tf.random.stateless_normal")
    print(f"{'':36} {'mean':>7} {'median':>7} {'worst':>7}   memory / rows   draw")
    for name in [arguments.only] if arguments.only else ROWS:
        _print(name, _in_a_process(name, arguments.dimension))


def _in_a_process(name: str, dimension: int) -> dict[str, float]:
    command = [sys.executable, __file__, "--json", "--only", name, "--dimension", str(dimension)]
    return json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def _print(name: str, row: dict[str, float]) -> None:
    memory = f"{row['memory_rows']:7.1f} / {row['rows']:3.0f}"
    ratios = f"{row['mean']:7.2f} {row['median']:7.2f} {row['worst']:7.2f}"
    print(f"{name:36} {ratios}   {memory}   {1000 * row['draw']:6.1f} ms", flush=True)


def _measure(name: str, dimension: int) -> dict[str, float]:
    """Returns times of rounds and draws, which take turns, so that the load of the machine affects both."""
    import tensorflow as tf

    draw = _draw(tf, dimension)
    for small in (_step(tf, name, 16)[0], draw):
        small()
        small()
    _forget_peak()
    base = _status("VmRSS")
    step, rows, warm_up = _step(tf, name, dimension)
    for _ in range(warm_up):
        step()
    seconds: list[float] = []
    draws: list[float] = []
    for _ in range(ROWS[name]):
        draws.append(_time(draw))
        seconds.append(_time(step))
    unit = statistics.median(draws)
    return {
        "mean": statistics.fmean(seconds) / unit,
        "median": statistics.median(seconds) / unit,
        "worst": max(seconds) / unit,
        "memory_rows": (_status("VmHWM") - base) / (4 * dimension),
        "rows": rows,
        "draw": unit,
    }


def _step(tf: object, name: str, dimension: int) -> tuple[Callable[[], object], int, int]:
    """Returns a function that runs one round, the number of rows in its state, and the number of untimed rounds.

    These are at least three: TensorFlow traces the first, and also the next two, whose states have other shapes.
    """
    kind, *numbers = name.replace(",", "").split()
    if kind == "tfp":
        return (*_tfp(tf, "efficient" in numbers, dimension), 3)
    import tff_mf
    from tff_mf.noise.tensorflow import build_stream

    mechanism, warm_up = _mechanism(tff_mf, name)
    stream = build_stream(mechanism, dimension=dimension, stddev=1.0)
    advance = tf.function(stream.next, reduce_retracing=True)
    state = stream.init()

    def step() -> None:
        nonlocal state
        row, state = advance(state)
        row.numpy()

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
        row.numpy()

    return step, 0


def _draw(tf: object, dimension: int) -> Callable[[], object]:
    draw = tf.function(lambda seed: tf.random.stateless_normal([dimension], seed, alg="philox"))
    seeds = iter(range(10**9))
    return lambda: draw(tf.constant([next(seeds), 7], tf.int64)).numpy()


def _time(call: Callable[[], object]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def _status(field: str) -> float:
    """Returns the bytes of memory of this process, as Linux counts them."""
    lines = pathlib.Path("/proc/self/status").read_text().splitlines()
    return 1024 * float(next(line.split()[1] for line in lines if line.startswith(field)))


def _forget_peak() -> None:
    pathlib.Path("/proc/self/clear_refs").write_text("5")


def _sweep(plot: str | None) -> None:
    import numpy as np
    import tensorflow as tf

    rows = tuple(tf.random.stateless_normal([2**22], [1, index]) for index in range(2))
    add = tf.function(lambda one, other: one + other)
    add(*rows)
    bytes_a_second = 3 * 4 * 2**22 / min(_time(lambda: add(*rows).numpy()) for _ in range(20))
    print(f"\nmemory: {bytes_a_second / 1e9:.1f} GB/s, by the sum of two rows")
    against_bands = list(_against(1_000_000, [(f"banded toeplitz, {bands} bands", bands) for bands in BANDS]))
    fixed = ("identity", "blt, 4 buffers", "tree full, 2048 rounds", "banded toeplitz, 64 bands")
    against_dimension = {name: [_once(name, dimension) for dimension in DIMENSIONS] for name in fixed}
    for bands, seconds in against_bands:
        print(f"1,000,000 parameters, {bands:5} bands: {1000 * seconds:8.2f} ms a round")
    for name, seconds in against_dimension.items():
        print(f"{name}: " + ", ".join(f"{d:,}: {1000 * s:.2f} ms" for d, s in zip(DIMENSIONS, seconds, strict=True)))
    if plot is None:
        return
    from tff_mf.experiments import plots

    with plots.picture(plot, size=(plots.PAGE, 3.0), columns=2) as (_, panels):
        left, right = panels[0]
        memory = {"color": "black", "linestyle": ":", "linewidth": 0.9}
        bands, seconds = zip(*against_bands, strict=True)
        (style,) = plots.styles(["banded-toeplitz"]).values()
        left.loglog(bands, 1000 * np.array(seconds), label="banded Toeplitz, mean of a round", **style)
        left.loglog(bands, 4e9 * np.array(bands) / bytes_a_second, label="reading all rows once", **memory)
        left.set(xlabel="bands, for 1,000,000 parameters", ylabel="milliseconds a round")
        for name, style in plots.styles(fixed).items():
            right.loglog(DIMENSIONS, 1000 * np.array(against_dimension[name]), label=name, **style)
        right.loglog(DIMENSIONS, 4e3 * np.array(DIMENSIONS) / bytes_a_second, label="reading one row", **memory)
        right.set(xlabel="parameters", ylabel="milliseconds a round")
        for axes in (left, right):
            axes.legend()


def _against(dimension: int, cases: list[tuple[str, int]]) -> Iterator[tuple[int, float]]:
    for name, number in cases:
        yield number, _once(name, dimension)


def _once(name: str, dimension: int) -> float:
    """Returns the mean seconds of a round over a whole period."""
    import tensorflow as tf

    step, rows, warm_up = _step(tf, name, dimension)
    for _ in range(warm_up):
        step()
    rounds = max(32, rows // 8)
    return _time(lambda: [step() for _ in range(rounds)]) / rounds


if __name__ == "__main__":
    main()
