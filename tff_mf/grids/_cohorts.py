"""What a grid costs a run whose cohorts are drawn at random, of which one may exceed the room of a sum."""

import dataclasses
import math
from collections.abc import Callable

from tff_mf.base import validation
from tff_mf.base.errors import InputValueError
from tff_mf.grids._charge import GridCharge, charge
from tff_mf.grids._grid import Grid, check
from tff_mf.mechanisms import Mechanism

# Exceeds the relative rounding error of a few operations and of the exponential function.
_SLACK = 2.0**-40


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
        return dataclasses.replace(found, tail=min(1.0, (found.tail + excess) * (1 + _SLACK)))

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
    return min(1.0, rounds * math.exp(-exponent * (1 - _SLACK) + room * _SLACK) * (1 + _SLACK))
