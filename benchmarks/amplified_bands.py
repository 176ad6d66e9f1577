"""Best number of bands with cyclic Poisson sampling: table 3 of the banded MF paper, n = 1024, δ = 1e-6.

    python benchmarks/amplified_bands.py

Prints the table beside the paper's, and where the two differ how much worse the paper's number is here. Takes about ten
minutes on one core.
"""

import tff_mf

ROUNDS = 1024
DELTA = 1e-6
# Choquette-Choo et al. (2023), appendix F, table 3.
PAPER = {
    0.03125: [2, 2, 1, 1, 1, 1, 1, 1, 1, 1, 1],
    0.0625: [4, 2, 1, 1, 1, 1, 1, 1, 1, 1, 1],
    0.125: [8, 4, 2, 1, 1, 1, 1, 1, 1, 1, 1],
    0.25: [8, 4, 4, 2, 1, 1, 1, 1, 1, 1, 1],
    0.5: [16, 8, 4, 4, 2, 1, 1, 1, 1, 1, 1],
    1.0: [32, 16, 8, 4, 2, 2, 1, 1, 1, 1, 1],
    2.0: [64, 32, 16, 8, 4, 2, 2, 1, 1, 1, 1],
    4.0: [128, 64, 32, 16, 8, 4, 2, 2, 1, 1, 1],
    8.0: [1024, 512, 256, 32, 16, 8, 4, 2, 2, 1, 1],
    16.0: [1024, 512, 256, 128, 64, 32, 8, 4, 4, 2, 1],
}


def main() -> None:
    mechanisms = {2**power: tff_mf.optimize_banded(rounds=ROUNDS, bands=2**power) for power in range(11)}
    errors = {bands: tff_mf.rms_error(mechanism, ROUNDS) for bands, mechanism in mechanisms.items()}
    same = 0
    for epsilon, published in PAPER.items():
        row = []
        for power, theirs in enumerate(published):
            # n clients take part k times each, in n rounds of k clients.
            losses = {}
            for bands, mechanism in mechanisms.items():
                if bands << power > ROUNDS:
                    continue
                sampling = tff_mf.CyclicPoisson(groups=bands, population=ROUNDS, clients_per_round=2**power)
                sigma = tff_mf.calibrate_noise_multiplier(mechanism, ROUNDS, sampling, epsilon=epsilon, delta=DELTA)
                losses[bands] = sigma * errors[bands]
            best = min(losses, key=losses.__getitem__)
            same += best == theirs
            row.append(f"{best}" if best == theirs else f"{best} ({theirs}: +{losses[theirs] / losses[best] - 1:.2%})")
        print(epsilon, *row, sep="  ", flush=True)
    print(f"{same} of {sum(map(len, PAPER.values()))} as published")


if __name__ == "__main__":
    main()
