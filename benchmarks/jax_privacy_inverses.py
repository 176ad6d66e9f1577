"""Runs cases of `banded_inverse.py` in jax_privacy, in a separate Python: one line of JSON in and out for each case.

Banded inverses came with jax_privacy 2.2. Its search always takes 1000 steps; here it is ended where 40 steps in a row
have gained less than 1e-7 of the loss together, so that all the others would gain no more than 3e-6.
"""

import json
import sys
import time
import typing

import jax
import optax

if not hasattr(optax, "ArrayTree"):
    # Releases of optax without this name can run the optimization as well.
    optax.ArrayTree = typing.Any
jax.config.update("jax_enable_x64", True)

import jax.numpy as jnp  # noqa: E402
from jax_privacy.matrix_factorization import toeplitz  # noqa: E402

REDUCTIONS = {"rms": jnp.mean, "max": lambda errors: errors[-1]}
PATIENCE = 40
GAIN = 1e-7


def solved(case: dict) -> dict:
    began = time.perf_counter()
    inverse = toeplitz.optimize_banded_inverse_toeplitz(
        case["rounds"],
        case["min_sep"],
        case["bands"],
        workload_coef=jnp.asarray(case["workload"]),
        max_participations=case["limit"],
        reduction_fn=REDUCTIONS[case["objective"]],
    ).block_until_ready()
    return {"inverse_column": inverse.tolist(), "seconds": time.perf_counter() - began}


def stalled() -> typing.Callable:
    losses = []

    def callback(step) -> bool:
        losses.append(float(step.loss))
        return len(losses) > PATIENCE and min(losses[:-PATIENCE]) <= min(losses) * (1 + GAIN)

    return callback


search = toeplitz.optimization.optimize
toeplitz.optimization.optimize = lambda *arguments, **options: search(*arguments, callback=stalled(), **options)
for line in sys.stdin:
    print(json.dumps(solved(json.loads(line))), flush=True)
    # Functions compiled for one case are not used for others, and would fill the memory.
    jax.clear_caches()
