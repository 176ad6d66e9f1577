"""Choice of the number of bands: amplification by sampling favors few bands, correlated noise favors many."""

import dataclasses
from collections.abc import Iterable

from tff_mf.accounting import CyclicPoisson, calibrate_noise_multiplier
from tff_mf.base import validation
from tff_mf.base.errors import InputValueError
from tff_mf.mechanisms import Banded
from tff_mf.optimize import optimize_banded
from tff_mf.sensitivities.losses import rms_error


@dataclasses.dataclass(frozen=True, kw_only=True)
class AmplifiedBands:
    """A number of bands, with the error that it leads to at a given (ε, δ).

    Attributes:
        bands: Number of bands b̂.
        noise_multiplier: σ required for (ε, δ) with cyclic Poisson sampling.
        rms_error: Root mean square error of the prefix sums with that noise, in units of the clip norm.
        mechanism: The banded mechanism with columns of norm 1.
    """

    bands: int
    noise_multiplier: float
    rms_error: float
    mechanism: Banded


def amplified_bands(
    *,
    rounds: int,
    population: int,
    clients_per_round: int,
    epsilon: float,
    delta: float,
    bands: Iterable[int] | None = None,
) -> tuple[AmplifiedBands, ...]:
    """Returns numbers of bands, in the order of their errors at equal (ε, δ) with cyclic Poisson sampling.

    With few bands the sampling probability B·b̂/N is small; with many the noise is better correlated. One band is
    DP-SGD, and the number of bands at which the probability is 1 is BandMF without amplification.

    Formal guarantee: as for `CyclicPoisson`, for each of the results with its noise multiplier.

    Args:
        rounds: Number of rounds n.
        population: Number of clients N.
        clients_per_round: Expected size B of a cohort.
        epsilon: ε, greater than 0.
        delta: δ, at least 1e-12 and below 1.
        bands: Numbers of bands to compare; `None` for the powers of 2 up to n and N / B.

    Source: Choquette-Choo et al. (2023), appendix F, table 3.

    Example:
        >>> setting = {"rounds": 16, "population": 160, "clients_per_round": 10, "delta": 1e-6}
        >>> [choice.bands for choice in amplified_bands(**setting, epsilon=2.0, bands=[1, 2, 16])]
        [2, 1, 16]

    Raises:
        InputValueError: If no number of bands is possible.
    """
    rounds = validation.whole("rounds", rounds)
    most = min(
        rounds, validation.whole("population", population) // validation.whole("clients_per_round", clients_per_round)
    )
    if most < 1:
        raise InputValueError(
            f"clients_per_round={clients_per_round} exceeds population={population}: take smaller cohorts."
        )
    counts = [2**power for power in range(most.bit_length())] if bands is None else list(bands)
    if not counts:
        raise InputValueError("bands=[] must have at least one number of bands to compare.")
    choices = []
    for count in counts:
        mechanism = optimize_banded(rounds=rounds, bands=count)
        sampling = CyclicPoisson(groups=count, population=population, clients_per_round=clients_per_round)
        sigma = calibrate_noise_multiplier(mechanism, rounds, sampling, epsilon=epsilon, delta=delta)
        error = sigma * rms_error(mechanism, rounds)
        choices.append(AmplifiedBands(bands=count, noise_multiplier=sigma, rms_error=error, mechanism=mechanism))
    return tuple(sorted(choices, key=lambda choice: choice.rms_error))
