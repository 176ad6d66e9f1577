"""(ε, δ) of one Gaussian release, with rounding errors that never make ε or δ too small.

For a query of sensitivity μ and noise of standard deviation 1, Balle and Wang (2018), theorem 8:

    δ(ε) = Q(a) − e^ε Q(b),    a = ε/μ − μ/2,    b = ε/μ + μ/2,    Q the upper tail of the normal.

For small μ both terms are nearly equal, and for large ε, e^ε overflows. Since
ε = (b² − a²)/2, with E(x) = exp(x²/2)·2Q(x), the scaled complementary error function,

    δ = ½ exp(−a²/2) (E(a) − E(b))            for a ≥ 0,
    1 − δ = ½ exp(−a²/2) (E(−a) + E(b))       for a < 0,

which neither overflow nor lose more digits than E itself.
"""

import math
import sys
from collections.abc import Callable

# Bound on the relative rounding error of every step of the formula above. The largest is E's: 6 units in the last
# place (2⁻⁵³) compared with 60 digits, over the whole axis, in SciPy 1.9.3 and 1.17.1.
_SLACK = 12 * 2.0**-53

# e to this power is still a float.
_LARGEST_EXPONENT = 700.0

# Exceeds the rounding error of every rule for sensitivity, so that ε is never too small.
_SENSITIVITY_SLACK = 2.0**-40

# Calibrated noise is enough even with this part less: twice what sensitivities of two machines can differ by.
_CALIBRATION_MARGIN = 2.0**-38
# Far more than what noise that two machines calibrate differs by, and far less than anybody notices.
_CALIBRATED_BITS = 32


def mu_of(sensitivity: float, sigma: float) -> float:
    """Returns sensitivity / sigma, rounded up by more than their rounding errors; infinite for sigma = 0.

    Example:
        >>> mu_of(1.0, 2.0) > 0.5
        True
    """
    return sensitivity / sigma * (1 + _SENSITIVITY_SLACK) if sigma else math.inf


def rho_of(mu: float) -> float:
    """Returns ρ = μ² / 2, rounded up; above 0 unless μ is, because no finite noise gives perfect privacy.

    Example:
        >>> rho_of(2.0) >= 2.0
        True
    """
    return max(mu * mu / 2 * (1 + 2.0**-48), sys.float_info.min) if mu else 0.0


def delta_from_epsilon(epsilon: float, mu: float) -> float:
    """Returns a δ for which the release is (ε, δ)-DP: the smallest, to 1e-12 relative.

    Formal guarantee: the result is not below the true δ, including all rounding errors. If δ is smaller than any float,
    it is one of the smallest floats.

    Args:
        epsilon: ε, at least 0.
        mu: Sensitivity divided by the standard deviation of the noise, at least 0; may be infinite.

    Example:
        >>> round(delta_from_epsilon(1.0, 1 / 4.22468) * 1e6, 3)
        1.0
    """
    if mu == 0:
        return 0.0
    if mu == math.inf:
        return 1.0
    log = _log_delta(epsilon, mu, slack=_SLACK)
    # Numbers below 2⁻¹⁰²² have absolute rounding errors; larger ones do not change.
    return min(1.0, math.exp(log) * (1 + _SLACK * (2 + abs(log))) + 1e-323)


def epsilon_from_delta(delta: float, mu: float) -> float:
    """Returns an ε for which the release is (ε, δ)-DP: the smallest, to 1e-9 relative and 1e-14 absolute.

    Formal guarantee: the result is not below the true ε. It is the end of the final bracket at which an upper bound of
    δ, including all rounding errors, is at most `delta`.

    Args:
        delta: δ, strictly between 0 and 1.
        mu: Sensitivity divided by the standard deviation of the noise, at least 0; may be infinite.

    Example:
        >>> round(epsilon_from_delta(1e-6, 1 / 4.22468), 4)
        1.0
    """
    if mu == 0:
        return 0.0
    target = math.log(delta)

    def private(epsilon: float) -> bool:
        return _log_delta(epsilon, mu, slack=_SLACK) <= target

    # ρ-zCDP with ρ = μ²/2 gives ε = ρ + 2√(ρ log(1/δ)): Bun and Steinke (2016), proposition 1.3.
    above = mu * (mu / 2 + math.sqrt(-2 * target))
    if not math.isfinite(above):
        return math.inf
    if private(0.0):
        return 0.0
    above = max(above, sys.float_info.min)
    while not private(above):
        above *= 1 + 2.0**-20
    return _narrow(private, fails=0.0, holds=above)


def delta_with_tail(epsilon: float, mu: float, tail: float) -> float:
    """Returns a δ for which a release within `tail` of a Gaussian one, in total variation, is (ε, δ)-DP.

    Formal guarantee: both releases, of neighboring data sets, are within `tail` of releases that are (ε, δ′)-DP, with
    δ′ of `delta_from_epsilon`. Then δ = δ′ + (1 + e^ε)·tail, rounded up.

    Args:
        epsilon: ε, at least 0.
        mu: Sensitivity divided by the standard deviation of the noise, at least 0; may be infinite.
        tail: From 0 to 1.

    Example:
        >>> delta_with_tail(1.0, 0.25, 0.0) == delta_from_epsilon(1.0, 0.25)
        True
    """
    delta = delta_from_epsilon(epsilon, mu)
    if tail == 0:
        return delta
    # Where e^ε overflows, nothing is left to state.
    of_tail = (1 + math.exp(min(epsilon, _LARGEST_EXPONENT))) * tail
    return min(1.0, (delta + of_tail) * (1 + 2 * _SLACK * (1 + min(epsilon, _LARGEST_EXPONENT))))


