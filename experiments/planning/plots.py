"""Pictures for `tff-mf plan`: the loss and ρ at other min-seps, rounds and cohorts.

They are figures 1, 4, 5, 6, 9, 10 and 12 of McMahan et al. (2024), for the user's numbers.
"""

import dataclasses
import math
import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

import tff_mf
from tff_mf.sensitivities.losses import errors

from ..output import figures
from .deployment import Deployment, participations, schema
from .options import Option

_POINTS = 13


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Panel:
    """A panel: what is on its axes, and the curve of each mechanism by its name."""

    title: str
    label: str
    loss: str
    x: Sequence[int]
    ticks: Mapping[float, str]
    planned: int
    curves: dict[str, Any] = dataclasses.field(default_factory=dict)


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
    panels = _panels(deployment)
    searched = [option for option in options if option.mechanism is not None]
    for option in searched:
        for panel, curve in zip(panels, _curves(deployment, option, panels), strict=True):
            panel.curves[option.name] = curve
    with figures.picture(path, size=(figures.PAGE, 5.0), rows=2, columns=3) as (figure, grid):
        for axes, panel in zip(grid.flat, panels, strict=True):
            _draw(axes, panel)
        named = figures.setting(deployment.rounds, deployment.participation)
        figure.suptitle(f"{named}; {deployment.clients_per_round:,} of {deployment.population:,} clients a round")
        handles, labels = grid[0, 0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=4)


def _panels(deployment: Deployment) -> list[_Panel]:
    n, b, k = deployment.rounds, deployment.resolved_min_sep, deployment.participation.max_participations
    cohort = deployment.clients_per_round
    widths = _grid(max(1, cohort // 8), min(deployment.population, 8 * cohort))
    min_sep: dict[str, Any] = {
        "label": "min-sep (rounds)",
        "x": _grid(max(1, b // 4), min(n, 4 * b)),
        "ticks": {b / 4: "b/4", b / 2: "b/2", b: f"b = {b:,}", 2 * b: "2b", 4 * b: "4b"},
        "planned": b,
    }
    rounds: dict[str, Any] = {
        "label": "rounds",
        "x": _grid(max(2, n // 4), 2 * n),
        "ticks": {n / 4: "n/4", n / 2: "n/2", n: f"n = {n:,}", 2 * n: "2n"},
        "planned": n,
    }
    cohorts: dict[str, Any] = {
        "label": "clients a round",
        "x": widths,
        "ticks": {each: f"{each:,}" for each in (widths[0], cohort, widths[-1])},
        "planned": cohort,
    }
    return [
        _Panel(title=f"k ≤ {k}", loss="RmsLoss", **min_sep),
        _Panel(title="k as large as fits", loss="RmsLoss", **min_sep),
        _Panel(title=f"b = {b:,}, k as large as fits", loss="RmsLoss", **rounds),
        _Panel(title=f"k ≤ {k}", loss="MaxLoss", **min_sep),
        _Panel(title="noise in proportion to cohort", loss="ρ (zCDP)", **cohorts),
        _Panel(title=f"planned noise, b = {b:,}", loss="ρ (zCDP)", **rounds),
    ]


def _curves(deployment: Deployment, option: Option, panels: Sequence[_Panel]) -> list[Any]:
    mechanism, sigma = option.mechanism, option.figures["noise_multiplier"]
    assert mechanism is not None
    n, b, k = deployment.rounds, deployment.resolved_min_sep, deployment.participation.max_participations
    min_seps, lengths, cohorts = panels[0].x, panels[2].x, panels[4].x
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


def _draw(axes: Any, panel: _Panel) -> None:
    for index, (name, style) in enumerate(figures.styles(panel.curves).items()):
        markers = figures.apart(index, len(panel.x), len(panel.curves))
        axes.plot(panel.x, panel.curves[name], label=name, markevery=markers, **style.line())
    axes.axvline(panel.planned, color="black", linewidth=0.6)
    axes.set(title=panel.title, xlabel=panel.label, ylabel=panel.loss, xscale="log", yscale="log")
    low, high = panel.x[0], panel.x[-1]
    figures.ticks_at(axes.xaxis, {at: label for at, label in panel.ticks.items() if low <= at <= high})
    figures.plain_ticks(axes.yaxis)


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
