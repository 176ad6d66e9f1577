"""Pictures for `tff-mf plan`: the loss and ρ at other min-seps, rounds and cohorts.

They are figures 1, 4, 5, 6, 9, 10 and 12 of McMahan et al. (2024), for the user's numbers.
"""

import math
import os
from collections.abc import Sequence
from typing import Any

import numpy as np

import tff_mf
from tff_mf.sensitivities.losses import errors

from ..output import figures
from ..output.figures import Axis, Chart, Curve
from .deployment import Deployment, participations, schema
from .options import Option

_POINTS = 13


def draw(deployment: Deployment, options: list[Option], path: str | os.PathLike) -> None:
    """Draws six panels, a line a mechanism.

    Args:
        deployment: What is known.
        options: The mechanisms; those that were not optimized are left out.
        path: Where the picture goes; its ending is the format.

    Raises:
        InputTypeError: If `path` is not a path.
        InputValueError: If the file cannot be written.
    """
    searched = [option for option in options if option.mechanism is not None]
    with figures.picture(path, size=(figures.PAGE, 5.0), rows=2, columns=3) as (drawn, grid):
        for axes, (chart, planned) in zip(grid.flat, _charts(deployment, searched), strict=True):
            figures.draw(axes, chart)
            axes.axvline(planned, color="black", linewidth=0.6)
            axes.set(title=chart.title)
        named = figures.setting(deployment.rounds, deployment.participation)
        drawn.suptitle(f"{named}; {deployment.clients_per_round:,} of {deployment.population:,} clients a round")
        figures.legend_below(drawn, grid[0, :1], 4)


def _charts(deployment: Deployment, options: Sequence[Option]) -> list[tuple[Chart, int]]:
    """Returns each chart, with the planned number on its horizontal axis."""
    n, b, k = deployment.rounds, deployment.resolved_min_sep, deployment.participation.max_participations
    cohort = deployment.clients_per_round
    min_seps, lengths = _grid(max(1, b // 4), min(n, 4 * b)), _grid(max(2, n // 4), 2 * n)
    cohorts = _grid(max(1, cohort // 8), min(deployment.population, 8 * cohort))
    of_b = {b / 4: "b/4", b / 2: "b/2", b: f"b = {b:,}", 2 * b: "2b", 4 * b: "4b"}
    of_n = {n / 4: "n/4", n / 2: "n/2", n: f"n = {n:,}", 2 * n: "2n"}
    of_cohort = {each: f"{each:,}" for each in (cohorts[0], cohort, cohorts[-1])}
    values = {option.name: _values(deployment, option, min_seps, lengths, cohorts) for option in options}
    panels = [
        (f"k ≤ {k}", "RmsLoss", "min-sep (rounds)", min_seps, of_b, b),
        ("k as large as fits", "RmsLoss", "min-sep (rounds)", min_seps, of_b, b),
        (f"b = {b:,}, k as large as fits", "RmsLoss", "rounds", lengths, of_n, n),
        (f"k ≤ {k}", "MaxLoss", "min-sep (rounds)", min_seps, of_b, b),
        ("noise in proportion to cohort", "ρ (zCDP)", "clients a round", cohorts, of_cohort, cohort),
        (f"planned noise, b = {b:,}", "ρ (zCDP)", "rounds", lengths, of_n, n),
    ]
    return [
        (
            Chart(
                name=f"plan-{index}",
                title=title,
                x=Axis(label=label, log=True, ticks={at: name for at, name in ticks.items() if x[0] <= at <= x[-1]}),
                y=Axis(label=loss, log=True),
                curves=[Curve(name=name, points=list(zip(x, own[index], strict=True))) for name, own in values.items()],
            ),
            planned,
        )
        for index, (title, loss, label, x, ticks, planned) in enumerate(panels)
    ]


def _values(
    deployment: Deployment,
    option: Option,
    min_seps: Sequence[int],
    lengths: Sequence[int],
    cohorts: Sequence[int],
) -> list[Any]:
    """Returns the values of a mechanism in each panel."""
    mechanism, sigma = option.mechanism, option.figures["noise_multiplier"]
    assert mechanism is not None
    n, b, k = deployment.rounds, deployment.resolved_min_sep, deployment.participation.max_participations
    error = errors(mechanism, n)
    fixed = np.array([_sensitivity(mechanism, n, each, min(k, participations(n, each))) for each in min_seps])
    often = np.array([_sensitivity(mechanism, n, each, participations(n, each)) for each in min_seps])
    # Noise in proportion to the cohort leaves the averaged update as it is.
    of_cohort = [
        _rho(mechanism, n, min(n, max(1, deployment.population // each)), sigma * each / deployment.clients_per_round)
        for each in cohorts
    ]
    return [
        fixed * error.rms,
        often * error.rms,
        [_rms_loss(mechanism, each, b) for each in lengths],
        fixed * error.max,
        of_cohort,
        [_rho(mechanism, each, b, sigma) for each in lengths],
    ]


def _grid(low: int, high: int) -> list[int]:
    return sorted({round(value) for value in np.geomspace(low, high, _POINTS)})


def _defined(mechanism: tff_mf.Mechanism, rounds: int) -> bool:
    return mechanism.max_rounds is None or rounds <= mechanism.max_rounds


def _sensitivity(mechanism: tff_mf.Mechanism, rounds: int, min_sep: int, max_participations: int) -> float:
    return tff_mf.sensitivity(mechanism.cast_to_float32(), rounds, schema(min_sep, max_participations))


def _rms_loss(mechanism: tff_mf.Mechanism, rounds: int, min_sep: int) -> float:
    if not _defined(mechanism, rounds):
        return math.nan
    return tff_mf.rms_loss(mechanism, rounds, schema(min_sep, participations(rounds, min_sep)))


def _rho(mechanism: tff_mf.Mechanism, rounds: int, min_sep: int, sigma: float) -> float:
    if not _defined(mechanism, rounds):
        return math.nan
    often = schema(min_sep, participations(rounds, min_sep))
    return tff_mf.zcdp_rho(mechanism, rounds, often, noise_multiplier=sigma)
