"""Normals whose error is proved: their speed, and their distribution over many draws.

python benchmarks/exact_normals.py [--dimension D] [--threads T] [--turns N] [--draws N]

Times are ratios to TensorFlow's float32 draw of as many normals, in turns within one run. `--draws` is the number of
draws of a Kolmogorov-Smirnov test, 10⁹ for the figure in docs/proofs/floating-point.md (three minutes).
"""

import argparse
import math
import os
import statistics
import time
from collections.abc import Callable

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

STACKOVERFLOW_LSTM = 4_050_748
# Cells of the test of the distribution: z = −8 to 8.
CELLS = 2**20
REACH = 8.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dimension", type=int, default=STACKOVERFLOW_LSTM)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--turns", type=int, default=30)
    parser.add_argument("--draws", type=int, default=0)
    arguments = parser.parse_args()
    import tensorflow as tf

    tf.config.threading.set_intra_op_parallelism_threads(arguments.threads)
    tf.config.threading.set_inter_op_parallelism_threads(arguments.threads)
    if arguments.draws:
        _distribution(tf, arguments.draws)
    else:
        _throughput(tf, arguments.dimension, arguments.turns)


def _throughput(tf: object, dimension: int, turns: int) -> None:
    from tff_mf.noise.tensorflow import exact_normal

    def drawn(draw: Callable[[object], object]) -> Callable[[int], object]:
        graph = tf.function(draw, autograph=False)
        return lambda turn: graph(tf.constant([turn, 7], tf.int64)).numpy()

    draws = {
        "float32": drawn(lambda key: tf.random.stateless_normal([dimension], key, alg="philox")),
        "float64": drawn(lambda key: tf.random.stateless_normal([dimension], key, dtype=tf.float64, alg="philox")),
        "exact": drawn(lambda key: exact_normal(key, dimension)),
    }
    wall = {name: [] for name in draws}
    cpu = {name: [] for name in draws}
    for turn in range(turns + 2):
        for name, draw in draws.items():
            began, began_cpu = time.perf_counter(), time.process_time()
            draw(turn)
            if turn >= 2:
                wall[name].append(time.perf_counter() - began)
                cpu[name].append(time.process_time() - began_cpu)
    print(f"{'':8} {'wall ms':>8} {'ratio':>6} {'least':>6} {'CPU ms':>8} {'ratio':>6}")
    for name in draws:
        one, two = statistics.median(wall[name]), statistics.median(cpu[name])
        ratios = one / statistics.median(wall["float32"]), min(wall[name]) / min(wall["float32"])
        ratio = two / statistics.median(cpu["float32"])
        print(f"{name:8} {1e3 * one:8.1f} {ratios[0]:6.2f} {ratios[1]:6.2f} {1e3 * two:8.1f} {ratio:6.2f}")


def _distribution(tf: object, draws: int) -> None:
    import numpy as np
    from scipy import special, stats

    from tff_mf.noise.tensorflow import exact_normal

    size = 2**22
    graph = tf.function(lambda key: exact_normal(key, size), autograph=False)
    edges = np.linspace(-REACH, REACH, CELLS + 1)
    counts = np.zeros(CELLS + 2, np.int64)
    seconds = int.from_bytes(os.urandom(6), "little")
    squares = fourth = 0.0
    rounds = -(-draws // size)
    for index in range(rounds):
        z = graph(tf.constant([seconds, index], tf.int64)).numpy()
        squares += float(np.sum(z * z))
        fourth += float(np.sum(z**4))
        place = np.clip(np.floor((z + REACH) * (CELLS / (2 * REACH))).astype(np.int64) + 1, 0, CELLS + 1)
        counts += np.bincount(place, minlength=CELLS + 2)
    total = rounds * size
    # At the edges of 2²⁰ cells; between them the statistic can exceed this by no more than one cell's share.
    distance = np.max(np.abs(np.cumsum(counts)[: CELLS + 1] / total - special.ndtr(edges)))
    print(f"{total:,} draws, keys [{seconds}, 0…]")
    scaled = distance * math.sqrt(total)
    print(f"Kolmogorov-Smirnov: √n·D = {scaled:.3f}, p = {stats.kstwobign.sf(scaled):.3f}")
    # Cells of 1/16 standard deviation.
    coarse = counts[1:-1].reshape(256, -1).sum(axis=1)
    expected = np.diff(special.ndtr(edges[:: CELLS // 256])) * total
    kept = expected > 20
    chi = float(np.sum((coarse - expected)[kept] ** 2 / expected[kept]))
    print(f"χ² of {kept.sum()} cells: {chi:.1f}, p = {stats.chi2.sf(chi, int(kept.sum())):.3f}")
    print(f"mean z² − 1 in standard errors: {(squares / total - 1) / math.sqrt(2 / total):+.2f}")
    print(f"mean z⁴ − 3 in standard errors: {(fourth / total - 3) / math.sqrt(96 / total):+.2f}")


if __name__ == "__main__":
    main()
