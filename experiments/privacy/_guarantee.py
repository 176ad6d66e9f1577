"""The guarantee of a run with restarts and adaptive clipping, and the noise of a run for a given ε."""

import math
import sys

import tff_mf
from tff_mf import gaussian
from tff_mf.errors import InputValueError

from ..output.digits import rounded_up


def run_guarantee(
    mechanism: tff_mf.Mechanism,
    rounds: int,
    participation: tff_mf.Participation,
    *,
    noise_multiplier: float,
    restart_every: int | None = None,
    count_stddev: float | None = None,
    grid: tff_mf.Grid | None = None,
    dimension: int | None = None,
) -> tff_mf.Guarantee:
    """Returns the guarantee of everything that a run releases, over all its restarts.

    Formal guarantee: as for `tff_mf.guarantee` for the sums, composed with
    `tff_mf.adaptive_clipping_guarantee` for the counts if there are any.

    Args:
        mechanism: The mechanism; with restarts, the mechanism of one restart.
        rounds: Number of rounds n of the whole run.
        participation: The participation schema Π of the whole run.
        noise_multiplier: σ.
        restart_every: Rounds after which noise starts anew with fresh z, or `None`.
        count_stddev: Standard deviation of the noised counts of adaptive clipping; `None` if the clip norm is fixed.
        grid: The grid on which updates and counts are summed and noised, or `None` for floating point.
        dimension: Number of the model's parameters or more, with a grid.

    Raises:
        InputError: If an argument is of the wrong type or out of range.
    """
    sums = tff_mf.guarantee(
        mechanism,
        rounds,
        participation,
        noise_multiplier=noise_multiplier,
        restart_every=restart_every,
        grid=grid,
        dimension=dimension,
    )
    if count_stddev is None:
        return sums
    return tff_mf.compose_guarantees(
        sums, tff_mf.adaptive_clipping_guarantee(rounds, participation, count_stddev=count_stddev, grid=grid)
    )


def run_noise_multiplier(
    mechanism: tff_mf.Mechanism,
    rounds: int,
    participation: tff_mf.Participation,
    *,
    epsilon: float,
    delta: float,
    restart_every: int | None = None,
    count_stddev: float | None = None,
    grid: tff_mf.Grid | None = None,
    dimension: int | None = None,
) -> float:
    """Returns the smallest σ, rounded up to 32 bits, for which a whole run is (ε, δ)-DP.

    The μ² of sums and counts add up: the counts take their part of the μ that `epsilon` allows.

    Formal guarantee: as for `run_guarantee`, whose ε for the result is at most `epsilon`, on every machine.

    Args:
        mechanism: The mechanism; with restarts, the mechanism of one restart.
        rounds: Number of rounds n of the whole run.
        participation: The participation schema Π of the whole run.
        epsilon: ε that the whole run may reach.
        delta: δ.
        restart_every: Rounds after which noise starts anew with fresh z, or `None`.
        count_stddev: Standard deviation of the noised counts of adaptive clipping; `None` if the clip norm is fixed.
        grid: The grid on which updates and counts are summed and noised, or `None` for floating point.
        dimension: Number of the model's parameters or more, with a grid.

    Raises:
        InputError: If an argument is of the wrong type or out of range.
        InputValueError: If the counts alone exceed `epsilon`, or no finite noise is enough.
    """
    run = (mechanism, rounds, participation)
    arithmetic = {"restart_every": restart_every, "grid": grid, "dimension": dimension}
    sigma = tff_mf.calibrate_noise_multiplier(*run, epsilon=epsilon, delta=delta, **arithmetic)
    if count_stddev is None:
        return sigma
    # Where counts take nearly all of it, σ is far more sensitive to it than to its own rounding.
    floats = grid is None
    allowed = (
        gaussian.mu_from(epsilon, delta) if floats else run_guarantee(*run, noise_multiplier=sigma, **arithmetic).mu
    )
    counts = tff_mf.adaptive_clipping_guarantee(rounds, participation, count_stddev=count_stddev, grid=grid)
    if counts.mu >= allowed:
        least = rounded_up(math.sqrt(participation.max_participations) / allowed)
        raise InputValueError(
            f"adaptive_count_stddev={count_stddev!r} alone costs an ε of {rounded_up(counts.epsilon(delta))}, and "
            f"epsilon={epsilon!r} is allowed: give the counts more noise, above {least}."
        )

    def reached(noise_multiplier: float) -> float:
        sigma = gaussian.on_every_machine(noise_multiplier)
        return run_guarantee(*run, noise_multiplier=sigma, count_stddev=count_stddev, **arithmetic).epsilon(delta)

    of_sums = math.sqrt((allowed - counts.mu) * (allowed + counts.mu))
    sigma *= allowed / of_sums
    if grid is not None:
        # What a grid costs is not in proportion to 1/σ.
        for _ in range(3):
            sigma *= run_guarantee(*run, noise_multiplier=sigma, **arithmetic).mu / of_sums
    sigma, step = gaussian.rounded_sigma(sigma), 2.0**-40
    while sigma < math.inf and reached(sigma) > epsilon:
        sigma, step = gaussian.rounded_sigma(max(sigma, sys.float_info.min) * (1 + step)), 2 * step
    if sigma == math.inf:
        raise InputValueError(f"epsilon={epsilon!r} at delta={delta!r} needs more noise than float64 can hold.")
    return sigma
