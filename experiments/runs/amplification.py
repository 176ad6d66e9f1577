"""Amplification by sampling: the ε of a deployment that keeps its cohorts secret."""

import dataclasses
import math
from typing import Any

import tff_mf
from tff_mf.base.errors import InputValueError

from ..sampling.settings import SamplingSettings
from . import statements
from .words import Bound

# How much larger than computed the ε of a run with secret cohorts is stated, so that whoever computes it again, on
# another machine or with other samples, finds no larger one.
_MARGIN, _MARGIN_BY_SAMPLES = 1e-6, 0.02


@dataclasses.dataclass(frozen=True, kw_only=True)
class Amplified:
    """The ε of a deployment that keeps its cohorts secret.

    Attributes:
        epsilon: ε with amplification by sampling, for the cohort that the run stands for.
        population: Clients of such a deployment that cohorts are drawn from, if known.
        claim: The content of its one-line statement.
        level: ε with the bound that it comes from.
    """

    epsilon: float
    population: int | None
    claim: statements.Claim
    level: tff_mf.Level

    @property
    def statement(self) -> str:
        """The guarantee in one line, with the condition that cohorts stay secret."""
        drawn = self.claim.population if self.population is None else self.population
        clients = "" if drawn is None else f", from {drawn} clients"
        return (
            f"only if cohorts are drawn at random and in secret, and nobody ever learns them{clients}, with "
            f"amplification by sampling: {statements.one_line(self.claim)}"
        )


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


def of_own_cohorts(
    epsilon: float, sampling: SamplingSettings, *, rounds: int, clients_of_one_person: int | None
) -> dict[str, Any]:
    """Returns the arguments of `statements.claim` in which a run with secret cohorts differs from one without.

    Args:
        epsilon: The amplified ε.
        sampling: How cohorts are drawn.
        rounds: Number of rounds n.
        clients_of_one_person: The most clients that one person can have, if known.
    """
    if (clients_of_one_person or 1) > 1:
        # No theorem here is about several clients in groups of their own.
        return {"participation": statements.bound_to(sampling.schema(rounds))}
    return {"guarantee": None, "amplified": epsilon, "participation": Bound(**_drawn(sampling))}


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
    claim = statements.claim(
        None,
        amplified=level.epsilon,
        delta=delta,
        rounds=rounds,
        participation=Bound(**_drawn(sampling), grid_bits=0 if grid is None else grid.bits),
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
    return Amplified(epsilon=level.epsilon, population=drawn, claim=claim, level=level)


def _drawn(sampling: SamplingSettings) -> dict[str, Any]:
    return {"sampling": sampling.sampling, "parameters": dict(sampling.parameters)}
