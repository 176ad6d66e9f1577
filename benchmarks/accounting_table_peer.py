"""ε that samples of jax_privacy 2.0.0 verify, in a separate Python: JSON in, JSON out.

The samples come from its generator, and `delta_calculation` turns them into a guarantee that holds with its procedure
of verification. Losses are computed as in `amplified_samples_peer.py`, which says why.
"""

import json
import sys
import time

import numpy as np
from amplified_samples_peer import losses
from jax_privacy import batch_selection
from jax_privacy.experimental.monte_carlo import delta_calculation, sample_generation

_AT_ONCE = 100_000


def main() -> None:
    case = json.loads(sys.argv[1])
    rounds, min_sep, probability, sigma = (case[key] for key in ("rounds", "min_sep", "probability", "sigma"))
    column, generator, began = np.array(case["column"]), np.random.default_rng(), time.process_time()
    strategy = batch_selection.BMinSepSampling(
        iterations=rounds, min_sep=min_sep, sampling_prob=probability, warm_start=True
    )
    verified = delta_calculation.get_base_delta(case["samples"], case["delta"])
    worst = 0.0
    for remove in (True, False):
        parts = []
        for _ in range(case["samples"] // _AT_ONCE):
            outputs = sample_generation.generate_sample(strategy, sigma, column, generator, remove, _AT_ONCE)
            found = losses(outputs, column, min_sep, probability, sigma)
            parts.append(found if remove else -found)
        sample = np.concatenate(parts)
        low, high = 0.0, 50.0
        while high - low > 1e-5:
            middle = (low + high) / 2
            private = delta_calculation.delta_from_epsilon_and_samples(middle, sample) <= verified
            low, high = (low, middle) if private else (middle, high)
        worst = max(worst, high)
    print(json.dumps({"epsilon": worst, "verified": verified, "seconds": time.process_time() - began}))


if __name__ == "__main__":
    main()
