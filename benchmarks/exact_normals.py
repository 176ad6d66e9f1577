"""Normals whose error is proved: their distribution over many draws.

python benchmarks/exact_normals.py [--draws N]

10⁹ draws, as for docs/proofs.md, take three minutes.
"""

import argparse
import math
import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

# Cells of the test of the distribution: z = −8 to 8.
CELLS = 2**20
REACH = 8.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--draws", type=int, default=10**9)
    draws = parser.parse_args().draws
    import numpy as np
    import tensorflow as tf
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
