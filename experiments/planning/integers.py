"""What the integers of a grid cost at the numbers of a deployment, before anything is run."""

import dataclasses
import math
from typing import Any

import tff_mf
from tff_mf.base.errors import InputError
from tff_mf.numerics import digits
from tff_mf.planning.options import Option

from ..runs.derived import AUTO, PAPERS_DIMENSION, grid_of
from ..runs.statements import unbounded
from .deployment import Deployment


def of_deployment(
    deployment: Deployment, *, grid: int | str = AUTO, dimension: int | None = None
) -> tuple[tff_mf.Grid | None, int]:
    """Returns the grid that a run of a deployment would take, if any, and its number of parameters.

    Args:
        deployment: The estimates.
        grid: Bits of the grid, "auto", or "none" for floating point.
        dimension: Number of model parameters d; if not given, as in the papers' model.
    """
    parameters = PAPERS_DIMENSION if dimension is None else dimension
    return grid_of(grid, dimension=parameters, cohort=deployment.clients_per_round), parameters


def of_option(
    deployment: Deployment,
    option: Option,
    *,
    grid: int | str = AUTO,
    dimension: int | None = None,
    states: bool = True,
    amplified: bool = False,
) -> dict[str, Any]:
    """Returns, for JSON, the grid of a mechanism of `tff-mf plan`, its cost at the planned noise, and a line on it.

    Formal guarantee: `epsilon` comes from `tff_mf.guarantee` with the grid.
    """
    assert option.mechanism is not None
    chosen, parameters = of_deployment(deployment, grid=grid, dimension=dimension)
    if chosen is None:
        return {
            "grid": None,
            "line": "floats; figures hold for real numbers only, and --grid auto closes that gap",
        }
    run, numbers = (option.mechanism, option.figures["noise_multiplier"]), {"grid": chosen, "dimension": parameters}
    found: dict[str, Any] = {"grid": dataclasses.asdict(chosen), "dimension": parameters}
    on_grid = f"integers of {chosen.bits} bits"
    try:
        charge = deployment.setting.charge(*run, **numbers)
        guarantee = deployment.setting.guarantee(*run, **numbers)
    except InputError as error:
        return found | {"line": f"{on_grid}: {error}"}
    if charge is None:
        return found | {"line": f"{on_grid}, without noise"}
    epsilon = guarantee.epsilon(deployment.delta)
    total = ""
    if math.isinf(epsilon):
        total = f"no ε can be stated with what they cost: {unbounded(guarantee, deployment.delta).text}; "
    elif states:
        total = f"with what they cost, ε is {digits.upwards(epsilon)}; "
    line = (
        f"{on_grid}, for {parameters:,} parameters{' (--dimension)' if dimension is None else ''}: {total}"
        f"no other figure here{' without amplification' if amplified else ''} counts that, and train --epsilon does"
    )
    return found | {"mu": charge.mu, "tail": charge.tail, "epsilon": epsilon if states else None, "line": line}


def included(grid: tff_mf.Grid | None) -> str:
    """Returns whether amplified figures include what the integers of a grid cost, in words.

    Example:
        >>> included(None)
        'what the integers of a grid cost is left out'
    """
    if grid is None:
        return "what the integers of a grid cost is left out"
    return f"what integers of {grid.bits} bits cost is included"
