"""Amplification by sampling: the ε of a deployment that keeps its cohorts secret."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import tff_mf
from tff_mf.accounting import bands_and_norm
from tff_mf.base import validation
from tff_mf.base.errors import InputValueError

from ..sampling.settings import SamplingSettings, sampling_of
from . import statements
from .plan import PrivacyPlan
from .words import Bound

KINDS = ("poisson", "cyclic_poisson")
# For which mechanisms are made and compared; of a run with known cohorts nothing amplified is computed.
BALLS_IN_BINS = "balls_in_bins"
# For a mechanism and numbers that are given, an ε is computed for each of these.
ACCOUNTED = (*KINDS, BALLS_IN_BINS, "b_min_sep")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Amplified:
    """The ε of a deployment that samples as the run did, and keeps its cohorts secret.

    Attributes:
        epsilon: ε with amplification by sampling, for the cohort that the run stands for.
        population: Clients of such a deployment that cohorts are drawn from.
        claim: The content of its one-line statement.
        level: ε with the bound that it comes from.
        simulated: Whether a run with known cohorts simulates the deployment.
    """

    epsilon: float
    population: int
    claim: statements.Claim
    level: tff_mf.Level
    simulated: bool = True

    @property
    def statement(self) -> str:
        """The hypothetical guarantee in one line, which states that it is not a guarantee of this run."""
        return line(statements.facts(self.claim), self.population, simulated=self.simulated)


def line(claim: Mapping[str, Any], population: int | None = None, *, simulated: bool = True) -> str:
    """Returns the hypothetical guarantee of a deployment in one line, which states that it is not one of a run.

    Args:
        claim: Its facts.
        population: Clients that cohorts are drawn from; those of the claim if not given.
        simulated: Whether a run with known cohorts simulates the deployment.
    """
    condition = (
        "not of this run, whose cohorts follow from a seed and are logged, but of a deployment that draws them in "
        "secret"
        if simulated
        else "only if cohorts are drawn at random and in secret, and nobody ever learns them,"
    )
    drawn = claim["population"] if population is None else population
    return f"{condition} from {drawn} clients, with amplification by sampling: {statements.line(claim)}"


def amplified(privacy: PrivacyPlan, sampling: SamplingSettings, population: int) -> Amplified | None:
    """Returns what amplification by sampling would give, or None if no theorem here covers the run.

    Formal guarantee: as for `tff_mf.CyclicPoisson`, for groups enlarged in proportion to the
    cohort, rounded down: a client of such a deployment takes part with the probability of one of this run, or with a
    larger one. It covers Poisson sampling of a mechanism with one band, and cyclic Poisson sampling of one with as many
    bands as groups; neither restarts of the noise, nor the counts of adaptive clipping. What a grid costs is included.

    Args:
        privacy: The mechanism and its noise.
        sampling: How cohorts were drawn.
        population: Clients they were drawn from.

    Example:
        >>> from tff_mf.experiments.privacy import plan_privacy
        >>> plan = plan_privacy(mechanism=tff_mf.Identity(), rounds=100, delta=1e-6, clients_per_round=10,
        ...                     participation=tff_mf.MinSep(min_sep=1, max_participations=100), noise_multiplier=1.0)
        >>> found = amplified(plan, SamplingSettings(kind="poisson"), 1000)
        >>> f"{found.epsilon:.2f}, {plan.epsilon:.2f} without"
        '0.95, 96.72 without'

    Raises:
        InputError: If an argument is out of range.
    """
    groups = {"poisson": 1, "cyclic_poisson": privacy.participation.min_sep}.get(sampling.kind)
    if groups is None or privacy.insecure or not privacy.noise_multiplier or privacy.delta < validation.MIN_TAIL_DELTA:
        return None
    if privacy.restart_every is not None or privacy.adaptive_count_stddev is not None:
        return None
    if bands_of(privacy.mechanism, privacy.rounds) != groups:
        return None
    # By the run's own groups, with the clients left over that never take part: dividing the whole population by
    # clients per round first, and then by groups, would make q smaller than it was.
    scaled = groups * (population // groups * privacy.cohort // privacy.clients_per_round)
    level = tff_mf.guarantee(
        privacy.mechanism,
        privacy.rounds,
        deployed(sampling.kind, groups=groups, population=scaled, clients_per_round=privacy.cohort),
        noise_multiplier=privacy.noise_multiplier,
        grid=privacy.grid,
        dimension=privacy.dimension,
    ).at(delta=privacy.delta)
    claim = privacy.claim(population=scaled)
    return Amplified(
        epsilon=level.epsilon,
        population=scaled,
        level=level,
        claim=dataclasses.replace(
            claim,
            guarantee=None,
            amplified=level.epsilon,
            participation=_cohorts(sampling.kind, groups, None),
            clients_per_round=privacy.cohort,
        ),
    )


def deployed(kind: str, *, groups: int, population: int, clients_per_round: int) -> tff_mf.Sampling:
    """Returns the sampling of a deployment that draws its cohorts in secret, by the name of its kind.

    Args:
        kind: One of `ACCOUNTED`.
        groups: Groups of clients that take turns, or the min-sep of "b_min_sep"; 1 for "poisson".
        population: Clients that cohorts are drawn from.
        clients_per_round: Clients of a round on average.

    Example:
        >>> deployed("cyclic_poisson", groups=4, population=100, clients_per_round=5).schema(10)
        FixedEpoch(min_sep=4, max_participations=3)

    Raises:
        InputError: If an argument is out of range.
    """
    validation.one_of("sampling", kind, ACCOUNTED)
    return sampling_of(
        SamplingSettings(kind=kind),
        min_sep=groups,
        max_participations=1,
        population=population,
        clients_per_round=clients_per_round,
    )


def in_secret(
    mechanism: tff_mf.Mechanism,
    rounds: int,
    *,
    kind: str,
    groups: int,
    population: int,
    clients_per_round: int,
    noise_multiplier: float,
    delta: float,
    grid: tff_mf.Grid | None = None,
    dimension: int | None = None,
) -> Amplified:
    """Returns the amplified ε of a deployment that draws its cohorts in secret.

    With balls in bins, as many clients are put into bins as `clients_per_round` of them in each on average; the
    statement names their number, as a grid has room for their cohorts.

    Formal guarantee: as for the sampling of `deployed`. Poisson sampling needs the mechanism to have as many bands as
    there are groups; anything else is refused.

    Args:
        mechanism: The mechanism.
        rounds: Number of rounds n.
        kind: One of `ACCOUNTED`.
        groups: Groups of clients that take turns, or the min-sep of "b_min_sep"; 1 for "poisson".
        population: Clients that cohorts are drawn from.
        clients_per_round: Clients of a round on average.
        noise_multiplier: σ.
        delta: δ.
        grid: The grid on which updates are summed and noised, or `None` for floating point.
        dimension: The most parameters that the model may have, with a grid.

    Example:
        >>> setting = {"kind": "poisson", "groups": 1, "population": 1000, "clients_per_round": 10, "delta": 1e-6}
        >>> in_secret(tff_mf.Identity(), 100, **setting, noise_multiplier=1.0).statement[:64]
        'only if cohorts are drawn at random and in secret, and nobody ev'

    Raises:
        InputError: If an argument is out of range, or no theorem here covers mechanism and sampling.
    """
    if kind in KINDS:
        check_bands(mechanism, rounds, kind, groups)
    level = tff_mf.guarantee(
        mechanism,
        rounds,
        deployed(kind, groups=groups, population=population, clients_per_round=clients_per_round),
        noise_multiplier=noise_multiplier,
        grid=grid,
        dimension=dimension,
    ).at(delta=delta)
    claim = statements.Claim(
        guarantee=None,
        amplified=level.epsilon,
        delta=delta,
        rounds=rounds,
        participation=_cohorts(kind, groups, grid),
        population=population,
        cohort=clients_per_round,
        clients_per_round=clients_per_round,
    )
    drawn = groups * clients_per_round if kind == BALLS_IN_BINS else population
    return Amplified(epsilon=level.epsilon, population=drawn, claim=claim, level=level, simulated=False)


def bands_of(mechanism: tff_mf.Mechanism, rounds: int) -> int:
    """Returns how many bands C has as it runs, counted from its entries.

    Example:
        >>> bands_of(tff_mf.Identity(), 8)
        1
    """
    return bands_and_norm(mechanism, rounds)[0]


def check_bands(mechanism: tff_mf.Mechanism, rounds: int, kind: str, groups: int) -> None:
    """Raises unless a mechanism has as many bands as there are groups of clients.

    Raises:
        InputValueError: If it has not.
    """
    bands = bands_of(mechanism, rounds)
    if bands == groups:
        return
    if kind == "poisson":
        raise InputValueError(
            f"sampling='poisson' amplifies a mechanism with one band only, and this one has {bands}: take identity, or "
            "sampling='cyclic_poisson'."
        )
    raise InputValueError(
        f"sampling='cyclic_poisson' with {groups} groups amplifies a mechanism with {groups} bands, and this one has "
        f"{bands}: take min_sep={bands}, or a mechanism with {groups} bands."
    )


def _cohorts(kind: str, groups: int, grid: tff_mf.Grid | None) -> Bound:
    bits = grid.bits if kind == BALLS_IN_BINS and grid is not None else None
    return Bound(sampling=kind, groups=groups, grid_bits=bits)
