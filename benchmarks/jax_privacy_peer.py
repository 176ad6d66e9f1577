"""Runs a case of `optimizers.py` in jax_privacy 2.0.0, in a Python of its own: JSON in, JSON out."""

import json
import sys
import time

import jax

jax.config.update("jax_enable_x64", True)

from jax_privacy.matrix_factorization import buffered_toeplitz  # noqa: E402


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


KINDS = {"blt": blt}

if __name__ == "__main__":
    case = json.loads(sys.argv[1])
    print(json.dumps(KINDS[case["kind"]](case)))
