"""Checks of the numbers of a plan."""

from tff_mf.base import validation
from tff_mf.base.errors import InputValueError


def check_level(*, epsilon: float | None, noise_multiplier: float | None, delta: float) -> None:
    """Raises unless exactly one of ε and σ is given, and all numbers are in range.

    Raises:
        InputValueError: If not exactly one of `epsilon` and `noise_multiplier` is given.
    """
    if (epsilon is None) == (noise_multiplier is None):
        number = "neither" if epsilon is None else "both"
        raise InputValueError(f"{number} of epsilon=ε and noise_multiplier=σ given: give one of them.")
    validation.open_unit("delta", delta)
    if epsilon is not None:
        validation.positive("epsilon", epsilon)
    if noise_multiplier is not None:
        validation.nonnegative("noise_multiplier", noise_multiplier)


def checked_cohort(clients_per_round: int, cohort: int | None) -> int:
    """Returns how many clients a round stands for.

    Raises:
        InputValueError: If the cohort is smaller than what simulates it.
    """
    clients_per_round = validation.whole("clients_per_round", clients_per_round)
    cohort = clients_per_round if cohort is None else validation.whole("cohort", cohort)
    if cohort < clients_per_round:
        raise InputValueError(
            f"cohort={cohort} must be at least clients_per_round={clients_per_round}: fewer clients simulate more."
        )
    return cohort


def check_restarts(rounds: int, restart_every: int | None, adaptive_count_stddev: float | None) -> None:
    """Raises unless restarts lie within the run, and adaptive clipping has restarts, at which its clip norm changes."""
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
