"""δ(ε) by samples of jax_privacy 2.0.0's own generator, in a separate Python: lines of JSON in, lines of JSON out.

Balls in bins is its b-min-sep sampling with probability 1 and a warm start, as its documentation says; unlike that of
its class for balls in bins, this generator computes many samples at a time.
"""

import json
import math
import sys
import time

import numpy as np
from jax_privacy import batch_selection
from jax_privacy.experimental.monte_carlo import sample_generation

_VALUES = 4_000_000

if __name__ == "__main__":
    for line in sys.stdin:
        case = json.loads(line)
        strategy = batch_selection.BMinSepSampling(
            iterations=case["rounds"], min_sep=case["min_sep"], sampling_prob=case["probability"], warm_start=True
        )
        generator, began = np.random.default_rng(), time.process_time()
        total = square = done = 0
        with np.errstate(divide="ignore"):
            while done < case["samples"]:
                count = min(case["samples"] - done, max(1, _VALUES // case["rounds"]))
                losses, _ = sample_generation.get_privacy_loss_sample(
                    strategy, case["sigma"], np.array(case["column"]), generator, case["remove"], count
                )
                values = -np.expm1(np.minimum(case["epsilon"] - losses, 0.0))
                total, square, done = total + values.sum(), square + np.sum(values**2), done + count
        mean = total / done
        error = math.sqrt(max(square / done - mean**2, 0.0) / done)
        print(json.dumps({"mean": mean, "error": error, "seconds": time.process_time() - began}), flush=True)
