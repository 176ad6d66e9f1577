"""Noise in the trained model by mechanism, in contrast to the papers' losses, which measure prefix sums.

python benchmarks/model_noise.py [--rounds N ...] [--max-participations K] [--momentum M] [--cooldown C]

Several N show how the errors grow with the horizon; K participations are N/K rounds apart. The server's momentum
and its falling rate weigh the rounds' noise differently from prefix sums. Each error is that of the mechanism at one ε:
the norm of a row of A·C⁻¹ times the sensitivity, relative to that of the BLT that `train` optimizes.
"""

import argparse

import numpy as np

import tff_mf
from tff_mf.planning.by_name import RAMP_FLOOR

REFERENCE = "blt"


def weights(rounds: int, momentum: float, cooldown: float) -> np.ndarray:
    """Returns the matrix from the updates of all rounds to the model after each round."""
    step = np.arange(rounds)
    rate = RAMP_FLOOR + (1 - RAMP_FLOOR) * np.clip((rounds - step) / (cooldown * rounds), 0, 1) if cooldown else 1.0
    velocity = np.tril(momentum ** np.maximum(step[:, None] - step, 0))
    return np.tril(np.ones((rounds, rounds))) @ (np.reshape(rate, (-1, 1)) * velocity)


def mechanisms_of(rounds: int, schema: tff_mf.MinSep, largest_dense: int) -> dict[str, tff_mf.Mechanism]:
    """Returns the mechanisms of the study, optimized for prefix sums as `train` does."""
    optimized = {
        "banded": tff_mf.optimize_banded(rounds=rounds, bands=schema.min_sep),
        REFERENCE: tff_mf.optimize_blt(rounds=rounds, participation=schema),
        "tree-full": tff_mf.Tree(rounds, variant="full"),
        "tree-online": tff_mf.Tree(rounds, variant="online"),
        "identity": tff_mf.Identity(),
    }
    if rounds <= largest_dense:
        optimized["dense"] = tff_mf.optimize_dense(rounds=rounds, participation=schema)
    return optimized


def errors_of(
    mechanism: tff_mf.Mechanism, rounds: int, schema: tff_mf.MinSep, decoders: list[np.ndarray]
) -> list[float]:
    """Returns the errors of prefix sums and of models over all rounds, and that of the last model."""
    sensitivity = tff_mf.sensitivity(mechanism, rounds, schema)
    inverse = mechanism.inverse(rounds)
    sums, models = (sensitivity * np.linalg.norm(decoder @ inverse, axis=1) for decoder in decoders)
    return [float(np.sqrt(np.mean(sums**2))), float(np.sqrt(np.mean(models**2))), float(models[-1])]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, nargs="+", default=[600])
    parser.add_argument("--max-participations", type=int, default=5)
    parser.add_argument("--momentum", type=float, default=0.9)
    parser.add_argument("--cooldown", type=float, default=0.25)
    parser.add_argument("--largest-dense", type=int, default=1200, help="more rounds leave the dense matrix out")
    arguments = parser.parse_args()
    print("| rounds | mechanism | prefix sums, all rounds | model, all rounds | trained model |")
    print("|---|---|---|---|---|")
    for rounds in arguments.rounds:
        schema = tff_mf.MinSep(
            min_sep=rounds // arguments.max_participations, max_participations=arguments.max_participations
        )
        decoders = [np.tril(np.ones((rounds, rounds))), weights(rounds, arguments.momentum, arguments.cooldown)]
        mechanisms = mechanisms_of(rounds, schema, arguments.largest_dense)
        errors = {name: errors_of(mechanism, rounds, schema, decoders) for name, mechanism in mechanisms.items()}
        for name, own in errors.items():
            figures = " | ".join(f"{a / b:.2f}" for a, b in zip(own, errors[REFERENCE], strict=True))
            print(f"| {rounds:,} | {name} | {figures} |", flush=True)


if __name__ == "__main__":
    main()
