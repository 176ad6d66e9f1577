"""Central training whose examples are in groups drawn at random: the rows of `central_digits.py` for balls in bins."""

from types import SimpleNamespace

import tff_mf


def prepared(
    kind: str, *, examples: int, batch_size: int, rounds: int, epsilon: float, delta: float
) -> SimpleNamespace:
    """Returns the mechanism made for balls in bins at (ε, δ), the order and the certified σ."""
    groups = examples // batch_size
    optimize = {"blt": tff_mf.optimize_amplified_blt, "banded": tff_mf.optimize_amplified_banded_toeplitz}[kind]
    mechanism = optimize(rounds=rounds, bins=groups, epsilon=epsilon, delta=delta).mechanism
    order = tff_mf.Order(
        sampling=tff_mf.BallsInBins(groups=groups), examples=examples, batch_size=batch_size, rounds=rounds
    )
    sigma = order.calibrate_noise_multiplier(mechanism, epsilon=epsilon, delta=delta)
    return SimpleNamespace(mechanism=mechanism, order=order, noise_multiplier=sigma)
