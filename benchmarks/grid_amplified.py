"""Amplified ε of an integer release, beside ε of the same run in real numbers: docs/explanation/guarantee.md.

python benchmarks/grid_amplified.py [--dimension D]

Cohorts of 1,000 of 342,477 clients for 2,052 rounds, as in StackOverflow, with (cyclic) Poisson sampling. A banded
Toeplitz matrix of b̂ bands has the column 1, 0.3/2, 0.3/3 and so on. No TensorFlow is needed.
"""

import argparse

import tff_mf

STACKOVERFLOW_LSTM = 4_050_748
COHORTS = {"population": 342_477, "clients_per_round": 1000}
LEVEL = {"noise_multiplier": 1.5, "delta": 1e-6}
ROUNDS, BITS = 2052, 16


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dimension", type=int, default=STACKOVERFLOW_LSTM)
    dimension = parser.parse_args().dimension
    grid = tff_mf.Grid(bits=BITS, max_clients=2 * int(COHORTS["clients_per_round"]))
    print("| bands | ε without a grid | ε on the grid |")
    print("|---|---|---|")
    for bands in (1, 9, 64):
        mechanism = tff_mf.BandedToeplitz(column=[1.0, *(0.3 / (lag + 1) for lag in range(1, bands))])
        run = (mechanism, ROUNDS, tff_mf.CyclicPoisson(groups=bands, **COHORTS))
        plain = tff_mf.epsilon(*run, **LEVEL)
        charged = tff_mf.epsilon(*run, **LEVEL, grid=grid, dimension=dimension)
        print(f"| {bands} | {plain:.4f} | {charged:.4f} |", flush=True)


if __name__ == "__main__":
    main()
