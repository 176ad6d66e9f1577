"""Attacks of an adversary who knows all other updates, on floating point and on a grid.

python benchmarks/floating_point_attacks.py [--dimension D] [--rounds N]

Pairs: one release after another of the identity mechanism at σ = 7.379; of each pair of coordinates whose noise is
beyond 2 standard deviations, the adversary asks whether float32 normals can give it without the victim. Low bits:
whether what remains of a float64 release is a float32 number. On a grid, an attack is blind if the rates with and
without the victim differ by chance only: the last column is their difference in standard deviations.
"""

import argparse
import math
import os
from collections.abc import Callable

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np
import tensorflow as tf

import tff_mf
from tff_mf import queries
from tff_mf.numerics import normals

STDDEV = 7.379
SIZES = (1.0, 0.1, 0.001)
FAR = 2.0


def query(
    bits: int | None, dimension: int, noise_multiplier: float, dtype: tf.DType
) -> queries.MatrixFactorizationQuery:
    grid = None if bits is None else tff_mf.Grid(bits=bits, max_clients=2)
    return queries.build_query(
        tff_mf.Identity(),
        record_specs=tf.TensorSpec([dimension], dtype),
        clip_norm=1.0,
        noise_multiplier=noise_multiplier,
        grid=grid,
    )


def released(made: queries.MatrixFactorizationQuery, *records: np.ndarray) -> np.ndarray:
    """Returns a noised sum of records, float64."""
    state, total = made.initial_global_state(), made.initial_sample_state()
    for record in records:
        total = made.accumulate_record(made.derive_sample_params(state), total, tf.constant(record))
    return made.get_noised_result(total, state)[0].numpy().astype(np.float64)


def impossible_pairs(noise: np.ndarray, seen: np.ndarray, bits: int | None) -> np.ndarray:
    """Returns for each pair far out whether float32 noise cannot give it, bool `[pairs]`."""
    cell = 0.0 if bits is None else 2.0**-bits
    error = np.spacing(np.abs(seen).astype(np.float32)).astype(np.float64) / 2 + cell / 2
    pairs, error = noise.reshape(-1, 2), error.reshape(-1, 2)
    # Wider boxes, as on a coarse grid, hold producible pairs by chance, with the victim and without.
    error = np.minimum(error, 0.49e-6 * STDDEV)
    far = np.linalg.norm(pairs, axis=1) > FAR * STDDEV
    return ~normals.producible_pairs(pairs[far] - error[far], pairs[far] + error[far], stddev=STDDEV)


def low_bits(noise: np.ndarray, seen: np.ndarray, bits: int | None) -> np.ndarray:
    """Returns for each coordinate whether it is not a float32 number, bool `[dimension]`."""
    del seen, bits
    return np.abs(noise - noise.astype(np.float32)) > 2.0**-50


def attack(
    guess: Callable[[np.ndarray, np.ndarray, int | None], np.ndarray],
    bits: int | None,
    dtype: tf.DType,
    dimension: int,
    rounds: int,
) -> None:
    """Prints the rates of guesses without a victim, and with victims of several norms."""
    made, exact = (query(bits, dimension, sigma, dtype) for sigma in (STDDEV, 0.0))
    counts = {size: [0, 0] for size in (0.0, *SIZES)}
    for number in range(rounds):
        generator = np.random.default_rng(number)
        others, victim = (generator.normal(size=dimension) for _ in range(2))
        others, victim = (0.99 * each / np.linalg.norm(each) for each in (others, victim))
        cast = dtype.as_numpy_dtype
        known = released(exact, others.astype(cast))
        for size, count in counts.items():
            seen = released(made, others.astype(cast), (size * victim).astype(cast))
            found = guess(seen - known, seen, bits)
            count[0] += int(np.sum(found))
            count[1] += found.size
    base, tried = counts[0.0][0] / counts[0.0][1], counts[0.0][1]
    for size in SIZES:
        rate = counts[size][0] / counts[size][1]
        deviation = math.sqrt(max(base * (1 - base), 1 / tried) * (1 / tried + 1 / counts[size][1]))
        name = "floats" if bits is None else f"grid of 2^{bits}"
        beyond = (rate - base) / deviation
        print(
            f"| {guess.__name__} | {name} | {size} | {tried:,} | {base:.5f} | {rate:.5f} | {beyond:+.1f} |", flush=True
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dimension", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    print("| attack | release | norm of the victim / ζ | tried | rate without | rate with | standard deviations |")
    print("|---|---|---|---|---|---|---|")
    for guess, dtype in ((impossible_pairs, tf.float32), (low_bits, tf.float64)):
        for bits in (None, 16, 20, 24):
            attack(guess, bits, dtype, arguments.dimension, arguments.rounds)


if __name__ == "__main__":
    main()
