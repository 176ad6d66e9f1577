"""Checks of what a privacy plan is made from, before anything is computed."""

import tff_mf
from tff_mf import grids, validation
from tff_mf.errors import InputValueError


def check_level(*, epsilon: float | None, noise_multiplier: float | None, delta: float) -> None:
    """Raises unless exactly one of ε and σ is given, and all numbers are in range.

    Raises:
        InputTypeError: If an argument is of the wrong type.
        InputValueError: If one is out of range, or not exactly one of `epsilon` and `noise_multiplier` is given.
    """
    if (epsilon is None) == (noise_multiplier is None):
        raise InputValueError("Give either epsilon=ε or noise_multiplier=σ, and not both.")
    validation.open_unit("delta", delta)
    if epsilon is not None:
        validation.positive("epsilon", epsilon)
    if noise_multiplier is not None:
        validation.nonnegative("noise_multiplier", noise_multiplier)


def check_grid(grid: tff_mf.Grid | None, dimension: int | None) -> None:
    """Raises unless grid and number of parameters are given together.

    Raises:
        InputTypeError: If an argument is of the wrong type.
        InputValueError: If only one is given, or the number is out of range.
    """
    grids.check(grid)
    if (grid is None) != (dimension is None):
        raise InputValueError(
            f"grid={grid!r} and dimension={dimension!r} must be given together: what a grid costs depends on both."
        )
    if dimension is not None:
        validation.whole("dimension", dimension)


def checked_cohort(clients_per_round: int, cohort: int | None) -> int:
    """Returns how many clients a round stands for.

    Raises:
        InputTypeError: If an argument is of the wrong type.
        InputValueError: If an argument is out of range, or the cohort is smaller than what simulates it.
    """
    clients_per_round = validation.whole("clients_per_round", clients_per_round)
    cohort = clients_per_round if cohort is None else validation.whole("cohort", cohort)
    if cohort < clients_per_round:
        raise InputValueError(
            f"cohort={cohort} must be at least clients_per_round={clients_per_round}: fewer clients simulate more."
        )
    return cohort


def check_restarts(rounds: int, restart_every: int | None, adaptive_count_stddev: float | None) -> None:
    """Raises unless restarts lie within the run, and adaptive clipping has restarts at which the clip norm can change.

    Raises:
        InputTypeError: If an argument is of the wrong type.
        InputValueError: If one is out of range, or adaptive clipping has no restarts.
    """
    if restart_every is not None and validation.whole("restart_every", restart_every) >= rounds:
        raise InputValueError(
            f"restart_every={restart_every} must be less than rounds={rounds}: the noise would never start anew; leave "
            "it out."
        )
    if adaptive_count_stddev is None:
        return
    validation.positive("adaptive_count_stddev", adaptive_count_stddev)
    if restart_every is None:
        raise InputValueError(
            f"adaptive_count_stddev={adaptive_count_stddev!r} needs restart_every: the clip norm adapts at restarts "
            "only, as correlated noise of two clip norms does not cancel."
        )
