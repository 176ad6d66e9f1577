"""Amplification by sampling: the ε of a deployment that keeps its cohorts secret."""

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

import tff_mf
from tff_mf.base.errors import InputValueError

from ..sampling.settings import SamplingSettings
from . import statements
from .words import Bound

# Those of which a deployment is simulated by a run whose cohorts follow from a seed.
POISSON = ("poisson", "cyclic-poisson")
# How much larger than computed the ε of a run with secret cohorts is stated, so that whoever computes it again, on
# another machine or with other samples, finds no larger one.
_MARGIN, _MARGIN_BY_SAMPLES = 1e-6, 0.02


@dataclasses.dataclass(frozen=True, kw_only=True)
class Amplified:
    """The ε of a deployment that samples as the run did, and keeps its cohorts secret.

    Attributes:
        epsilon: ε with amplification by sampling, for the cohort that the run stands for.
        population: Clients of such a deployment that cohorts are drawn from, if known.
        claim: The content of its one-line statement.
        level: ε with the bound that it comes from.
        simulated: Whether a run with known cohorts simulates the deployment.
    """

    epsilon: float
    population: int | None
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
        else "only if cohorts are drawn at random and in secret, and nobody ever learns them"
    )
    drawn = claim["population"] if population is None else population
    comma = "" if simulated else ","
    clients = "" if drawn is None else f"{comma} from {drawn} clients"
    return f"{condition}{clients}, with amplification by sampling: {statements.line(claim)}"


