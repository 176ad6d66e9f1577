"""Runs a case of `frontier.py` in the Python of a peer: JSON in, JSON out.

opake 0.16.1 searches BLTs for MaxLoss alone, and banded Toeplitz matrices for the mean error without participation.
correlated-noise-mechanism 0.4.0 searches BLTs by 50 steps of Adam at the rate 0.01, as its engine does.
"""

import json
import sys
import time


def jax_privacy_blt(case: dict) -> dict:
    import jax

    jax.config.update("jax_enable_x64", True)
    from jax_privacy.matrix_factorization import buffered_toeplitz

    loss = buffered_toeplitz.LossFn.build_min_sep(
        n=case["rounds"],
        error={"max": "max", "rms": "mean"}[case["objective"]],
        min_sep=case["min_sep"],
        max_participations=case["limit"],
    )
    mechanism, _ = buffered_toeplitz.optimize_loss(loss, num_buffers=case["buffers"])
    return {"theta": mechanism.buf_decay.tolist(), "omega": mechanism.output_scale.tolist()}


def jax_privacy_banded(case: dict) -> dict:
    import jax

    jax.config.update("jax_enable_x64", True)
    from jax_privacy.matrix_factorization import toeplitz

    return {"column": toeplitz.optimize_banded_toeplitz(case["rounds"], case["bands"]).tolist()}


def opake_blt(case: dict) -> dict:
    from opake.api.dpftrl.noise import blt_strategy

    found = blt_strategy(max_buffers=case["buffers"]).coefficients(
        n_steps=case["rounds"], min_sep=case["min_sep"], max_participations=case["limit"]
    )
    return {"column": found.tolist()}


def opake_banded(case: dict) -> dict:
    from opake.api.dpftrl.noise import band_mf_strategy

    return {"column": band_mf_strategy(bands=case["bands"]).coefficients(n_steps=case["rounds"]).tolist()}


def correlated_noise_blt(case: dict) -> dict:
    from correlated_noise_mechanism import BLTDifferentiableLossOptimizer

    search = BLTDifferentiableLossOptimizer(
        n=case["rounds"],
        d=case["buffers"],
        b=case["min_sep"],
        k=case["limit"],
        error_type={"rms": "rmse", "max": "max"}[case["objective"]],
        device="cpu",
    )
    found = search.optimize(num_iterations=50, lr=0.01)
    return {"column": search.calculate_toeplitz_coeffs(found["theta"], found["omega"]).tolist()}


if __name__ == "__main__":
    case = json.loads(sys.argv[1])
    kinds = (jax_privacy_blt, jax_privacy_banded, opake_blt, opake_banded, correlated_noise_blt)
    search = {kind.__name__: kind for kind in kinds}[case["kind"]]
    began = time.process_time()
    answer = search(case)
    print(json.dumps(answer | {"seconds": time.process_time() - began}))
