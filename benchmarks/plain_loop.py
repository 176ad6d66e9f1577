"""Time of a round of noise in a plain `tf.function` loop, relative to one draw of as many normals in the same run.

python benchmarks/plain_loop.py
"""

import argparse
import time

import numpy as np
import tensorflow as tf

import tff_mf
from tff_mf import queries

_QUERIES = {
    "identity": (tff_mf.Identity(), None),
    "BLT, 4 buffers": (tff_mf.BLT.production("b400"), None),
    "tree online": (tff_mf.Tree(512, variant="online"), None),
    "tree online, restarted every 8 rounds": (tff_mf.Tree(512, variant="online"), 8),
    "tree full": (tff_mf.Tree(512, variant="full"), None),
}


def _query(mechanism: tff_mf.Mechanism, restart_every: int | None, dimension: int):
    specs = tf.TensorSpec([dimension])
    query = queries.build_query(mechanism, record_specs=specs, clip_norm=1.0, noise_multiplier=1.0)
    return query if restart_every is None else queries.RestartedQuery(query, restart_every=restart_every)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dimension", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=20)
    given = parser.parse_args()
    draw = tf.function(lambda seed: tf.random.stateless_normal([given.dimension], seed, alg="philox"))
    print("| query | mean | median | traces |\n|---|--:|--:|--:|")
    for name, (mechanism, restart_every) in _QUERIES.items():
        query = _query(mechanism, restart_every, given.dimension)
        compiled = tf.function(query.get_noised_result)
        zero, state = query.initial_sample_state(tf.TensorSpec([given.dimension])), query.initial_global_state()
        times = []
        for number in range(given.rounds + 3):
            begun = time.perf_counter()
            _, state, _ = compiled(zero, state)
            half = time.perf_counter()
            draw(tf.constant([number, 1], tf.int64))
            times.append((half - begun, time.perf_counter() - half))
        rounds, draws = np.array(times[3:]).T
        traces = compiled.experimental_get_tracing_count()
        mean, median = np.mean(rounds) / np.mean(draws), np.median(rounds) / np.median(draws)
        print(f"| {name} | {mean:.2f} | {median:.2f} | {traces} |")


if __name__ == "__main__":
    main()
