"""Pictures for `tff-mf plan`: what other separations, rounds and cohorts would come to.

They are figures 1, 4, 5, 6, 9, 10 and 12 of McMahan et al. (2024), for the user's numbers.
"""

import math
import pathlib

import numpy as np

import tff_mf
from tff_mf.losses import errors

from . import plots
from .deployment import Deployment, participations, schema
from .planning import Option
from .plots import pyplot

_POINTS = 13


def draw(deployment: Deployment, options: list[Option], path: pathlib.Path) -> None:
    """Writes a PNG with six panels, a line a mechanism.

    Args:
        deployment: What is known.
        options: The mechanisms; those that were not searched for are left out.
        path: Where the picture goes.

    Raises:
        InputValueError: If the file cannot be written.
    """
    n, b, k = deployment.rounds, deployment.separation, deployment.participation.limit
    separations = _grid(max(1, b // 4), min(n, 4 * b))
    lengths = _grid(max(2, n // 4), 2 * n)
    cohorts = _grid(
        max(1, deployment.clients_per_round // 8), min(deployment.population, 8 * deployment.clients_per_round)
    )
    figure, axes = pyplot.subplots(2, 3, figsize=(16, 9), layout="constrained")
    for option in options:
        if option.mechanism is None:
            continue
        mechanism, sigma = option.mechanism, option.figures["noise_multiplier"]
        error = errors(mechanism, n)
        fixed = [_sensitivity(mechanism, n, each, min(k, participations(n, each))) for each in separations]
        often = [_sensitivity(mechanism, n, each, participations(n, each)) for each in separations]
        longer = [_rms_loss(mechanism, each, b) for each in lengths]
        rho_of_rounds = [_rho(mechanism, each, b, sigma) for each in lengths]
        # Noise in proportion to the cohort leaves the averaged update as it is.
        rho_of_cohort = [
            _rho(
                mechanism, n, min(n, max(1, deployment.population // each)), sigma * each / deployment.clients_per_round
            )
            for each in cohorts
        ]
        for axis, x, y in (
            (axes[0][0], separations, np.array(fixed) * error.rms),
            (axes[0][1], separations, np.array(often) * error.rms),
            (axes[0][2], lengths, longer),
            (axes[1][0], separations, np.array(fixed) * error.max),
            (axes[1][1], cohorts, rho_of_cohort),
            (axes[1][2], lengths, rho_of_rounds),
        ):
            axis.plot(x, y, marker=".", linewidth=1, label=option.name)
    for axis, title, label in (
        (axes[0][0], f"RmsLoss, at most {k} participations", "min-sep b"),
        (axes[0][1], "RmsLoss, as many participations as fit", "min-sep b"),
        (axes[0][2], f"RmsLoss of longer and shorter runs, b = {b}", "rounds n"),
        (axes[1][0], f"MaxLoss, at most {k} participations", "min-sep b"),
        (axes[1][1], "ρ, noise in proportion to the cohort", "clients per round"),
        (axes[1][2], f"ρ at the planned noise, b = {b}", "rounds n"),
    ):
        axis.set(title=title, xlabel=label, xscale="log", yscale="log")
        # The labels that a logarithmic axis chooses run into each other.
        shown = separations if label.startswith("min") else cohorts if label.startswith("clients") else lengths
        shown = shown[:: max(1, len(shown) // 4)]
        axis.set_xticks(shown, [str(each) for each in shown])
        axis.minorticks_off()
        axis.grid(alpha=0.3, which="both")
    axes[0][0].legend()
    plots.save(figure, path)


def _grid(low: int, high: int) -> list[int]:
    return sorted({round(value) for value in np.geomspace(low, high, _POINTS)})


def _defined(mechanism: tff_mf.Mechanism, rounds: int) -> bool:
    return mechanism.max_rounds is None or rounds <= mechanism.max_rounds


def _sensitivity(mechanism: tff_mf.Mechanism, rounds: int, separation: int, limit: int) -> float:
    return tff_mf.sensitivity(mechanism.as_run(), rounds, schema(separation, limit))


def _rms_loss(mechanism: tff_mf.Mechanism, rounds: int, separation: int) -> float:
    if not _defined(mechanism, rounds):
        return math.nan
    return tff_mf.rms_loss(mechanism, rounds, schema(separation, participations(rounds, separation)))


def _rho(mechanism: tff_mf.Mechanism, rounds: int, separation: int, sigma: float) -> float:
    if not _defined(mechanism, rounds):
        return math.nan
    limit = participations(rounds, separation)
    return tff_mf.zcdp_rho(mechanism, rounds, schema(separation, limit), noise_multiplier=sigma)
