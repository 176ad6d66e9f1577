"""Runs a case of `optimizers.py` in jax_privacy 2.0.0, in a separate Python: JSON in, JSON out."""

import json
import sys
import time

import jax
import numpy as np

jax.config.update("jax_enable_x64", True)

from jax_privacy.matrix_factorization import buffered_toeplitz, dense, toeplitz  # noqa: E402


def blt(case: dict) -> dict:
    began = time.perf_counter()
    loss = buffered_toeplitz.LossFn.build_min_sep(
        n=case["rounds"],
        error={"max": "max", "rms": "mean"}[case["objective"]],
        min_sep=case["min_sep"],
        max_participations=case["limit"],
    )
    mechanism, _ = buffered_toeplitz.optimize_loss(loss, num_buffers=case["buffers"])
    theta, omega = mechanism.buf_decay.tolist(), mechanism.output_scale.tolist()
    return {"seconds": time.perf_counter() - began, "theta": theta, "omega": omega}


def banded(case: dict) -> dict:
    """Columns have unit norms. Stops at the target if there is one, and otherwise by jax_privacy's own rule."""
    began = time.perf_counter()
    target = case["target"]

    def done(step) -> bool:
        if target is not None:
            return bool(step.loss * case["limit"] <= target**2)
        return dense.pg_tol_termination_fn(step)

    strategy = dense.optimize(case["rounds"], bands=case["bands"], equal_norm=True, callback=done)
    strategy = np.asarray(strategy.block_until_ready())
    seconds = time.perf_counter() - began
    values = np.zeros((case["bands"], case["rounds"]))
    for offset in range(case["bands"]):
        values[offset, : case["rounds"] - offset] = np.diagonal(strategy, -offset)
    return {"seconds": seconds, "values": values.tolist()}


def banded_toeplitz(case: dict) -> dict:
    began = time.perf_counter()
    column = toeplitz.optimize_banded_toeplitz(case["rounds"], case["bands"]).block_until_ready()
    return {"seconds": time.perf_counter() - began, "column": column.tolist()}


def dense_epochs(case: dict) -> dict:
    began = time.perf_counter()
    strategy = dense.optimize(case["rounds"], epochs=case["epochs"], callback=dense.pg_tol_termination_fn)
    strategy = np.asarray(strategy.block_until_ready())
    return {"seconds": time.perf_counter() - began, "matrix": np.tril(strategy).tolist()}


KINDS = {"blt": blt, "banded": banded, "banded_toeplitz": banded_toeplitz, "dense": dense_epochs}

if __name__ == "__main__":
    case = json.loads(sys.argv[1])
    print(json.dumps(KINDS[case["kind"]](case)))
