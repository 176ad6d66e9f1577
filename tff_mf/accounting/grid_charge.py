"""What a grid costs in the guarantee of a run: finite precision, and cohorts that exceed the room of a sum."""

import dataclasses
import math
from collections.abc import Callable

from tff_mf.base import validation
from tff_mf.base.errors import InputValueError
from tff_mf.mechanisms import Mechanism, on_grid
from tff_mf.mechanisms.grid_recursion import ROUNDING, SLACK
from tff_mf.numerics import normals
from tff_mf.problem.grids import LARGEST_NORMAL, Grid, check

# Of a whole run: far below every δ, and still within 12 standard deviations.
_TAIL = 1e-24
# Wider cells are divided into cells of between these widths.
_DIVIDED = (1 / 16, 1 / 8)
# Exceeds the relative rounding error of a few operations and of the exponential function.
_EXP_SLACK = 2.0**-40


@dataclasses.dataclass(frozen=True, kw_only=True)
class GridCharge:
    """How far the computed release of a run is from the ideal one, for every data set.

    The ideal release is a function of Cx + z with the entries of C that the recursion computes with, and real
    Gaussian z.

    Attributes:
        mu: μ_c: for every data set, the computed release and the ideal one are μ_c-GDP close, up to `tail`.
        tail: Bound on the total variation distance that is not covered by `mu`.
        sensitivity: What is added to the sensitivity of C, for a clip norm of 1.
        error: e: bound on the error of L_t, in units of the grid.
        log_ratio: η: bound on |log(P̂/P)| of a cell of a coordinate.
        limit: T: the largest |z| that η covers.
    """

    mu: float
    tail: float
    sensitivity: float
    error: float
    log_ratio: float
    limit: float


def charge(
    mechanism: Mechanism,
    rounds: int,
    max_participations: int,
    *,
    noise_multiplier: float,
    grid: Grid,
    dimension: int,
    restart_every: int | None = None,
) -> GridCharge:
    """Returns what integer noise costs in the guarantee of a whole run, with or without restarts.

    Formal guarantee: μ_c = e·√(n·d)/s + √(π/2)·√(n·d)·η for n·d coordinates, where s = σ·2^bits / max C_tt is the
    least standard deviation of a round's noise in units of the grid. It is a theorem of
    docs/proofs/floating-point.md, which takes the words of the generator for random ones. Rounded up.

    Args:
        mechanism: The mechanism with strategy matrix C.
        rounds: Number of rounds n of the whole run.
        max_participations: Largest number k of rounds of one client.
        noise_multiplier: σ, above 0.
        grid: The grid.
        dimension: Number d of coordinates of a record.
        restart_every: Rounds r after which the noise restarts with fresh z, or `None`.

    Source: Dong, Roth and Su (2022), theorem 4 and lemma A.5, for adaptive composition and for chains of releases.

    Example:
        >>> from tff_mf import BLT
        >>> found = charge(BLT.production("b400"), 2052, 6, noise_multiplier=7.379, dimension=4_050_748,
        ...                grid=Grid(bits=16, max_clients=6500))
        >>> found.mu < 2e-3, found.tail <= 1e-24, found.sensitivity
        (True, True, 0.0)

    Raises:
        InputValueError: If an argument is out of range, the mechanism has fewer rounds on this grid, or the grid is too
            fine for float64.
    """
    values = validation.whole("rounds", rounds) * validation.whole("dimension", dimension)
    validation.whole("max_participations", max_participations)
    deviation = validation.positive("noise_multiplier", noise_multiplier) * 2**grid.bits
    found = on_grid(mechanism, deviation=deviation, largest_normal=LARGEST_NORMAL)
    part = rounds if restart_every is None else min(rounds, validation.whole("restart_every", restart_every))
    if part > found.rounds:
        raise InputValueError(
            f"rounds={part} is more than the {found.rounds} for which the integers of this {mechanism.kind} mechanism "
            f"are bounded on a grid of {grid.bits} bits: restart the noise earlier, or take fewer bits."
        )
    least, most = deviation / found.largest_diagonal, deviation / found.smallest_diagonal
    # Of a product with s_t, relative to |z|, and of a difference that is within 1 of n_t, in cells. The run's own
    # rounds count: the integers of a stream without a last round may grow long after its end.
    product, difference = ROUNDING * SLACK, ROUNDING * SLACK * (found.largest_within(part) + 1)
    try:
        widest = normals.rounding_error(
            cell=1 / least, values=values, delta_tail=_TAIL, later=difference / least, later_relative=product
        )
    except InputValueError as error:
        raise InputValueError(
            f"noise_multiplier={noise_multiplier!r} with dimension={dimension} does not fit a grid of {grid.bits} "
            f"bits: {error}"
        ) from error
    # Rounds have cells of different widths. As a function of the width, η is convex up to the width at which cells are
    # divided for its proof, and beyond it as a function of the width of their parts, which have the position error of
    # the whole: it is largest at an end.
    laters = {width: difference * width for width in (1 / least, 1 / most)}
    if 1 / least > _DIVIDED[0]:
        laters |= dict.fromkeys(_DIVIDED, difference / least)
    log_ratio = max(
        normals.rounding_error(cell=width, limit=widest.limit, later=later, later_relative=product).log_ratio
        for width, later in laters.items()
    )
    root, error = math.sqrt(values), found.error(part)
    mu = float((error / least + math.sqrt(math.pi / 2) * log_ratio) * root * SLACK)
    tail = values * widest.tail * SLACK
    return GridCharge(
        mu=mu,
        tail=tail,
        sensitivity=max_participations * found.column_change,
        error=error,
        log_ratio=log_ratio,
        limit=widest.limit,
    )


