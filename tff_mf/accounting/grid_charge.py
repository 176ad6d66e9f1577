"""What a grid costs in the guarantee of a run: finite precision, and cohorts that exceed the room of a sum.

`charge` says how far the computed release is from an ideal one, which is not Gaussian for an amplified run.
`epsilon_of_chain` turns any ε of the ideal release into an ε of the computed one.
"""

import dataclasses
import math
from collections.abc import Callable

from tff_mf.base import validation
from tff_mf.base.errors import InputValueError
from tff_mf.mechanisms import Mechanism, bounds_of
from tff_mf.mechanisms.grid import ROUNDING, SLACK, GridBounds
from tff_mf.numerics import gaussian, normals
from tff_mf.problem.grids import Grid

# Of a whole run: far below every δ, and still within 12 standard deviations.
_TAIL = 1e-24
# Wider cells are divided into cells of between these widths.
_DIVIDED = (1 / 16, 1 / 8)
# Exceeds the relative rounding error of a few operations and of the exponential function.
EXP_SLACK = 2.0**-40
# Of δ, for what is not within a factor of e^a; an ε of the ideal release is a little larger at the rest of δ.
_SHARE = 2.0**-7
# e to this power is still a float.
_LARGEST_EXPONENT = 700.0
# An ideal ε above it is not planned for: without amplification it is then nearly as small.
_LARGEST_PLANNED = 24.0
# Values of a that are tried.
_FACTORS = 128


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
    mechanism: Mechanism | GridBounds,
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
    least standard deviation of a round's noise in units of the grid: theorem F3 of docs/proofs.md, which
    takes the words of the generator for random ones. Rounded up.

    Args:
        mechanism: The mechanism with strategy matrix C, or its `bounds_of`, for whoever asks for many σ.
        rounds: Number of rounds n of the whole run.
        max_participations: Largest number k of rounds of one client.
        noise_multiplier: σ, above 0.
        grid: The grid.
        dimension: Number d of coordinates of a record.
        restart_every: Rounds r after which the noise restarts with fresh z, or `None`.

    Source: Dong, Roth and Su (2022), theorem 4 and lemma A.5, for adaptive composition and for chains of releases.

    Example:
        >>> from tff_mf import BLT
        >>> cost = charge(BLT.production("b400"), 2052, 6, noise_multiplier=7.379, dimension=4_050_748,
        ...                grid=Grid(bits=16, max_clients=6500))
        >>> cost.mu < 2e-3, cost.tail <= 1e-24, cost.sensitivity
        (True, True, 0.0)

    Raises:
        InputValueError: If the mechanism has fewer rounds on this grid, or the grid is too fine for float64.
    """
    values = validation.whole("rounds", rounds) * validation.whole("dimension", dimension)
    validation.whole("max_participations", max_participations)
    deviation = validation.positive("noise_multiplier", noise_multiplier) * 2**grid.bits
    bounds = bounds_of(mechanism) if isinstance(mechanism, Mechanism) else mechanism
    integers = bounds.at(deviation)
    longest = rounds if restart_every is None else min(rounds, validation.whole("restart_every", restart_every))
    if longest > integers.rounds:
        kind = integers.mechanism.kind
        raise InputValueError(
            f"rounds={longest} is more than the {integers.rounds} for which the integers of this {kind} "
            f"mechanism are bounded on a grid of {grid.bits} bits: restart the noise earlier, or take fewer bits."
        )
    least, most = deviation / integers.largest_diagonal, deviation / integers.smallest_diagonal
    # Of a product with s_t, relative to |z|, and of a difference that is within 1 of n_t, in cells. The run's own
    # rounds count: the integers of a stream without a last round may grow long after its end.
    product, difference = ROUNDING * SLACK, ROUNDING * SLACK * (integers.largest_within(longest) + 1)
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
    root, error = math.sqrt(values), integers.error(longest)
    mu = float((error / least + math.sqrt(math.pi / 2) * log_ratio) * root * SLACK)
    tail = values * widest.tail * SLACK
    return GridCharge(
        mu=mu,
        tail=tail,
        sensitivity=max_participations * integers.column_change,
        error=error,
        log_ratio=log_ratio,
        limit=widest.limit,
    )


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
    return min(1.0, rounds * math.exp(-exponent * (1 - EXP_SLACK) + room * EXP_SLACK) * (1 + EXP_SLACK))


def delta_of_chain(epsilon: float, delta: float, charge: GridCharge, *, factor: float) -> float:
    """Returns a δ for which a computed release is (ε + 2a, δ)-DP if the ideal one is (ε, `delta`)-DP.

    Formal guarantee: with δ_c(a) of μ_c-GDP and the tail τ of `charge`, for every data set and every event,

        δ = e^a·`delta` + (1 + e^(ε + a))·δ_c(a) + (1 + e^(ε + 2a))·τ,

    by theorem F4 of docs/proofs.md. Rounded up; 1 where an exponential overflows.

    Args:
        epsilon: ε of the ideal release, at least 0.
        delta: δ of the ideal release.
        charge: What the integers cost; its `sensitivity` must be part of the ideal release.
        factor: a, any number of at least 0.

    Example:
        >>> free = GridCharge(mu=0.0, tail=0.0, sensitivity=0.0, error=0.0, log_ratio=0.0, limit=12.0)
        >>> 1e-6 <= delta_of_chain(1.0, 1e-6, free, factor=0.0) < 1.001e-6
        True
    """
    if epsilon + 2 * factor > _LARGEST_EXPONENT:
        return 1.0
    apart = gaussian.delta_from_epsilon(factor, charge.mu)
    total = math.exp(factor) * delta + (1 + math.exp(epsilon + factor)) * apart
    total += (1 + math.exp(epsilon + 2 * factor)) * charge.tail
    return min(1.0, total * (1 + EXP_SLACK))


def epsilon_of_chain(
    delta: float, charge: GridCharge, epsilon_from: Callable[[float], float], *, rough_epsilon: float | None = None
) -> float:
    """Returns an ε for which a computed release is (ε, δ)-DP, from the ideal release's ε at a slightly smaller δ.

    Formal guarantee: as for `delta_of_chain`, which is computed for the result and is at most `delta`; a is the
    smallest that was tried. Infinite if no such ε was found.

    Args:
        delta: δ, strictly between 0 and 1.
        charge: What the integers cost; its `sensitivity` must be part of the ideal release.
        epsilon_from: Returns an ε for which the ideal release is (ε, δ′)-DP, for every δ′.
        rough_epsilon: ε of the ideal release, roughly: it says how much of δ to leave to the ideal release.
            `epsilon_from` is then called once, as a certificate by sampling needs it; with `None` it is called twice.

    Example:
        >>> small = GridCharge(mu=1e-3, tail=1e-24, sensitivity=0.0, error=0.0, log_ratio=0.0, limit=12.0)
        >>> round(epsilon_of_chain(1e-6, small, lambda delta: 1.0), 3)
        1.009
    """
    delta = validation.open_unit("delta", delta)
    # ε decreases with δ: the ε of half of δ is above the ε of the result, unless the charge leaves less.
    rough = epsilon_from(delta / 2) if rough_epsilon is None else min(rough_epsilon, _LARGEST_PLANNED)
    factor = _factor(rough, delta, charge)
    ideal_delta = _ideal_delta(rough + 2 * factor, delta, charge, factor)
    if ideal_delta <= 0:
        return math.inf
    epsilon, most = epsilon_from(ideal_delta), math.log(delta / ideal_delta)
    for tried in sorted([factor, *(most * step / _FACTORS for step in range(_FACTORS + 1))]):
        if delta_of_chain(epsilon, ideal_delta, charge, factor=tried) <= delta:
            return (epsilon + 2 * tried) * (1 + EXP_SLACK)
    return math.inf


def _factor(epsilon: float, delta: float, charge: GridCharge) -> float:
    """Returns the a for which what is not within e^a takes a small share of δ."""
    if epsilon > _LARGEST_EXPONENT:
        return math.inf
    return gaussian.epsilon_from_delta(delta * _SHARE / (1 + math.exp(epsilon)), charge.mu)


def _ideal_delta(epsilon: float, delta: float, charge: GridCharge, factor: float) -> float:
    """Returns the δ that is left to the ideal release."""
    if epsilon > _LARGEST_EXPONENT:
        return 0.0
    rest = delta * (1 - 1.5 * _SHARE) - (1 + math.exp(epsilon)) * charge.tail
    return math.exp(-factor) * rest
