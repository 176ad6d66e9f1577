"""Time of one round of noise in NumPy, relative to one draw of as many float32 normals by NumPy's Generator.

python benchmarks/numpy_streams.py [--dimension D] [--only NAME]

Rounds and draws take turns in one process. Mean, median and worst are of the rounds, relative to the median draw;
"least" is the ratio of the least times, which other processes disturb least; "CPU" is the ratio of the processor's
times. The draw is that of `numpy.random.default_rng`.
"""

import argparse
import os
import statistics
import time
from collections.abc import Callable

import numpy as np

import tff_mf
from tff_mf.noise import numpy as streams

STACKOVERFLOW_LSTM = 4_050_748
GRID = tff_mf.Grid(bits=16, max_clients=100)

# Mechanism, arguments of its stream, rounds that are timed, and the round that they begin with.
ROWS = {
    "identity": (lambda: tff_mf.Identity(), {}, 16, 2),
    "blt, 1 buffer": (lambda: tff_mf.BLT(theta=[0.9], omega=[0.4]), {}, 16, 2),
    "blt, 4 buffers": (lambda: tff_mf.BLT.production("b400"), {}, 16, 2),
    "tree online, 2048 rounds": (lambda: tff_mf.Tree(2048, variant="online"), {}, 32, 32),
    "tree full, 2048 rounds": (lambda: tff_mf.Tree(2048, variant="full"), {}, 32, 32),
    "banded toeplitz, 64 bands": (lambda: tff_mf.BandedToeplitz.square_root(64), {}, 12, 120),
    "banded toeplitz, 342 bands": (lambda: tff_mf.BandedToeplitz.square_root(342), {}, 30, 360),
    "identity, aes": (lambda: tff_mf.Identity(), {"generator": "aes"}, 8, 2),
    "blt, 4 buffers, aes": (lambda: tff_mf.BLT.production("b400"), {"generator": "aes"}, 8, 2),
    "blt, 4 buffers, grid": (lambda: tff_mf.BLT.production("b400"), {"grid": GRID}, 4, 2),
    "blt, 4 buffers, grid, aes": (lambda: tff_mf.BLT.production("b400"), {"grid": GRID, "generator": "aes"}, 8, 2),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dimension", type=int, default=STACKOVERFLOW_LSTM)
    parser.add_argument("--only", choices=ROWS, action="append")
    arguments = parser.parse_args()
    print(f"dimension {arguments.dimension:,}, {os.cpu_count()} cores, NumPy {np.__version__}; draw: default_rng")
    print(f"{'':36} {'mean':>7} {'median':>7} {'worst':>7} {'least':>7} {'CPU':>7}   draw")
    for name in arguments.only or ROWS:
        _report(name, arguments.dimension)


def _report(name: str, dimension: int) -> None:
    make, options, rounds, begin = ROWS[name]
    stream = streams.build_stream(make(), dimension=dimension, stddev=1.0, **options)
    generator = np.random.default_rng()
    state = _state(stream, begin)

    def step() -> None:
        nonlocal state
        _, state = stream.next(state)

    draws, steps = [], []
    for _ in range(rounds):
        draws.append(_time(lambda: generator.standard_normal(dimension, dtype=np.float32)))
        steps.append(_time(step))
    (unit, work), (seconds, cpu) = zip(*draws, strict=True), zip(*steps, strict=True)
    draw = statistics.median(unit)
    ratios = (statistics.fmean(seconds), statistics.median(seconds), max(seconds))
    print(
        f"{name:36} {' '.join(f'{each / draw:7.2f}' for each in ratios)} {min(seconds) / min(unit):7.2f} "
        f"{statistics.fmean(cpu) / statistics.fmean(work):7.2f}   {1000 * draw:6.1f} ms",
        flush=True,
    )


def _state(stream: streams.NoiseStream, rounds: int) -> streams.NoiseState:
    """Returns a state of so many rounds with rows of its own, without running them."""
    state = stream.init() | {"round": np.array(rounds), "keys": np.zeros([rounds, 2], np.int64)}
    generator = np.random.default_rng()
    rows = {name: array for name, array in state.items() if name.startswith("row_")}
    ones = generator.standard_normal(stream.dimension)
    return state | {name: (ones * 100).astype(array.dtype) for name, array in rows.items()}


def _time(call: Callable[[], object]) -> tuple[float, float]:
    """Returns the seconds, and those of the processor, that a call takes."""
    start, work = time.perf_counter(), time.process_time()
    call()
    return time.perf_counter() - start, time.process_time() - work


if __name__ == "__main__":
    main()