def charge_of_secret_cohorts(
    mechanism: Mechanism,
    rounds: int,
    max_participations: int,
    *,
    grid: Grid | None,
    dimension: int | None,
    clients_per_round: float | None,
) -> Callable[[float], GridCharge] | None:
    """Returns what the integers of a run with random cohorts cost, as a function of σ; `None` without a grid.

    Formal guarantee: as for `charge`; its tail includes the probability that a cohort exceeds `grid.max_clients`,
    which ends the run, if clients join independently of one another.

    Args:
        mechanism: As for `charge`.
        rounds: As for `charge`.
        max_participations: As for `charge`.
        grid: The grid, or `None` for floating point.
        dimension: Number d of coordinates of a record, with a grid.
        clients_per_round: Expected size of a cohort, with a grid.

    Example:
        >>> from tff_mf import Identity
        >>> found = charge_of_secret_cohorts(
        ...     Identity(), 8, 1, grid=Grid(bits=16, max_clients=1000), dimension=3, clients_per_round=500.0)
        >>> found(1.0).mu < 1e-5
        True

    Raises:
        InputValueError: If only some of grid, dimension and clients_per_round are given.
    """
    if (check(grid) is None) != (dimension is None):
        raise InputValueError(
            f"grid={grid!r} and dimension={dimension!r} must be given together: the charge of a grid depends on both."
        )
    if grid is None or dimension is None:
        return None
    if clients_per_round is None:
        raise InputValueError(
            "clients_per_round=None is missing: on a grid, a cohort that exceeds max_clients ends the run. Pass the "
            "expected size of a cohort."
        )
    size = validation.positive("clients_per_round", clients_per_round)
    excess = overflow(rounds, max_clients=grid.max_clients, clients_per_round=size)

    def charge_of(sigma: float) -> GridCharge:
        found = charge(mechanism, rounds, max_participations, noise_multiplier=sigma, grid=grid, dimension=dimension)
        return dataclasses.replace(found, tail=min(1.0, (found.tail + excess) * (1 + _EXP_SLACK)))

    return charge_of


def overflow(rounds: int, *, max_clients: int, clients_per_round: float) -> float:
    """Returns a bound on the probability that a cohort drawn at random exceeds the room of a sum, in any of the rounds.

    Formal guarantee: for a sum X of independent indicators with mean m, and M > m, P(X > M) is at most
    exp(−(M·log(M/m) − M + m)). Rounded up; 1 where M is not above the mean.

    Args:
        rounds: Number of rounds.
        max_clients: M, clients that a sum has room for.
        clients_per_round: Mean m of the size of a cohort, above 0.

    Source: Chernoff's bound; Mitzenmacher and Upfal (2017), theorem 4.4.

    Example:
        >>> overflow(2000, max_clients=1000, clients_per_round=500.0) < 1e-70
        True
    """
    room, mean = float(max_clients), clients_per_round
    if room <= mean:
        return 1.0
    exponent = room * math.log(room / mean) - room + mean
    return min(1.0, rounds * math.exp(-exponent * (1 - _EXP_SLACK) + room * _EXP_SLACK) * (1 + _EXP_SLACK))
