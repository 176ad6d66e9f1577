"""The guarantee of a run with restarts and adaptive clipping, the noise for a given ε, and checks of both."""

import math
import sys

from tff_mf import accounting
from tff_mf.base import validation
from tff_mf.base.errors import InputValueError
from tff_mf.numerics import gaussian
from tff_mf.numerics.digits import rounded_up
from tff_mf.sensitivities import SensitivityResult


def check_level(*, epsilon: float | None, noise_multiplier: float | None, delta: float) -> None:
    """Raises unless exactly one of ε and σ is given, and all numbers are in range.

    Raises:
        InputTypeError: If an argument is of the wrong type.
        InputValueError: If one is out of range, or not exactly one of `epsilon` and `noise_multiplier` is given.
    """
    if (epsilon is None) == (noise_multiplier is None):
        given = "neither" if epsilon is None else "both"
        raise InputValueError(f"{given} of epsilon=ε and noise_multiplier=σ given: give one of them.")
    validation.open_unit("delta", delta)
    if epsilon is not None:
        validation.positive("epsilon", epsilon)
    if noise_multiplier is not None:
        validation.nonnegative("noise_multiplier", noise_multiplier)


def check_delta(delta: float, population: int) -> None:
    """Raises unless δ is below one divided by the number of clients.

    Raises:
        InputValueError: If it is not.
    """
    if delta >= 1 / population:
        raise InputValueError(
            f"delta={delta!r} must be below 1/population, with {population} clients: a mechanism that publishes one "
            "client at random would satisfy it. No report would state an ε."
        )


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


def as_run(of_cohort: float, clients_per_round: int, cohort: int) -> float:
    """Returns the noise of a round with fewer clients than it stands for, in proportion to their number."""
    # Not multiplied and divided by the same number: rounding could make σ smaller than the one that is accounted for.
    return of_cohort if clients_per_round == cohort else of_cohort * clients_per_round / cohort


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


def run_guarantee(
    question: accounting.Question,
    noise_multiplier: float,
    *,
    count_stddev: float | None = None,
    sensitivity: SensitivityResult | None = None,
) -> accounting.Guarantee:
    """Returns the guarantee of everything that a run releases, over all its restarts.

    Formal guarantee: as for `tff_mf.guarantee` for the sums, composed with
    `tff_mf.adaptive_clipping_guarantee` for the counts if there are any.

    Args:
        question: The run; with restarts, its mechanism is the mechanism of one restart.
        noise_multiplier: σ.
        count_stddev: Standard deviation of the noised counts of adaptive clipping; `None` if the clip norm is fixed.
        sensitivity: As for `Question.known`.

    Raises:
        InputError: If an argument is of the wrong type or out of range.
    """
    sums = question.answered(validation.nonnegative("noise_multiplier", noise_multiplier), sensitivity)
    if count_stddev is None:
        return sums
    counts = accounting.adaptive_clipping_guarantee(
        question.rounds,
        question.sampling,
        count_stddev=count_stddev,
        adjacency=question.adjacency,
        grid=question.grid,
    )
    return accounting.compose_guarantees(sums, counts)


def run_noise_multiplier(
    question: accounting.Question, *, epsilon: float, delta: float, count_stddev: float | None = None
) -> float:
    """Returns the smallest σ, rounded up to 32 bits, for which a whole run is (ε, δ)-DP.

    The μ² of sums and counts add up: the counts take their part of the μ that `epsilon` allows.

    Formal guarantee: as for `run_guarantee`, whose ε for the result is at most `epsilon`, on every machine.

    Args:
        question: As for `run_guarantee`.
        epsilon: ε that the whole run may reach.
        delta: δ.
        count_stddev: Standard deviation of the noised counts of adaptive clipping; `None` if the clip norm is fixed.

    Raises:
        InputError: If an argument is of the wrong type or out of range.
        InputValueError: If the counts alone exceed `epsilon`, or no finite noise is enough.
    """
    sigma = question.noise_multiplier(epsilon=epsilon, delta=delta)
    if count_stddev is None:
        return sigma
    grid = question.grid
    # Where counts take nearly all of it, σ is far more sensitive to it than to its own rounding.
    allowed = gaussian.mu_from(epsilon, delta) if grid is None else run_guarantee(question, sigma).mu
    counts = accounting.adaptive_clipping_guarantee(
        question.rounds, question.sampling, count_stddev=count_stddev, grid=grid
    )
    if counts.mu >= allowed:
        least = rounded_up(math.sqrt(question.schema.max_participations) / allowed)
        raise InputValueError(
            f"adaptive_count_stddev={count_stddev!r} alone costs an ε of {rounded_up(counts.epsilon(delta))}, and "
            f"epsilon={epsilon!r} is allowed: give the counts more noise, above {least}."
        )

    def reached(noise_multiplier: float) -> float:
        sigma = gaussian.on_every_machine(noise_multiplier)
        return run_guarantee(question, sigma, count_stddev=count_stddev).epsilon(delta)

    of_sums = math.sqrt((allowed - counts.mu) * (allowed + counts.mu))
    sigma *= allowed / of_sums
    if grid is not None:
        # What a grid costs is not in proportion to 1/σ.
        for _ in range(3):
            sigma *= run_guarantee(question, sigma).mu / of_sums
    sigma, step = gaussian.rounded_sigma(sigma), 2.0**-40
    while sigma < math.inf and reached(sigma) > epsilon:
        sigma, step = gaussian.rounded_sigma(max(sigma, sys.float_info.min) * (1 + step)), 2 * step
    if sigma == math.inf:
        raise InputValueError(f"epsilon={epsilon!r} at delta={delta!r} needs more noise than float64 can hold.")
    return sigma
