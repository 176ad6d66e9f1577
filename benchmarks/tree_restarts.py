"""Trees with and without restarts (DP-FTRL-TR, DP-FTRL-NTR): RmsLoss over 2,052 rounds, b = 342, k = 6.

    python benchmarks/tree_restarts.py

Prints a row for each decoder, and a column for each number of rounds of a restart. Takes a few seconds.
"""

import tff_mf
from tff_mf.sensitivities.losses import restart_errors

ROUNDS = 2052
PARTICIPATION = tff_mf.MinSep(min_sep=342, max_participations=6)
# One epoch, powers of two, and no restart.
RESTARTS = (342, 256, 512, 1024, ROUNDS)


def main() -> None:
    print("decoder", *(f"r={every}" for every in RESTARTS), sep="  ")
    for variant in ("vanilla", "online", "full"):
        losses = []
        for every in RESTARTS:
            tree = tff_mf.Tree(every, variant=variant)
            error = restart_errors(tree, ROUNDS, restart_every=every).rms
            found = tff_mf.restart_sensitivity(tree, ROUNDS, PARTICIPATION, restart_every=every)
            losses.append(error * found.value)
        print(variant, *(f"{loss:.2f}" for loss in losses), sep="  ", flush=True)


if __name__ == "__main__":
    main()