def amplified(privacy: tff_mf.Plan, sampling: SamplingSettings | None, population: int) -> Amplified | None:
    """Returns what amplification by sampling would give, or None if no theorem here covers the run.

    Formal guarantee: as for `tff_mf.CyclicPoisson`, for groups enlarged in proportion to the
    cohort, rounded down: a client of such a deployment takes part with the probability of one of this run, or with a
    larger one. It covers Poisson sampling of a mechanism with one band, and cyclic Poisson sampling of one with at most
    as many bands as groups; neither restarts of the noise, nor the counts of adaptive clipping. What a grid costs is
    included.

    Args:
        privacy: The mechanism and its noise.
        sampling: How cohorts were drawn.
        population: Clients they were drawn from.

    Example:
        >>> import tff_mf
        >>> plan = tff_mf.plan(mechanism=tff_mf.Identity(), rounds=100, delta=1e-6, clients_per_round=10,
        ...                     sampling=tff_mf.MinSep(min_sep=1, max_participations=100), noise_multiplier=1.0)
        >>> found = amplified(plan, SamplingSettings(sampling="poisson"), 1000)
        >>> f"{found.epsilon:.2f}, {plan.epsilon:.2f} without"
        '0.95, 96.72 without'
    """
    if sampling is None or sampling.sampling not in POISSON:
        return None
    groups = sampling.groups or 1
    # By the run's own groups, with the clients left over that never take part: dividing the whole population by
    # clients per round first, and then by groups, would make q smaller than it was.
    scaled = groups * (population // groups * privacy.cohort // privacy.clients_per_round)
    deployed = dataclasses.replace(privacy, clients_per_round=privacy.cohort)
    try:
        return dataclasses.replace(own(deployed, sampling, scaled), simulated=True)
    except InputValueError:
        return None


def own(privacy: tff_mf.Plan, sampling: SamplingSettings | None, population: int | None) -> Amplified:
    """Returns the amplified ε of a run whose own cohorts are secret.

    Formal guarantee: as for the sampling, if cohorts were drawn by it with a secret of this run alone and nobody ever
    learns one, its size, or what depends on it; for one client. It is never smaller than `tff_mf.guarantee` finds:
    where that is a certificate by samples, by 2 %.

    Args:
        privacy: The mechanism and its noise.
        sampling: How cohorts are drawn.
        population: Clients they are drawn from.

    Raises:
        InputError: If no theorem here covers the run.
    """
    if sampling is None or not sampling.is_secret or sampling.schema(privacy.rounds) != privacy.participation:
        raise InputValueError(f"sampling={sampling!r} has no amplified ε for {privacy.participation}.")
    check_own(restart_every=privacy.restart_every, cohort=privacy.cohort, clients=privacy.clients_per_round)
    for name, given in (
        ("adaptive_count_stddev", privacy.adaptive_count_stddev is not None),
        ("insecure_seed", privacy.insecure),
        ("noise_multiplier", not privacy.noise_multiplier),
    ):
        if given:
            raise InputValueError(
                f"{name}={getattr(privacy, name)!r} has no amplified ε: it does not go with secret_cohorts."
            )
    found = in_secret(
        privacy.mechanism,
        privacy.rounds,
        sampling,
        population=population,
        clients_per_round=privacy.clients_per_round,
        noise_multiplier=privacy.noise_multiplier,
        delta=privacy.delta,
        grid=privacy.grid,
        dimension=privacy.dimension,
    )
    if math.isinf(found.epsilon):
        raise InputValueError(
            f"noise_multiplier={privacy.noise_multiplier!r} leaves no finite ε at delta={privacy.delta!r}: take more."
        )
    return found


def check_own(*, restart_every: int | None, cohort: int | None, clients: int) -> None:
    """Raises if a run cannot have secret cohorts of its own: they are what it trains on, and nothing may restart.

    Raises:
        InputValueError: If it cannot.
    """
    if restart_every is not None:
        raise InputValueError(
            f"restart_every={restart_every!r} does not go with secret_cohorts: no theorem here covers both; leave one "
            "out."
        )
    if cohort not in (None, clients):
        raise InputValueError(
            f"cohort={cohort!r} does not go with secret_cohorts, whose ε is that of the clients_per_round={clients} "
            "that train: leave one out."
        )


def stated_epsilon(level: tff_mf.Level) -> float:
    """Returns the ε that a run with secret cohorts states."""
    return level.epsilon * (1 + (_MARGIN_BY_SAMPLES if level.bound == "certified" else _MARGIN))


def own_claim(claim: statements.Claim, epsilon: float, sampling: SamplingSettings) -> statements.Claim:
    """Returns the claim of a run whose own cohorts are secret, from the one for cohorts that are known.

    Args:
        claim: The claim for known cohorts.
        epsilon: The amplified ε.
        sampling: How cohorts are drawn.
    """
    if (claim.clients_of_one_person or 1) > 1:
        # No theorem here is about several clients in groups of their own.
        return dataclasses.replace(claim, participation=statements.bound_to(sampling.schema(claim.rounds)))
    return dataclasses.replace(claim, guarantee=None, amplified=epsilon, participation=Bound(**_drawn(sampling)))


def in_secret(
    mechanism: tff_mf.Mechanism,
    rounds: int,
    sampling: SamplingSettings,
    *,
    population: int | None,
    clients_per_round: int | None,
    noise_multiplier: float,
    delta: float,
    grid: tff_mf.Grid | None = None,
    dimension: int | None = None,
) -> Amplified:
    """Returns the amplified ε of a deployment that draws its cohorts in secret.

    Formal guarantee: as for the sampling itself. A theorem that does not cover the mechanism refuses it.

    Args:
        mechanism: The mechanism.
        rounds: Number of rounds n.
        sampling: How cohorts are drawn: one of `sampling.settings.SECRET`.
        population: Clients that cohorts are drawn from; `None` if the sampling need not know.
        clients_per_round: Clients of a round on average; `None` likewise.
        noise_multiplier: σ.
        delta: δ.
        grid: The grid on which updates are summed and noised, or `None` for floating point.
        dimension: The most parameters that the model may have, with a grid.

    Example:
        >>> setting = {"population": 1000, "clients_per_round": 10, "delta": 1e-6, "noise_multiplier": 1.0}
        >>> in_secret(tff_mf.Identity(), 100, SamplingSettings(sampling="poisson"), **setting).statement[:64]
        'only if cohorts are drawn at random and in secret, and nobody ev'

    Raises:
        InputError: If an argument is out of range, or no theorem here covers mechanism and sampling.
    """
    drawn_by = sampling.drawn_by(population=population, clients_per_round=clients_per_round)
    level = tff_mf.guarantee(
        mechanism, rounds, drawn_by, noise_multiplier=noise_multiplier, grid=grid, dimension=dimension
    ).at(delta=delta)
    claim = statements.Claim(
        guarantee=None,
        amplified=level.epsilon,
        delta=delta,
        rounds=rounds,
        participation=_cohorts(sampling, grid),
        population=population,
        cohort=clients_per_round or 1,
        clients_per_round=clients_per_round or 1,
    )
    # Of more clients, some would have to be left out, or cohorts would be larger than the room of a sum on a grid.
    most = None
    if clients_per_round is not None and isinstance(drawn_by, tff_mf.BallsInBins):
        most = drawn_by.groups * clients_per_round
    elif clients_per_round is not None and isinstance(drawn_by, tff_mf.RandomAllocation):
        most = clients_per_round * rounds // drawn_by.participations
    drawn = min((each for each in (population, most) if each is not None), default=None)
    return Amplified(epsilon=level.epsilon, population=drawn, claim=claim, level=level, simulated=False)


def _cohorts(sampling: SamplingSettings, grid: tff_mf.Grid | None) -> Bound:
    return Bound(**_drawn(sampling), grid_bits=0 if grid is None else grid.bits)


def _drawn(sampling: SamplingSettings) -> dict[str, Any]:
    return {"sampling": sampling.sampling, "parameters": dict(sampling.parameters)}
