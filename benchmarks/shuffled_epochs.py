"""ε of several shuffled epochs beside that of known rounds, for C = I at δ = 1e-6.

    python benchmarks/shuffled_epochs.py

Prints a row for each number of rounds an epoch (those of one group) and σ. The last column is what the same order in
every epoch would have if the theorem for one epoch held for it, with σ / √k: it is not proven. Takes half a minute.
"""

import math

import tff_mf

DELTA = 1e-6
EPOCHS = (1, 2, 5, 20)


def main(settings=((1000, 4.0), (3000, 4.0), (3000, 8.0), (10000, 4.0), (10000, 2.0))):
    print("rounds  sigma", *(f"k={epochs}: shuffled / known" for epochs in EPOCHS), "k=5, one order", sep="  ")
    for rounds, sigma in settings:
        row = []
        for epochs in EPOCHS:
            run = (tff_mf.Identity(), rounds * epochs, tff_mf.ShuffledEpochs(epochs=epochs))
            shuffled = tff_mf.epsilon(*run, noise_multiplier=sigma, delta=DELTA)
            known = tff_mf.Guarantee(mu=math.sqrt(epochs) / sigma).epsilon(DELTA)
            row.append(f"{shuffled:.3f} / {known:.3f}")
        once = (tff_mf.Identity(), rounds, tff_mf.ShuffledEpochs())
        same = tff_mf.epsilon(*once, noise_multiplier=sigma / math.sqrt(5), delta=DELTA)
        print(rounds, sigma, *row, f"{same:.3f}", sep="  ", flush=True)


if __name__ == "__main__":
    main()
