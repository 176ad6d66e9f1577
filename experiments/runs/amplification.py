"""Amplification by sampling: the ε of a deployment that keeps its cohorts secret."""

import dataclasses
import math

import tff_mf
from tff_mf.base.errors import InputValueError

from ..sampling.settings import SamplingSettings
from . import statements

# How much larger than computed the ε of a run with secret cohorts is stated, so that whoever computes it again, on
# another machine or with other samples, finds no larger one.
_MARGIN, _MARGIN_BY_SAMPLES = 1e-6, 0.02


def own(privacy: tff_mf.Plan, sampling: SamplingSettings | None, population: int | None) -> tff_mf.Level:
    """Returns the amplified ε of a run whose own cohorts are secret, with the bound that it comes from.

    Formal guarantee: as for a `tff_mf.Plan` with `secret_cohorts`: if cohorts are drawn by the sampling with a secret
    of this run alone, and nobody ever learns one, its size, or what depends on it; for one client.
    """
    if sampling is None or not sampling.is_secret or sampling.schema(privacy.rounds) != privacy.participation:
        raise InputValueError(f"sampling={sampling!r} has no amplified ε for {privacy.participation}.")
    drawn_by = sampling.drawn_by(population=population, clients_per_round=privacy.clients_per_round)
    plan = dataclasses.replace(privacy, sampling=drawn_by, population=None, secret_cohorts=True)
    level = plan.guarantee.at(delta=plan.delta) if plan.noise_multiplier else None
    if level is None or math.isinf(level.epsilon):
        raise InputValueError(
            f"noise_multiplier={plan.noise_multiplier!r} leaves no finite ε at delta={plan.delta!r}: take more."
        )
    return level


def stated_epsilon(level: tff_mf.Level) -> float:
    """Returns the ε that a run with secret cohorts states."""
    return level.epsilon * (1 + (_MARGIN_BY_SAMPLES if level.bound == "certified" else _MARGIN))


def statement(
    level: tff_mf.Level,
    sampling: SamplingSettings,
    *,
    rounds: int,
    population: int | None,
    clients_per_round: int | None,
    grid: tff_mf.Grid | None = None,
) -> str:
    """Returns the amplified ε of a deployment in one line, with the condition that its cohorts stay secret.

    `population` and `clients_per_round` are `None` if the sampling, one of `sampling.settings.SECRET`, need not know.

    Example:
        >>> poisson, cohorts = SamplingSettings(sampling="poisson"), {"population": 1000, "clients_per_round": 10}
        >>> run = tff_mf.guarantee(tff_mf.Identity(), 100, poisson.drawn_by(**cohorts), noise_multiplier=1.0)
        >>> statement(run.at(delta=1e-6), poisson, rounds=100, **cohorts)[:64]
        'only if cohorts are drawn at random and in secret, and nobody ev'
    """
    numbers = "real numbers and not the integers of a grid" if grid is None else f"integers of {grid.bits} bits"
    claim = statements.claim(
        None,
        amplified=level.epsilon,
        delta=level.delta,
        rounds=rounds,
        participation=f"{drawn(sampling)}, {numbers}",
        population=population,
        cohort=clients_per_round or 1,
        clients_per_round=clients_per_round or 1,
        grid=grid is not None,
    )
    most = population
    if clients_per_round is not None and sampling.sampling == "balls-in-bins":
        # Of more clients, some would have to be left out, or cohorts would be larger than the room of a sum on a grid.
        groups = (sampling.groups or 1) * clients_per_round
        most = groups if population is None else min(population, groups)
    clients = "" if most is None else f", from {most} clients"
    return (
        f"only if cohorts are drawn at random and in secret, and nobody ever learns them{clients}, with amplification "
        f"by sampling: {statements.line(claim)}"
    )


def drawn(sampling: SamplingSettings) -> str:
    """Returns how secret cohorts are drawn, in words."""
    listed = ", ".join(f"{name}={value}" for name, value in sampling.parameters.items())
    return f"cohorts by {sampling.sampling} sampling{f' ({listed})' if listed else ''} that nobody knows"
