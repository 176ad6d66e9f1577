"""Mechanisms with amplification, and numbers of bands, for a deployment that draws its cohorts in secret."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import tff_mf
from tff_mf.planning import by_name

from ..output import progress
from ..sampling.settings import SamplingSettings
from .deployment import Deployment

# Rounds times squared bands of a search that takes seconds.
_PRODUCTS_OF_A_QUICK_SEARCH = 2.5e7


@dataclasses.dataclass(frozen=True, kw_only=True)
class Amplified:
    """A mechanism at the numbers of a deployment, with amplification by sampling.

    Attributes:
        noise_multiplier: σ.
        level: ε with amplification, and the bound that it comes from.
        epsilon_if_known: ε at the same noise if cohorts are known.
        errors: RmsError and MaxError at that noise, by "rms" and "max", in clip norms.
    """

    noise_multiplier: float
    level: tff_mf.Level
    epsilon_if_known: float
    errors: Mapping[str, float]


def at(
    deployment: Deployment,
    mechanism: tff_mf.Mechanism,
    sampling: tff_mf.Sampling,
    *,
    epsilon: float | None = None,
    noise_multiplier: float | None = None,
) -> Amplified:
    """Returns the figures of a mechanism at an ε or a σ.

    Formal guarantee: as for the sampling: only where cohorts are drawn in secret, and stay secret.

    Args:
        deployment: The estimates, with the grid whose cost is included in σ and ε; the participation follows from the
            sampling, not from `min_sep`.
        mechanism: The mechanism.
        sampling: How cohorts are drawn.
        epsilon: ε that the whole run may reach.
        noise_multiplier: σ, in place of ε.
    """
    setting, delta = deployment.setting, deployment.delta
    rounds, on_grid = setting.rounds, {"grid": setting.grid, "dimension": setting.dimension}
    if epsilon is not None:
        noise_multiplier = tff_mf.calibrate_noise_multiplier(
            mechanism, rounds, sampling, epsilon=epsilon, delta=delta, **on_grid
        )
    assert noise_multiplier is not None
    found = tff_mf.guarantee(mechanism, rounds, sampling, noise_multiplier=noise_multiplier, **on_grid)
    by_turns = dataclasses.replace(setting, participation=sampling.schema(rounds))
    errors = by_turns.errors(mechanism)
    return Amplified(
        noise_multiplier=noise_multiplier,
        level=found.at(delta=delta),
        epsilon_if_known=by_turns.guarantee(mechanism, noise_multiplier).epsilon(delta),
        errors={"rms": noise_multiplier * errors.rms, "max": noise_multiplier * errors.max},
    )


def options(
    deployment: Deployment, sampling: str, *, groups: int | None = None, thorough: bool = False, **level: Any
) -> dict[int, Amplified]:
    """Returns numbers of bands, powers of 2 that population and cohorts allow, the one with the least RmsError first.

    Args:
        deployment: As for `at`.
        sampling: "poisson", which amplifies one band, or "cyclic-poisson".
        groups: The number of groups, and bands, that is compared alone; if not given, powers of 2.
        thorough: Whether searches of minutes are made.
        level: Further arguments of `at`.

    Example:
        >>> small = Deployment.of(population=160, clients_per_round=10, rounds=16, delta=1e-6)
        >>> list(options(small, "poisson", noise_multiplier=2.0))
        [1]
    """
    rounds = deployment.setting.rounds
    cohorts = {"population": deployment.population, "clients_per_round": deployment.clients_per_round}
    most = min(rounds, deployment.population // deployment.clients_per_round)
    numbers = [2**power for power in range(most.bit_length())] if groups is None else [groups]
    found = {}
    for bands in [1] if sampling == "poisson" else numbers:
        if groups is None and rounds * bands**2 > _PRODUCTS_OF_A_QUICK_SEARCH and not thorough:
            continue
        with progress.search() as report:
            mechanism = by_name.search(
                "banded",
                rounds=rounds,
                participation=None,
                bands=bands,
                workload=deployment.setting.workload,
                progress=report,
            )
        drawn = SamplingSettings(sampling=sampling, groups=None if sampling == "poisson" else bands)
        found[bands] = at(deployment, mechanism, drawn.drawn_by(**cohorts), **level)
    return dict(sorted(found.items(), key=lambda each: each[1].errors["rms"]))