def epsilon_with_tail(delta: float, tail: float, epsilon_from: Callable[[float], float]) -> float:
    """Returns an ε for which a release is (ε, δ)-DP that is within `tail`, in total variation, of another one.

    Formal guarantee: if the other is (`epsilon_from`(δ′), δ′)-DP for every δ′, then δ is at least δ′ + (1 + e^ε)·tail
    for some δ′ and its ε, which is the result. Infinite if no δ′ was found: a δ not far above the tail has no ε.

    Args:
        delta: δ, strictly between 0 and 1.
        tail: From 0 to 1.
        epsilon_from: A function of δ′.

    Example:
        >>> round(epsilon_with_tail(1e-6, 1e-9, lambda delta: epsilon_from_delta(delta, 1 / 4.22468)), 2)
        1.0
    """
    if tail == 0:
        return epsilon_from(delta)
    # A share of 2^-i of δ is left to the tail: the smallest that is enough.
    for exponent in range(52, 0, -1):
        less = delta * (1 - 2.0**-exponent)
        epsilon = epsilon_from(less)
        if epsilon < _LARGEST_EXPONENT and (1 + math.exp(epsilon)) * tail * (1 + _SLACK * (4 + epsilon)) < delta - less:
            return epsilon
    return math.inf


def largest_epsilon_with_tail(delta: float, tail: float) -> float:
    """Returns an ε so small that the tail of a release takes at most half of δ; below 0 if there is none.

    A release of which only the distance `tail` from another one is known has no (ε, δ) with ε above log(δ / `tail`): an
    event that has probability `tail` with one data set may have probability 0 with its neighbor.

    Args:
        delta: δ, strictly between 0 and 1.
        tail: Above 0, to 1.

    Example:
        >>> round(largest_epsilon_with_tail(1e-10, 1e-24), 2)
        31.54
    """
    return math.log(delta / (2 * tail) - 1) * (1 - 2.0**-40) if delta > 2 * tail else -math.inf


def mu_from(epsilon: float, delta: float) -> float:
    """Returns the largest μ for which the release is (ε, δ)-DP, up to rounding and never above it.

    Args:
        epsilon: ε, above 0.
        delta: δ, strictly between 0 and 1.

    Example:
        >>> round(1 / mu_from(1.0, 1e-6), 4)
        4.2247
    """
    target = math.log(delta)

    def private(mu: float) -> bool:
        return _log_delta(epsilon, mu, slack=_SLACK) <= target

    above = 1 + math.sqrt(2) * math.sqrt(epsilon)
    while private(above):
        above *= 2
    return _narrow(private, fails=above, holds=0.0)


def rounded_sigma(sigma: float) -> float:
    """Returns σ, rounded up to 32 bits: every calibration ends with it.

    Machines round differently in last bits, so that two of them hardly ever calibrate the same σ, and nearly always the
    same σ of 32 bits.

    Args:
        sigma: σ, at least 0; may be infinite.

    Example:
        >>> rounded_sigma(8.0), rounded_sigma(0.1) == rounded_sigma(0.1 + 1e-15)
        (8.0, True)
    """
    mantissa, exponent = math.frexp(sigma)
    if not math.isfinite(mantissa):
        return sigma
    try:
        return math.ldexp(math.ceil(math.ldexp(mantissa, _CALIBRATED_BITS)), exponent - _CALIBRATED_BITS)
    except OverflowError:
        return math.inf


def on_every_machine(sigma: float) -> float:
    """Returns a smaller σ: if it is private, σ itself is so wherever its ε is computed again.

    Formal guarantee: it is smaller by more than sensitivities, and ε of one sensitivity, differ by between machines.

    Example:
        >>> on_every_machine(8.0) < 8.0
        True
    """
    return sigma * (1 - _CALIBRATION_MARGIN)


def _log_delta(epsilon: float, mu: float, *, slack: float) -> float:
    # δ decreases in a for fixed b and increases in b for fixed a. Moving both apart by their rounding errors, and each
    # E in the direction that increases δ, bounds δ from above.
    ratio, half = epsilon / mu, mu / 2
    spread = slack * (ratio + half)
    a, b = ratio - half - spread, ratio + half + spread
    if a < 0:
        complement = 0.5 * math.exp(-a * a / 2 * (1 + slack)) * (_scaled_tail(-a) + _scaled_tail(b)) * (1 - slack)
        return math.log1p(-complement) if complement < 1 else -math.inf
    difference = _scaled_tail(a) * (1 + slack) - _scaled_tail(b) * (1 - slack)
    if not difference > 0:
        return -math.inf
    scale, exponent = math.log(difference / 2), a * a / 2
    return scale - exponent + slack * (1 + abs(scale) + exponent)


def _scaled_tail(x: float) -> float:
    """Returns E(x) = exp(x²/2)·2Q(x) for x ≥ 0."""
    x /= math.sqrt(2)
    if x < 1:
        return math.exp(x * x) * math.erfc(x)
    # Imported here: it takes half of the import time of the package.
    from scipy.special import erfcx

    return float(erfcx(x))


def _narrow(condition: Callable[[float], bool], *, fails: float, holds: float) -> float:
    """Halves the bracket until no float is inside, and returns the end at which `condition` holds."""
    while True:
        middle = fails + (holds - fails) / 2
        if middle in (fails, holds):
            return holds
        if condition(middle):
            holds = middle
        else:
            fails = middle
