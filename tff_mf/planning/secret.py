"""Mechanisms compared for a run whose cohorts are secret: at equal amplified ε, by the error that remains."""

import math
from collections.abc import Iterator, Mapping

from tff_mf.accounting import (
    BallsInBins,
    BallsInBinsEstimator,
    BMinSep,
    CyclicPoisson,
    balls_in_bins_gram,
    calibrate_noise_multiplier,
)
from tff_mf.mechanisms import Identity, Mechanism
from tff_mf.optimize import optimize_banded_toeplitz, optimize_blt
from tff_mf.planning.options import Option
from tff_mf.problem.participation import MinSep, Sampling, SingleParticipation
from tff_mf.sensitivities.losses import restart_errors

# Rounds times bands of a comparison that takes seconds.
_MOST_ENTRIES = 2**16
# More bands are not tried after an error that exceeds the least by this factor.
_RISEN = 1.1
# Of a BLT for balls in bins.
_BUFFERS = 3
# Of a certificate, few: bounds without samples are enough to compare.
_SAMPLES = 1000
# Which field of a sampling is the most bands that it amplifies; of others, it is one.
_BANDS: Mapping[type, str] = {CyclicPoisson: "groups", BMinSep: "min_sep"}


def options(sampling: Sampling, *, rounds: int, epsilon: float, delta: float) -> list[Option]:
    """Returns the mechanisms that the theorem of a sampling covers, the one with the least error first.

    Where it covers independent noise alone, nothing is compared, and there are no figures.

    For `BallsInBins` they are compared by estimates of σ, as certificates take longer; for every other sampling by the
    σ that is proved. Costs of a grid are left out: they hardly differ.

    Args:
        sampling: How cohorts are drawn, in secret.
        rounds: Number of rounds n.
        epsilon: ε that the whole run may reach, with amplification.
        delta: δ.

    Example:
        >>> import tff_mf
        >>> found = options(tff_mf.CyclicPoisson(groups=4, population=400, clients_per_round=10),
        ...                 rounds=64, epsilon=2.0, delta=1e-6)
        >>> [each.name for each in found]
        ['banded-toeplitz, 4 bands', 'banded-toeplitz, 2 bands', 'identity']

    Raises:
        InputError: If an argument is out of range.
    """
    if _most_bands(sampling, rounds) == 1:
        return [Option(name="identity", mechanism=Identity())]
    found: list[Option] = []
    least = math.inf
    for name, mechanism, rows in _candidates(sampling, rounds, epsilon, delta):
        sigma = _sigma(sampling, mechanism, rounds, epsilon, delta)
        error = sigma * restart_errors(mechanism, rounds, restart_every=rounds, workload=None).rms
        figures = {"rms_error": error, "noise_multiplier": sigma, "memory_rows": rows}
        found.append(Option(name=name, mechanism=mechanism, figures=figures))
        least = min(least, error)
        if error > _RISEN * least:
            break
    return sorted(found, key=lambda each: each.figures["rms_error"])


def _candidates(sampling: Sampling, rounds: int, epsilon: float, delta: float) -> Iterator[tuple[str, Mechanism, int]]:
    """Yields names, mechanisms and the rows of their noise."""
    yield "identity", Identity(), 0
    if isinstance(sampling, BallsInBins):
        # Amplification favors a shorter memory than the best one for known cohorts.
        for min_sep in dict.fromkeys((-(-sampling.groups // 2), sampling.groups)):
            schema = MinSep(min_sep=min_sep, max_participations=-(-rounds // min_sep))
            blt = optimize_blt(rounds=rounds, participation=schema, buffers=_BUFFERS, objective="rms")
            yield f"blt, made for min-sep {min_sep}", blt, blt.buffers
        return
    most = min(_most_bands(sampling, rounds), _MOST_ENTRIES // rounds)
    for bands in sorted({*(2**power for power in range(1, most.bit_length())), most} - {0, 1}):
        # What is amplified is a round of a client: one column of C.
        toeplitz = optimize_banded_toeplitz(rounds=rounds, bands=bands, participation=SingleParticipation())
        yield f"banded-toeplitz, {bands} bands", toeplitz, bands - 1


def _most_bands(sampling: Sampling, rounds: int) -> int:
    """Returns the largest number of bands that the theorem of a sampling covers."""
    return (
        rounds
        if isinstance(sampling, BallsInBins)
        else min(getattr(sampling, _BANDS.get(type(sampling), ""), 1), rounds)
    )


def _sigma(sampling: Sampling, mechanism: Mechanism, rounds: int, epsilon: float, delta: float) -> float:
    if isinstance(sampling, BallsInBins):
        gram = balls_in_bins_gram(mechanism, rounds, bins=sampling.groups)
        return BallsInBinsEstimator(gram).noise_multiplier(epsilon=epsilon, delta=delta)
    return calibrate_noise_multiplier(mechanism, rounds, sampling, epsilon=epsilon, delta=delta, samples=_SAMPLES)
