"""The rows of `noise.py` that jax_privacy 2.0.0 supports, run in a separate Python."""

import argparse
import statistics
import time

import jax
import jax.numpy as jnp
import numpy as np
from jax_privacy.matrix_factorization import buffered_toeplitz, toeplitz

# Ratios are relative to jax.random.normal, which jax_privacy draws with.
BANDS = ((8, 40), (64, 20), (342, 6))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--dimension", type=int, required=True)
    dimension = parser.parse_args().dimension
    normal = jax.jit(lambda key: jax.random.normal(key, (dimension,), jnp.float32))
    key = jax.random.key(0)
    for bands, rounds in BANDS:
        coefficients = jnp.asarray(_square_root(bands), jnp.float32)
        matrix = toeplitz.inverse_as_streaming_matrix(coefficients)
        _report(f"jax_privacy, toeplitz, {bands} bands", matrix, normal, key, dimension, rounds)
    # The production BLT for b = 400 of the BLT paper, in float32 like ours.
    theta = [0.9999999999921251, 0.9944453083640997, 0.8985923474607591, 0.4912001418098778]
    omega = [0.0070314825502323835, 0.10613806907600574, 0.1898159060327625, 0.1966594748073734]
    blt = buffered_toeplitz.BufferedToeplitz.build(theta, omega, dtype=jnp.float32)
    _report("jax_privacy, blt, 4 buffers", blt.inverse_as_streaming_matrix(), normal, key, dimension, 20)


def _square_root(bands: int) -> np.ndarray:
    steps = np.arange(1, bands)
    return np.concatenate([[1.0], np.cumprod((2 * steps - 1) / (2 * steps))])


def _report(name: str, matrix: object, normal: object, key: object, dimension: int, rounds: int) -> None:
    def one(key: object, state: object) -> tuple[object, object]:
        return matrix.multiply_next(normal(key), state)

    step = jax.jit(one, donate_argnums=1)
    state = matrix.init_multiply(jax.ShapeDtypeStruct((dimension,), jnp.float32))
    seconds, draws = [], []
    for index in range(rounds + 2):
        one_key = jax.random.fold_in(key, index)
        start = time.perf_counter()
        normal(one_key).block_until_ready()
        middle = time.perf_counter()
        row, state = step(one_key, state)
        jax.block_until_ready((row, state))
        draws.append(middle - start)
        seconds.append(time.perf_counter() - middle)
    unit = statistics.median(draws[2:])
    mean, median, worst = statistics.fmean(seconds[2:]), statistics.median(seconds[2:]), max(seconds[2:])
    print(
        f"{name:36} {mean / unit:7.2f} {median / unit:7.2f} {worst / unit:7.2f}   {'':15}   {1000 * unit:6.1f} ms",
        flush=True,
    )


if __name__ == "__main__":
    main()
