"""δ(ε) by samples of jax_privacy 2.0.0's own generator, in a separate Python: lines of JSON in, lines of JSON out.

Balls in bins is its b-min-sep sampling with probability 1 and a warm start, as its documentation says; unlike that of
its class for balls in bins, this generator computes many samples at a time. Losses are computed here: those of its
b-min-sep sampling are wrong for more than one band, because the norms of the columns that end at round n are in reverse
order. On the same outputs they differ from those of its class for balls in bins, with which those here agree.
"""

import json
import math
import sys
import time

import numpy as np
from jax_privacy import batch_selection
from jax_privacy.experimental.monte_carlo import sample_generation
from scipy import signal

_VALUES = 4_000_000
_COMPARED = 20


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


def apart(outputs, found, column, min_sep, sigma) -> float:
    """Returns how far losses are from those of jax_privacy's class for balls in bins."""
    strategy = batch_selection.BallsInBinsSampling(iterations=len(outputs), cycle_length=min_sep)
    theirs = sample_generation.compute_privacy_loss(strategy, outputs[:, :_COMPARED], sigma, column)
    return float(np.max(np.abs(theirs - found[:_COMPARED])))


def main() -> None:
    for line in sys.stdin:
        case = json.loads(line)
        rounds, min_sep, probability, sigma = (case[key] for key in ("rounds", "min_sep", "probability", "sigma"))
        column = np.array(case["column"])
        strategy = batch_selection.BMinSepSampling(
            iterations=rounds, min_sep=min_sep, sampling_prob=probability, warm_start=True
        )
        generator, began = np.random.default_rng(), time.process_time()
        total = square = done = 0
        difference = None
        while done < case["samples"]:
            count = min(case["samples"] - done, max(1, _VALUES // rounds))
            outputs = sample_generation.generate_sample(strategy, sigma, column, generator, case["remove"], count)
            found = losses(outputs, column, min_sep, probability, sigma)
            if probability == 1 and difference is None:
                difference = apart(outputs, found, column, min_sep, sigma)
            values = -np.expm1(np.minimum(case["epsilon"] - (found if case["remove"] else -found), 0.0))
            total, square, done = total + values.sum(), square + np.sum(values**2), done + count
        mean = total / done
        error = math.sqrt(max(square / done - mean**2, 0.0) / done)
        seconds = time.process_time() - began
        print(json.dumps({"mean": mean, "error": error, "apart": difference, "seconds": seconds}), flush=True)


if __name__ == "__main__":
    main()
