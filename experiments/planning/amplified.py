"""Numbers of bands compared for a deployment that draws its cohorts in secret, before anything is run."""

import dataclasses
from typing import Any

import tff_mf
from tff_mf.planning import mechanism_names

from ..output import progress
from ..sampling.settings import SamplingSettings
from .deployment import Deployment

# Rounds times squared bands of a search that takes seconds.
_PRODUCTS_OF_A_QUICK_SEARCH = 2.5e7


@dataclasses.dataclass(frozen=True, kw_only=True)
class AmplifiedOption:
    """A number of bands at the numbers of a deployment, with amplification by sampling.

    Attributes:
        bands: Number of bands, equal to the number of groups of clients that take turns.
        noise_multiplier: σ.
        epsilon: ε with amplification.
        epsilon_if_known: ε at the same noise if cohorts are known.
        rms_error: RmsError at that noise, in clip norms.
    """

    bands: int
    noise_multiplier: float
    epsilon: float
    epsilon_if_known: float
    rms_error: float


def options(
    deployment: Deployment,
    sampling: str,
    *,
    groups: int | None = None,
    epsilon: float | None = None,
    noise_multiplier: float | None = None,
    thorough: bool = False,
    grid: tff_mf.Grid | None = None,
    dimension: int | None = None,
) -> list[AmplifiedOption]:
    """Returns numbers of bands, powers of 2 that population and cohorts allow, the one with the least error first.

    Formal guarantee: as for `tff_mf.CyclicPoisson`: only where cohorts are drawn in secret.

    Args:
        deployment: The estimates; the participation follows from the sampling, not from `min_sep`.
        sampling: "poisson", which amplifies one band, or "cyclic-poisson".
        groups: The number of groups, and bands, that is compared alone; if not given, powers of 2.
        epsilon: ε that the whole run may reach.
        noise_multiplier: σ, in place of ε.
        thorough: Whether searches of minutes are made.
        grid: The grid of the run, whose cost is included in σ and ε, or `None` for floating point.
        dimension: Number of model parameters d, with a grid.

    Example:
        >>> small = Deployment.of(population=160, clients_per_round=10, rounds=16, delta=1e-6)
        >>> [each.bands for each in options(small, "poisson", noise_multiplier=2.0)]
        [1]
    """
    on_grid: dict[str, Any] = {} if grid is None else {"grid": grid, "dimension": dimension}
    most = min(deployment.setting.rounds, deployment.population // deployment.clients_per_round)
    numbers = [2**power for power in range(most.bit_length())] if groups is None else [groups]
    found = []
    for bands in [1] if sampling == "poisson" else numbers:
        if groups is None and deployment.setting.rounds * bands**2 > _PRODUCTS_OF_A_QUICK_SEARCH and not thorough:
            continue
        with progress.search() as report:
            mechanism = mechanism_names.search(
                "banded",
                rounds=deployment.setting.rounds,
                participation=None,
                bands=bands,
                workload=deployment.setting.workload,
                progress=report,
            )
        drawn = SamplingSettings(sampling=sampling, groups=None if sampling == "poisson" else bands)
        found.append(_at(deployment, drawn, bands, mechanism, epsilon, noise_multiplier, on_grid))
    return sorted(found, key=lambda each: each.rms_error)


def _at(
    deployment: Deployment,
    drawn: SamplingSettings,
    bands: int,
    mechanism: tff_mf.Mechanism,
    epsilon: float | None,
    noise_multiplier: float | None,
    on_grid: dict[str, Any],
) -> AmplifiedOption:
    cohorts = {"population": deployment.population, "clients_per_round": deployment.clients_per_round}
    if epsilon is not None:
        noise_multiplier = tff_mf.calibrate_noise_multiplier(
            mechanism,
            deployment.setting.rounds,
            drawn.drawn_by(**cohorts),
            epsilon=epsilon,
            delta=deployment.delta,
            **on_grid,
        )
    assert noise_multiplier is not None
    found = tff_mf.guarantee(
        mechanism, deployment.setting.rounds, drawn.drawn_by(**cohorts), noise_multiplier=noise_multiplier, **on_grid
    )
    by_turns = dataclasses.replace(deployment.setting, participation=drawn.schema(deployment.setting.rounds))
    return AmplifiedOption(
        bands=bands,
        noise_multiplier=noise_multiplier,
        epsilon=found.epsilon(deployment.delta),
        epsilon_if_known=by_turns.guarantee(mechanism, noise_multiplier, **on_grid).epsilon(deployment.delta),
        rms_error=noise_multiplier * by_turns.errors(mechanism).rms,
    )
