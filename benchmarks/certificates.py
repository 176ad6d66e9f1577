"""How often certificates by sampling fail, at a size where the exact ε is known by quadrature.

    python benchmarks/certificates.py

Draws 1,000 certificates of b-min-sep sampling, where a client is added, and of balls in bins at n = 3, each of which
may fail with probability 0.05, and counts those whose ε is below the exact one. More than 71 of 1,000 have a
probability of at most 1e-3. Takes about two minutes on one core.
"""

import argparse
import pathlib
import sys

import numpy as np
from scipy import stats

import tff_mf
from tff_mf.accounting.b_min_sep import Add
from tff_mf.accounting.balls_in_bins import add_direction, remove_direction
from tff_mf.accounting.betting import Direction, certified_count
from tff_mf.accounting.question import Question

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "tests" / "tff_mf"))
import secret_rounds_oracle as oracle

MECHANISM = tff_mf.BandedToeplitz(column=[1.0, 0.6])
ROUNDS, SIGMA, DELTA, ALLOWED, POINTS = 3, 1.0, 1e-2, 0.05, 121
# Of claimed ε, as shares of the exact one: the last claim is false, by as little as a few samples may miss.
CLAIMS = (1.1, 0.99)


def directions():
    """Yields a name, the histories of a client, and a direction of each sampling, with its proposals."""
    sampling = tff_mf.BMinSep(min_sep=2, probability=0.3)
    run = sampling.run(Question(mechanism=MECHANISM, rounds=ROUNDS, sampling=sampling))
    histories = oracle.min_sep_histories(ROUNDS, 2, 0.3)
    yield "b-min-sep, add", histories, Add(chain=run.chain, columns=run.columns / SIGMA, shift=2.0), False
    bins = tff_mf.BallsInBins(groups=ROUNDS)
    run = bins.run(Question(mechanism=MECHANISM, rounds=ROUNDS, sampling=bins))
    pair = run.pair(run.gram, SIGMA)
    histories = np.eye(ROUNDS), np.full(ROUNDS, 1 / ROUNDS)
    yield "balls in bins, remove", histories, remove_direction(pair, 1.0, np.random.default_rng()), True
    yield "balls in bins, add", histories, add_direction(pair, 1.0), False


def exact(histories: tuple[np.ndarray, np.ndarray], remove: bool) -> float:
    """Returns ε at δ, from below."""
    encoder = MECHANISM.cast_to_float32().encoder(ROUNDS)
    low, high = 0.0, 20.0
    for _ in range(40):
        middle = (low + high) / 2
        found = oracle.quadrature(encoder, *histories, SIGMA, middle, remove=remove, points=POINTS)
        low, high = (low, middle) if found <= DELTA else (middle, high)
    return low


def certified(direction: Direction, epsilon: float, samples: int) -> float:
    """Returns the ε of one certificate."""
    claims, generator = [share * epsilon for share in CLAIMS], np.random.default_rng()
    count = certified_count(direction, claims, DELTA, samples=samples, failure=ALLOWED, generator=generator)
    return claims[count - 1] if count else np.inf


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--certificates", type=int, default=1000)
    parser.add_argument("--samples", type=int, default=1000)
    arguments = parser.parse_args()
    likely = True
    for name, histories, direction, remove in directions():
        epsilon = exact(histories, remove)
        found = [certified(direction, epsilon, arguments.samples) for _ in range(arguments.certificates)]
        wrong = sum(each < epsilon for each in found)
        chance = stats.binom.sf(wrong - 1, arguments.certificates, ALLOWED)
        likely &= chance > 1e-3
        print(
            f"{name}: exact ε {epsilon:.4f}, {sum(each < np.inf for each in found)} certified, {wrong} of "
            f"{arguments.certificates} too small (probability of this many or more: at most {chance:.2g})",
            flush=True,
        )
    sys.exit(0 if likely else 1)


if __name__ == "__main__":
    main()
