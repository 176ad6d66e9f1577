"""Runs a case of `frontier.py` in the Python of a peer that builds on PyTorch: JSON in, JSON out.

opake 0.16.1 searches BLTs for MaxLoss alone, and banded Toeplitz matrices for the mean error without participation.
correlated-noise-mechanism 0.4.0 searches BLTs by 50 steps of Adam at the rate 0.01, as its engine does.
"""

import json
import sys
import time


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


KINDS = {"opake_blt": opake_blt, "opake_banded": opake_banded, "correlated_noise_blt": correlated_noise_blt}

if __name__ == "__main__":
    case = json.loads(sys.argv[1])
    search = KINDS[case["kind"]]
    began = time.process_time()
    answer = search(case)
    print(json.dumps(answer | {"seconds": time.process_time() - began}))
