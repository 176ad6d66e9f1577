"""(ε, δ) of the computed release from any guarantee of the ideal one, which is not Gaussian for an amplified run."""

import math
from collections.abc import Callable

from tff_mf.accounting.grid_charge import GridCharge
from tff_mf.base import validation
from tff_mf.numerics import gaussian

# Of δ, for what is not within a factor of e^a; an ε of the ideal release is a little larger at the rest of δ.
_SHARE = 2.0**-7
# Exceeds the relative rounding error of the few operations of a sum of δ, with those of the exponential function.
_SLACK = 2.0**-40
# e to this power is still a float.
_LARGEST_EXPONENT = 700.0
# An ideal ε above it is not planned for: without amplification it is then nearly as small.
_LARGEST_PLANNED = 24.0
# Values of a that are tried.
_FACTORS = 128


def delta_of_chain(epsilon: float, delta: float, charge: GridCharge, *, factor: float) -> float:
    """Returns a δ for which a computed release is (ε + 2a, δ)-DP if the ideal one is (ε, `delta`)-DP.

    Formal guarantee: with δ_c(a) of μ_c-GDP and the tail τ of `charge`, for every data set and every event,

        δ = e^a·`delta` + (1 + e^(ε + a))·δ_c(a) + (1 + e^(ε + 2a))·τ,

    by the chain of the four laws that docs/proofs/floating-point.md compares. Rounded up; 1 where an exponential
    overflows.

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
    return min(1.0, total * (1 + _SLACK))


def epsilon_of_chain(
    delta: float, charge: GridCharge, epsilon_from: Callable[[float], float], *, about: float | None = None
) -> float:
    """Returns an ε for which a computed release is (ε, δ)-DP, from the ideal release's ε at a slightly smaller δ.

    Formal guarantee: as for `delta_of_chain`, which is computed for the result and is at most `delta`; a is the
    smallest that was tried. Infinite if no such ε was found.

    Args:
        delta: δ, strictly between 0 and 1.
        charge: What the integers cost; its `sensitivity` must be part of the ideal release.
        epsilon_from: Returns an ε for which the ideal release is (ε, δ′)-DP, for every δ′.
        about: ε of the ideal release, roughly: it says how much of δ to leave to the ideal release, whose ε is then
            asked for once, as a certificate by sampling has to be. `None` asks twice.

    Example:
        >>> small = GridCharge(mu=1e-3, tail=1e-24, sensitivity=0.0, error=0.0, log_ratio=0.0, limit=12.0)
        >>> round(epsilon_of_chain(1e-6, small, lambda delta: 1.0), 3)
        1.009
    """
    delta = validation.open_unit("delta", delta)
    # ε decreases with δ: that of half of δ is above that of the result, unless the charge leaves less.
    about = epsilon_from(delta / 2) if about is None else min(about, _LARGEST_PLANNED)
    factor = _factor(about, delta, charge)
    part = _left(about + 2 * factor, delta, charge, factor)
    if part <= 0:
        return math.inf
    epsilon, most = epsilon_from(part), math.log(delta / part)
    for tried in sorted([factor, *(most * step / _FACTORS for step in range(_FACTORS + 1))]):
        if delta_of_chain(epsilon, part, charge, factor=tried) <= delta:
            return (epsilon + 2 * tried) * (1 + _SLACK)
    return math.inf


def _factor(epsilon: float, delta: float, charge: GridCharge) -> float:
    """Returns the a for which what is not within e^a takes a small share of δ."""
    if epsilon > _LARGEST_EXPONENT:
        return math.inf
    return gaussian.epsilon_from_delta(delta * _SHARE / (1 + math.exp(epsilon)), charge.mu)


def _left(epsilon: float, delta: float, charge: GridCharge, factor: float) -> float:
    """Returns the δ that is left to the ideal release."""
    if epsilon > _LARGEST_EXPONENT:
        return 0.0
    rest = delta * (1 - 1.5 * _SHARE) - (1 + math.exp(epsilon)) * charge.tail
    return math.exp(-factor) * rest
