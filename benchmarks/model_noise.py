"""Noise in the trained model by mechanism, in contrast to the papers' losses, which measure prefix sums.

python benchmarks/model_noise.py [--rounds N] [--min-sep B] [--max-participations K] [--momentum M] [--cooldown C]

The server's momentum and its falling rate weigh the rounds' noise differently from prefix sums. Each error is that of
the mechanism at one ε: the norm of a row of A·C⁻¹ times the sensitivity, relative to BLT with 2 buffers.
"""

import argparse

import numpy as np

import tff_mf
from tff_mf.experiments.configuration.mechanism_names import RAMP_FLOOR

REFERENCE = "blt, buffers 2"


def weights(rounds: int, momentum: float, cooldown: float) -> np.ndarray:
    """Returns the matrix from the updates of all rounds to the model after each round."""
    step = np.arange(rounds)
    rate = RAMP_FLOOR + (1 - RAMP_FLOOR) * np.clip((rounds - step) / (cooldown * rounds), 0, 1) if cooldown else 1.0
    velocity = np.tril(momentum ** np.maximum(step[:, None] - step, 0))
    return np.tril(np.ones((rounds, rounds))) @ (np.reshape(rate, (-1, 1)) * velocity)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=160)
    parser.add_argument("--min-sep", type=int, default=80)
    parser.add_argument("--max-participations", type=int, default=2)
    parser.add_argument("--momentum", type=float, default=0.9)
    parser.add_argument("--cooldown", type=float, default=0.25)
    arguments = parser.parse_args()
    rounds = arguments.rounds
    schema = tff_mf.MinSep(min_sep=arguments.min_sep, max_participations=arguments.max_participations)
    mechanisms = {
        "banded": tff_mf.optimize_banded(rounds=rounds, bands=arguments.min_sep),
        "dense": tff_mf.optimize_dense(rounds=rounds, participation=schema),
        REFERENCE: tff_mf.optimize_blt(rounds=rounds, participation=schema, buffers=2),
        "blt, buffers 4": tff_mf.optimize_blt(rounds=rounds, participation=schema, buffers=4),
        "tree-full": tff_mf.Tree(rounds, variant="full"),
        "tree-online": tff_mf.Tree(rounds, variant="online"),
        "identity": tff_mf.Identity(),
    }
    decoders = np.tril(np.ones((rounds, rounds))), weights(rounds, arguments.momentum, arguments.cooldown)
    errors = {}
    for name, mechanism in mechanisms.items():
        sensitivity = tff_mf.sensitivity(mechanism, rounds, schema)
        rows = [sensitivity * np.linalg.norm(decoder @ mechanism.inverse(rounds), axis=1) for decoder in decoders]
        errors[name] = [np.sqrt(np.mean(rows[0] ** 2)), np.sqrt(np.mean(rows[1] ** 2)), rows[1][-1]]
    print("| | prefix sums, all rounds | model, all rounds | trained model |")
    print("|---|---|---|---|")
    for name, own in errors.items():
        print(f"| {name} | " + " | ".join(f"{a / b:.2f}" for a, b in zip(own, errors[REFERENCE], strict=True)) + " |")


if __name__ == "__main__":
    main()
