"""Mechanisms compared for a deployment that puts its clients into bins in secret, by estimates at equal amplified ε.

`amplified.at` certifies the one that is taken.
"""

import dataclasses
from collections.abc import Sequence

import tff_mf
from tff_mf.base.errors import InputValueError
from tff_mf.planning.compare import AS_GOOD, Option

from .deployment import Deployment


@dataclasses.dataclass(frozen=True, kw_only=True)
class BinsOption:
    """A mechanism at the numbers of a deployment, with amplification by balls in bins; all figures are estimates.

    Attributes:
        name: Its name.
        mechanism: The mechanism.
        memory_rows: Copies of the model that its noise keeps.
        noise_multiplier: σ that ε needs, an estimate.
        error: Error of the objective at that noise, in clip norms.
    """

    name: str
    mechanism: tff_mf.Mechanism
    memory_rows: int
    noise_multiplier: float
    error: float


def options(deployment: Deployment, epsilon: float, known: Sequence[Option]) -> list[BinsOption]:
    """Returns mechanisms for balls in bins at equal estimated ε, the one with the least error first.

    Mechanisms with more entries of C than are computed with are left out.

    Args:
        deployment: The estimates; its min-sep is the number of bins.
        epsilon: ε that the whole run may reach, with amplification.
        known: Mechanisms that were found without amplification.
    """
    found = []
    for each in known:
        if each.mechanism is None:
            continue
        try:
            gram = tff_mf.balls_in_bins_gram(each.mechanism, deployment.setting.rounds, bins=deployment.min_sep)
        except InputValueError:
            continue
        estimator = tff_mf.BallsInBinsEstimator(gram)
        sigma = estimator.noise_multiplier(epsilon=epsilon, delta=deployment.delta)
        found.append(_at(deployment, each.name, each.mechanism, sigma))
    return sorted(found, key=lambda each: each.error)


def recommended(found: Sequence[BinsOption]) -> BinsOption:
    """Returns the mechanism to take: of those whose error is within a tenth of the least, the one with least memory."""
    if not found:
        raise InputValueError("There is no mechanism for these numbers: take another workload, or another sampling.")
    close = [each for each in found if each.error <= AS_GOOD * found[0].error]
    return min(close, key=lambda option: (option.memory_rows, option.error), default=found[0])


def _at(deployment: Deployment, name: str, mechanism: tff_mf.Mechanism, sigma: float) -> BinsOption:
    return BinsOption(
        name=name,
        mechanism=mechanism,
        memory_rows=deployment.setting.copies(mechanism, sigma),
        noise_multiplier=sigma,
        error=sigma * getattr(deployment.setting.errors(mechanism), deployment.objective),
    )
