"""What the integers of a grid add to μ and ε: docs/explanation/guarantee.md. No TensorFlow is needed.

python benchmarks/grid_charges.py [--dimension D]

First for 2,052 rounds of the BLT paper: min-sep 342, six rounds a client, σ = 7.379. Then for cohorts of 1,000 of
342,477 clients, as in StackOverflow, by (cyclic) Poisson sampling, of banded Toeplitz matrices with the column 1,
0.3/2, 0.3/3 and so on.
"""

import argparse

import tff_mf
from tff_mf.accounting import grid_charge

STACKOVERFLOW_LSTM = 4_050_748
ROUNDS, SIGMA = 2052, 7.379
SCHEMA = tff_mf.MinSep(min_sep=342, max_participations=6)


def known_cohorts(dimension: int) -> None:
    mechanisms = {
        "Identity": tff_mf.Identity(),
        "BLT b400": tff_mf.BLT.production("b400"),
        "BandedToeplitz, 342 bands": tff_mf.BandedToeplitz.square_root(342),
        "Banded, 16 bands": tff_mf.optimize_banded(rounds=ROUNDS, bands=16),
        **{f"Tree, {variant}": tff_mf.Tree(ROUNDS, variant=variant) for variant in ("full", "online", "vanilla")},
    }
    print("| mechanism | bits | e | η | μ without | added to μ | ε(1e-10) without | added to ε |")
    for name, mechanism in mechanisms.items():
        plain = tff_mf.guarantee(mechanism, ROUNDS, SCHEMA, noise_multiplier=SIGMA)
        for bits in (16, 17, 20):
            grid = tff_mf.Grid(bits=bits, max_clients=6500)
            arguments = {"noise_multiplier": SIGMA, "grid": grid, "dimension": dimension}
            charge = grid_charge.charge(mechanism, ROUNDS, 6, **arguments)
            charged = tff_mf.guarantee(mechanism, ROUNDS, SCHEMA, **arguments)
            epsilon = plain.epsilon(1e-10)
            print(
                f"| {name} | {bits} | {charge.error:.1e} | {charge.log_ratio:.1e} | {plain.mu:.4f} | "
                f"{charged.mu - plain.mu:.4f} | {epsilon:.4f} | {charged.epsilon(1e-10) - epsilon:.4f} |",
                flush=True,
            )


def random_cohorts(dimension: int) -> None:
    cohorts, level = {"population": 342_477, "clients_per_round": 1000}, {"noise_multiplier": 1.5, "delta": 1e-6}
    grid = tff_mf.Grid(bits=16, max_clients=2000)
    print("\n| bands | ε without a grid | ε on the grid |\n|---|---|---|")
    for bands in (1, 9, 64):
        mechanism = tff_mf.BandedToeplitz(column=[1.0, *(0.3 / (lag + 1) for lag in range(1, bands))])
        run = (mechanism, ROUNDS, tff_mf.CyclicPoisson(groups=bands, **cohorts))
        plain = tff_mf.epsilon(*run, **level)
        charged = tff_mf.epsilon(*run, **level, grid=grid, dimension=dimension)
        print(f"| {bands} | {plain:.4f} | {charged:.4f} |", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dimension", type=int, default=STACKOVERFLOW_LSTM)
    parameters = parser.parse_args().dimension
    known_cohorts(parameters)
    random_cohorts(parameters)
