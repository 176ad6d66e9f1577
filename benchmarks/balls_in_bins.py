"""Certified ε of balls-in-bins sampling at n = 2052, b = 342, k = 6, and the time it takes.

python benchmarks/balls_in_bins.py [--only NAME]

Prints for each mechanism, at noise that gives unamplified ε of 1 to 16 at δ = 1e-6: the estimate, the certified ε with
the bound that was smallest, samples, and CPU seconds on one thread; banded mechanisms also with ε of cyclic Poisson
sampling at the same noise. Takes about six minutes on one core.
"""

import argparse
import functools
import time

import tff_mf
from tff_mf.accounting import bands_and_norm

ROUNDS, BINS, LIMIT, DELTA, POPULATION = 2052, 342, 6, 1e-6, 342_000
SCHEMA = tff_mf.MinSep(min_sep=BINS, max_participations=LIMIT)

MECHANISMS = {
    "BLT(3)": functools.partial(tff_mf.optimize_blt, buffers=3, objective="rms"),
    **{f"banded Toeplitz {n}": functools.partial(tff_mf.optimize_banded_toeplitz, bands=n) for n in (342, 64, 16)},
    "identity": lambda **setting: tff_mf.Identity(),
}


def poisson(mechanism: tff_mf.Mechanism, sigma: float) -> str:
    """Returns ε of cyclic Poisson sampling."""
    if isinstance(mechanism, tff_mf.BLT):
        return "-"
    bands = bands_and_norm(mechanism, ROUNDS)[0]
    sampling = tff_mf.CyclicPoisson(groups=bands, population=POPULATION, clients_per_round=POPULATION // BINS)
    return f"{tff_mf.epsilon(mechanism, ROUNDS, sampling, noise_multiplier=sigma, delta=DELTA):.3f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", metavar="NAME", help="rows whose name has this in it")
    only = parser.parse_args().only
    for name, make in MECHANISMS.items():
        epsilons = [epsilon for epsilon in (1, 2, 4, 8, 16) if only in f"{name}, unamplified {epsilon}"]
        mechanism = make(rounds=ROUNDS, participation=SCHEMA) if epsilons else None
        for epsilon in epsilons:
            sigma = tff_mf.calibrate_noise_multiplier(mechanism, ROUNDS, SCHEMA, epsilon=epsilon, delta=DELTA)
            began, sampling = time.process_time(), tff_mf.BallsInBins(groups=BINS)
            level = tff_mf.guarantee(mechanism, ROUNDS, sampling, noise_multiplier=sigma).at(delta=DELTA)
            print(
                f"{name}, unamplified {epsilon}: estimate {level.estimate or level.epsilon:.4f}  {level.bound} "
                f"{level.epsilon:.4f} ({level.theorem}, to {level.direction})  {level.samples} samples  "
                f"{time.process_time() - began:.1f} s  Poisson {poisson(mechanism, sigma)}",
                flush=True,
            )


if __name__ == "__main__":
    main()
