"""Rows of `noise.py` in JAX, compiled, in a Python that has JAX: ours, and jax_privacy 2.0.0's where it is installed.

Ratios are relative to `jax.random.normal`, which jax_privacy draws with. `--grid` needs float64, and has ours alone.
"""

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

import tff_mf
from tff_mf.noise.jax import build_stream

BLT = tff_mf.BLT.production("b400")
ROUNDS = 2048
MECHANISMS = {
    "blt, 4 buffers": (BLT, 20),
    "tree, full": (tff_mf.Tree(ROUNDS), 20),
    "tree, online": (tff_mf.Tree(ROUNDS, variant="online"), 20),
    **{f"toeplitz, {bands} bands": (tff_mf.BandedToeplitz.square_root(bands), 20) for bands in (8, 64)},
}

Step = Callable[[Any, Any], tuple[Any, Any]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dimension", type=int, required=True)
    parser.add_argument("--grid", action="store_true")
    given = parser.parse_args()
    jax.config.update("jax_enable_x64", given.grid)
    dimension, grid = given.dimension, tff_mf.Grid(bits=16, max_clients=1000) if given.grid else None
    normal = jax.jit(lambda key: jax.random.normal(key, (dimension,), jnp.float32))
    for name, (mechanism, rounds) in MECHANISMS.items():
        stream = build_stream(mechanism, dimension=dimension, stddev=1.0, grid=grid).limited_to(ROUNDS)
        for how, step in (("", stream.next), (", compiled", jax.jit(stream.next))):
            _report(f"{name}{how}", lambda key, state, step=step: step(state), stream.init(), normal, rounds)
    if not given.grid:
        for name, matrix in _of_jax_privacy().items():

            def one(key: Any, state: Any, matrix: Any = matrix) -> tuple[Any, Any]:
                return matrix.multiply_next(normal(key), state)

            state = matrix.init_multiply(jax.ShapeDtypeStruct((dimension,), jnp.float32))
            _report(f"jax_privacy, {name}", jax.jit(one, donate_argnums=1), state, normal, MECHANISMS[name][1])


def _of_jax_privacy() -> dict[str, Any]:
    try:
        from jax_privacy.matrix_factorization import buffered_toeplitz, toeplitz
    except ImportError:
        return {}
    blt = buffered_toeplitz.BufferedToeplitz.build(BLT.theta, BLT.omega, dtype=jnp.float32)
    bands = {f"toeplitz, {bands} bands": tff_mf.BandedToeplitz.square_root(bands) for bands in (8, 64)}
    return {
        "blt, 4 buffers": blt.inverse_as_streaming_matrix(),
        **{
            name: toeplitz.inverse_as_streaming_matrix(jnp.asarray(each.column, jnp.float32))
            for name, each in bands.items()
        },
    }


def _report(name: str, step: Step, state: Any, normal: Callable[[Any], Any], rounds: int) -> None:
    seconds, draws = [], []
    # The first rounds compile.
    for index in range(rounds + 16):
        key = jax.random.fold_in(jax.random.key(0), index)
        start = time.perf_counter()
        normal(key).block_until_ready()
        middle = time.perf_counter()
        row, state = step(key, state)
        jax.block_until_ready((row, state))
        draws.append(middle - start)
        seconds.append(time.perf_counter() - middle)
    unit = statistics.median(draws[16:])
    mean, median, worst = statistics.fmean(seconds[16:]), statistics.median(seconds[16:]), max(seconds[16:])
    print(
        f"{name:36} {mean / unit:7.2f} {median / unit:7.2f} {worst / unit:7.2f}   {'':15}   {1000 * unit:6.1f} ms",
        flush=True,
    )


if __name__ == "__main__":
    main()
