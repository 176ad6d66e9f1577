"""What finite precision costs in the guarantee of a run on a grid."""

import dataclasses
import math

from tff_mf import registry
from tff_mf.base import validation
from tff_mf.base.errors import InputValueError
from tff_mf.grids._grid import LARGEST_NORMAL, Grid
from tff_mf.mechanisms import Mechanism
from tff_mf.mechanisms.grid_recursion import ROUNDING, SLACK, GridRecursion
from tff_mf.numerics import normals

# Of a whole run: far below every δ, and still within 12 standard deviations.
_TAIL = 1e-24
# Wider cells are divided into cells of between these widths.
_DIVIDED = (1 / 16, 1 / 8)


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


def recursion(mechanism: Mechanism, *, deviation: float, largest_normal: float) -> GridRecursion:
    """Returns the recursion of a mechanism on a grid, with the bounds that its guarantee is computed from.

    The parameters are cast to float32; the other arguments are as of `GridRecursion`.

    Example:
        >>> from tff_mf import BLT
        >>> found = recursion(BLT.production("b400"), deviation=7.0 * 2**16, largest_normal=13.0)
        >>> found.error(2052) < 1e-6, found.largest < 2**31
        (True, True)

    Formal guarantee: the bounds of a mechanism from outside of this package are computed from its recursion, or from C;
    `grid_recursion` of its class, which it may have inherited, is not asked.

    Raises:
        InputTypeError: If the exact class of the mechanism is not registered, or it has no integer recursion.
        InputValueError: If its integers would be too large.
    """
    bounds = Mechanism.grid_recursion if registry.registered(mechanism).outside else type(mechanism).grid_recursion
    return bounds(mechanism.cast_to_float32(), deviation=deviation, largest_normal=largest_normal)


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
    found = recursion(mechanism, deviation=deviation, largest_normal=LARGEST_NORMAL)
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
