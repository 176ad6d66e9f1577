"""The estimates a deployment is planned with, and cases in which they are wrong."""

import dataclasses
from typing import Any

import tff_mf
from tff_mf.base import validation
from tff_mf.base.errors import InputValueError
from tff_mf.planning import MechanismSetting, check_delta
from tff_mf.planning import compare as compared
from tff_mf.planning.compare import Option, participations, schema, widest
from tff_mf.problem.participation import check_capacity

from ..output import progress
from ..runs import statements
from ..runs.derived import NONE, PAPERS_DIMENSION, grid_of


@dataclasses.dataclass(frozen=True, kw_only=True)
class Deployment:
    """The estimates that a deployment is planned with. Made by `Deployment.of`.

    Attributes:
        setting: Rounds, participation, restarts, adjacency and workload: what mechanisms are compared in.
        population: Clients N that can take part.
        clients_per_round: Clients of a round.
        delta: δ.
        min_sep: b; of clients that come once too, of whose schema it is no part.
        objective: The loss that mechanisms are compared by, "rms" or "max".
        grid: Bits of the grid, "auto", or "none" for floating point: with the cohort, it gives the setting's grid.
    """

    setting: MechanismSetting
    population: int
    clients_per_round: int
    delta: float
    min_sep: int
    objective: str = "rms"
    grid: int | str = NONE

    @classmethod
    def of(
        cls,
        *,
        population: int,
        clients_per_round: int,
        rounds: int,
        delta: float,
        min_sep: int | None = None,
        max_participations: int | None = None,
        kind: type[tff_mf.MinSep] | type[tff_mf.FixedEpoch] = tff_mf.MinSep,
        objective: str = "rms",
        grid: int | str = NONE,
        dimension: int = PAPERS_DIMENSION,
        **more: Any,
    ) -> "Deployment":
        """Returns the deployment of some estimates.

        Clients come as far apart and as often as the population allows, unless `min_sep` or `max_participations` is
        given; in the same place of every epoch of b rounds if `kind` is `tff_mf.FixedEpoch`. On a grid, figures
        include what its integers cost for `dimension` model parameters. Further arguments are fields of
        `MechanismSetting`.

        Example:
            >>> found = Deployment.of(population=342_477, clients_per_round=1000, rounds=2052, delta=1e-6)
            >>> found.setting.participation
            MinSep(min_sep=342, max_participations=6)
        """
        widest(population, clients_per_round=clients_per_round, rounds=rounds)
        check_delta(validation.open_unit("delta", delta), population)
        most_apart = population // clients_per_round
        apart = most_apart if min_sep is None else validation.whole("min_sep", min_sep)
        if apart > most_apart:
            raise InputValueError(
                f"min_sep={apart} needs {apart * clients_per_round} clients, but population={population}; at most "
                f"min_sep={most_apart} fits."
            )
        apart = min(apart, rounds)
        most = participations(rounds, apart)
        if max_participations is not None:
            most = min(validation.whole("max_participations", max_participations), most)
        participation = schema(apart, most, kind=kind)
        check_capacity(participation, population, clients_per_round, rounds)
        validation.one_of("objective", objective, ("rms", "max"))
        chosen = grid_of(grid, dimension=validation.whole("dimension", dimension), cohort=clients_per_round)
        return cls(
            setting=MechanismSetting(
                rounds=rounds,
                participation=participation,
                grid=chosen,
                dimension=None if chosen is None else dimension,
                **more,
            ),
            population=population,
            clients_per_round=clients_per_round,
            delta=delta,
            min_sep=apart,
            objective=objective,
            grid=grid,
        )


def options(deployment: Deployment, **more: Any) -> list[Option]:
    """Returns every mechanism at the numbers of a deployment, the one with the least loss first."""
    with progress.bar("plan", None) as advance:
        return compared.options(
            deployment.setting,
            delta=deployment.delta,
            objective=deployment.objective,
            min_sep=deployment.min_sep,
            progress=lambda name: advance(1, name),
            **more,
        )


def claim(deployment: Deployment, option: Option) -> statements.Claim:
    """Returns the content of the one-line statement of a mechanism at the numbers of a deployment."""
    if option.mechanism is None:
        raise InputValueError(f"option={option.name!r} was not optimized: {option.note}.")
    setting = deployment.setting
    found = setting.guarantee(option.mechanism, option.figures["noise_multiplier"])
    return statements.of_setting(
        setting,
        found,
        delta=deployment.delta,
        population=deployment.population,
        clients_per_round=deployment.clients_per_round,
    )
