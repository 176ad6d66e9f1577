"""ε that samples of jax_privacy 2.0.0 verify, in a separate Python: JSON in, JSON out.

The samples come from its generator, and `delta_calculation` turns them into a guarantee that holds with its procedure
of verification. Balls in bins is its b-min-sep sampling with probability 1 and a warm start, as its documentation says.
Losses are computed here: those of its b-min-sep sampling are wrong for more than one band, because the norms of the
columns that end at round n are in reverse order. On outputs of balls in bins they agree with its class for these.
"""

import json
import math
import sys
import time

import numpy as np
from jax_privacy import batch_selection
from jax_privacy.experimental.monte_carlo import delta_calculation, sample_generation
from scipy import signal

_AT_ONCE = 100_000


def losses(outputs, column, min_sep, probability, sigma):
    """Returns log Z of outputs `[rounds, samples]`, by the recursion of Dong and Ganesh (2026), equation 2."""
    rounds = len(outputs)
    inner = signal.fftconvolve(outputs, column[::-1, np.newaxis], mode="full", axes=0)[len(column) - 1 :]
    squares = np.cumsum(column**2)[np.minimum(rounds - 1 - np.arange(rounds), len(column) - 1)]
    rest = np.zeros((rounds + min_sep, outputs.shape[1]))
    stays = math.log1p(-probability) if probability < 1 else -math.inf
    for t in range(rounds - 1, -1, -1):
        exponents = (inner[t] - squares[t] / 2) / sigma**2
        rest[t] = np.logaddexp(stays + rest[t + 1], math.log(probability) + exponents + rest[t + min_sep])
    first = rest[:min_sep]
    first[1:] += math.log(probability)
    most = first.max(axis=0)
    return most + np.log(np.exp(first - most).sum(axis=0)) - math.log1p((min_sep - 1) * probability)


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
