"""(ε, δ) of the computed release from any guarantee of the ideal one, which is not Gaussian for an amplified run."""

import math
from collections.abc import Callable

from tff_mf import gaussian, validation
from tff_mf.grids._charge import GridCharge

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

    by the chain of the four laws that docs/floating-point.md compares. Rounded up; 1 where an exponential overflows.

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


def epsilon_of_chain(delta: float, charge: GridCharge, epsilon_from: Callable[[float], float]) -> float:
    """Returns an ε for which a computed release is (ε, δ)-DP, from the ideal release's ε at a slightly smaller δ.

    Formal guarantee: as for `delta_of_chain`, which is computed for the result and is at most `delta`. Infinite if no
    such ε was found.

    Args:
        delta: δ, strictly between 0 and 1.
        charge: What the integers cost; its `sensitivity` must be part of the ideal release.
        epsilon_from: Returns an ε for which the ideal release is (ε, δ′)-DP, for every δ′.

    Example:
        >>> small = GridCharge(mu=1e-3, tail=1e-24, sensitivity=0.0, error=0.0, log_ratio=0.0, limit=12.0)
        >>> round(epsilon_of_chain(1e-6, small, lambda delta: 1.0), 3)
        1.009

    Raises:
        InputTypeError: If `delta` is not a number.
        InputValueError: If it is out of range.
    """
    delta = validation.open_unit("delta", delta)
    # ε decreases with δ: this one is above that of the result, unless the charge leaves less than half of δ.
    above = epsilon_from(delta / 2)
    factor = _factor(above, delta, charge)
    if above + 2 * factor > _LARGEST_EXPONENT:
        return math.inf
    part = _left(above + 2 * factor, delta, charge, factor)
    if part <= 0:
        return math.inf
    epsilon = epsilon_from(part)
    if delta_of_chain(epsilon, part, charge, factor=factor) > delta:
        return math.inf
    return (epsilon + 2 * factor) * (1 + _SLACK)


def ideal_delta(about: float, delta: float, charge: GridCharge) -> float:
    """Returns the δ to leave to the ideal release if its ε is about `about`; 0 if nothing is left.

    Formal guarantee: none, as any δ may be taken: `charged_epsilon` holds for all.

    Args:
        about: ε of the ideal release, roughly.
        delta: δ of the computed release, strictly between 0 and 1.
        charge: What the integers cost; its `sensitivity` must be part of the ideal release.

    Example:
        >>> small = GridCharge(mu=1e-3, tail=1e-24, sensitivity=0.0, error=0.0, log_ratio=0.0, limit=12.0)
        >>> f"{ideal_delta(1.0, 1e-6, small):.3g}"
        '9.84e-07'
    """
    about = min(about, _LARGEST_PLANNED)
    factor = _factor(about, delta, charge)
    return max(0.0, _left(about + 2 * factor, delta, charge, factor))


def charged_epsilon(epsilon: float, part: float, delta: float, charge: GridCharge) -> float:
    """Returns an ε for which a computed release is (ε, δ)-DP if the ideal one is (`epsilon`, `part`)-DP.

    Formal guarantee: as for `delta_of_chain`, which is at most `delta` for the result; a is the smallest that was
    tried, and may depend on `epsilon`. Infinite if there is none.

    Args:
        epsilon: ε of the ideal release at `part`, at least 0.
        part: δ of the ideal release, above 0 and at most `delta`.
        delta: δ of the computed release, strictly between 0 and 1.
        charge: What the integers cost; its `sensitivity` must be part of the ideal release.

    Example:
        >>> small = GridCharge(mu=1e-3, tail=1e-24, sensitivity=0.0, error=0.0, log_ratio=0.0, limit=12.0)
        >>> round(charged_epsilon(1.0, 9.8e-7, 1e-6, small), 3), charged_epsilon(1.0, 1e-6, 1e-6, small)
        (1.009, inf)
    """
    most = math.log(delta / part)
    for step in range(_FACTORS + 1):
        factor = most * step / _FACTORS
        if delta_of_chain(epsilon, part, charge, factor=factor) <= delta:
            return (epsilon + 2 * factor) * (1 + _SLACK)
    return math.inf


def ideal_level(epsilon: float, delta: float, charge: GridCharge) -> tuple[float, float] | None:
    """Returns an (ε, δ) that is enough for the ideal release so that the computed one is (`epsilon`, `delta`)-DP.

    Formal guarantee: as for `delta_of_chain`, which is computed for the result. `None` if none was found: the charge
    alone exceeds what is allowed.

    Args:
        epsilon: ε of the computed release, above 0.
        delta: δ of the computed release, strictly between 0 and 1.
        charge: What the integers cost; its `sensitivity` must be part of the ideal release.

    Example:
        >>> small = GridCharge(mu=1e-3, tail=1e-24, sensitivity=0.0, error=0.0, log_ratio=0.0, limit=12.0)
        >>> tuple(f"{each:.3g}" for each in ideal_level(1.0, 1e-6, small))
        ('0.991', '9.84e-07')
        >>> ideal_level(0.001, 1e-6, small)

    Raises:
        InputTypeError: If an argument is not a number.
        InputValueError: If an argument is out of range.
    """
    epsilon, delta = validation.positive("epsilon", epsilon), validation.open_unit("delta", delta)
    # A smaller ε is enough, where the tail leaves nothing of δ at the one that was asked for.
    if charge.tail:
        epsilon = min(epsilon, gaussian.largest_epsilon_with_tail(delta, charge.tail))
    if not 0 < epsilon <= _LARGEST_EXPONENT:
        return None
    factor = _factor(epsilon, delta, charge)
    ideal, part = (epsilon - 2 * factor) * (1 - _SLACK), _left(epsilon, delta, charge, factor)
    if ideal <= 0 or part <= 0 or delta_of_chain(ideal, part, charge, factor=factor) > delta:
        return None
    return ideal, part


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
