"""Privacy of a whole run for a given noise multiplier, and the noise multiplier for a given privacy.

Noise C⁻¹z added to a stream x is C⁻¹(Cx + z): everything a run releases is a function of Cx + z, one Gaussian release
of a vector with sensitivity sens_Π(C). Its ε is exactly that of the Gaussian mechanism with the effective noise
multiplier σ / sens_Π(C); no composition takes place.

Every function here accounts for `mechanism.cast_to_float32()`, whose float32 parameters the noise runs with. They are
short forms of `tff_mf.guarantee`, which also covers restarts and both adjacencies.
"""

import math
import sys
import typing
from collections.abc import Callable

from tff_mf import gaussian, validation
from tff_mf.errors import InputValueError
from tff_mf.grids import Grid
from tff_mf.guarantees import ADJACENCIES, Guarantee, guarantee, released_sensitivity
from tff_mf.mechanisms import Mechanism
from tff_mf.participation import Participation

if typing.TYPE_CHECKING:
    import dp_accounting


def effective_noise_multiplier(
    mechanism: Mechanism, rounds: int, participation: Participation, *, noise_multiplier: float
) -> float:
    """Returns σ / sens_Π(C): the noise multiplier of the equivalent Gaussian mechanism.

    It is the plain quotient, for display; every privacy measure here is computed from a sensitivity that is rounded up.

    Formal guarantee: as for `epsilon`.

    Args:
        mechanism: The mechanism with strategy matrix C.
        rounds: Number of rounds n.
        participation: The participation schema Π.
        noise_multiplier: σ, as for `epsilon`.

    Example:
        >>> from tff_mf import Identity, MinSep
        >>> effective_noise_multiplier(Identity(), 9, MinSep(min_sep=2, max_participations=4), noise_multiplier=3)
        1.5

    Raises:
        InputTypeError: If an argument is of the wrong type.
        InputValueError: If an argument is out of range.
    """
    sigma = validation.nonnegative("noise_multiplier", noise_multiplier)
    return sigma / released_sensitivity(mechanism, rounds, participation)


def zcdp_rho(mechanism: Mechanism, rounds: int, participation: Participation, *, noise_multiplier: float) -> float:
    """Returns ρ for which the whole run is ρ-zCDP: 1 / (2·effective_noise_multiplier²).

    Formal guarantee: as for `epsilon`, with ρ-zCDP in place of (ε, δ)-DP. Infinite without noise.

    Args:
        mechanism: The mechanism with strategy matrix C.
        rounds: Number of rounds n.
        participation: The participation schema Π.
        noise_multiplier: σ, as for `epsilon`.

    Source: Bun and Steinke (2016), proposition 1.6.

    Example:
        >>> from tff_mf import BLT, MinSep
        >>> p = MinSep(min_sep=447, max_participations=5)
        >>> round(zcdp_rho(BLT.production("b400"), 2350, p, noise_multiplier=7.379), 3)
        0.195

    Raises:
        InputTypeError: If an argument is of the wrong type.
        InputValueError: If an argument is out of range.
    """
    return guarantee(mechanism, rounds, participation, noise_multiplier=noise_multiplier).zcdp_rho


def epsilon(
    mechanism: Mechanism, rounds: int, participation: Participation, *, noise_multiplier: float, delta: float
) -> float:
    """Returns ε for which the whole run is (ε, δ)-DP: the smallest, to 1e-9 relative and 1e-14 absolute.

    It is the ε of all rounds together; composing an ε of each round would be wrong. Composition assumes fresh noise in
    every round, but here the noise of a round returns, with the opposite sign, in later ones. An observer of several
    rounds can cancel noise that each round appears to have on its own, and a contribution is hidden by more than the
    noise of its own round. How much a pattern of rounds reveals is measured by the sensitivity of C, and by no quantity
    of a single round.

    Formal guarantee:
        Adjacency: zero-out of all contributions of one client, each of L2 norm at most the clip norm.
        Participation: the client's rounds form a pattern of `participation` within `rounds`.
        Sensitivity: that of `mechanism.cast_to_float32()`, or a proven upper bound, rounded up.
        Released: all `rounds` noised sums, also adaptively chosen ones (Denisov et al. (2022), theorem 2.1), and
        whatever is computed from them. Infinite without noise. The noise is taken to be Gaussian with real values; the
        result is never below the true ε of that release.

    Args:
        mechanism: The mechanism with strategy matrix C.
        rounds: Number of rounds n.
        participation: The participation schema Π.
        noise_multiplier: σ, standard deviation of a coordinate of z divided by the clip norm; at least 0.
        delta: δ, strictly between 0 and 1.

    Source: Balle and Wang (2018), theorem 8, for the equivalent Gaussian release.

    Example:
        >>> from tff_mf import BLT, MinSep
        >>> p = MinSep(min_sep=447, max_participations=5)
        >>> round(epsilon(BLT.production("b400"), 2350, p, noise_multiplier=7.379, delta=1e-10), 2)
        3.93

    Raises:
        InputTypeError: If an argument is of the wrong type.
        InputValueError: If an argument is out of range.
    """
    validation.nonnegative("noise_multiplier", noise_multiplier)
    # Checked before the sensitivity, which may take seconds.
    validation.open_unit("delta", delta)
    return guarantee(mechanism, rounds, participation, noise_multiplier=noise_multiplier).epsilon(delta)


def calibrate_noise_multiplier(
    mechanism: Mechanism,
    rounds: int,
    participation: Participation,
    *,
    epsilon: float,
    delta: float,
    restart_every: int | None = None,
    adjacency: str = "zero-out",
    grid: Grid | None = None,
    dimension: int | None = None,
) -> float:
    """Returns the smallest σ for which the whole run is (ε, δ)-DP, rounded up to 32 bits.

    Formal guarantee: as for `tff_mf.guarantee`, whose `epsilon(delta)` for the result is at most the requested
    `epsilon`, on this machine and on every other one. Without restarts, and for zero-out, it is that of the function
    `epsilon`.

    Args:
        mechanism: The mechanism with strategy matrix C.
        rounds: Number of rounds n.
        participation: The participation schema Π.
        epsilon: ε, greater than 0.
        delta: δ, strictly between 0 and 1.
        restart_every: Rounds r after which the noise restarts with fresh z, or `None`.
        adjacency: "zero-out" or "replace-one".
        grid: The grid on which records are summed and noised, or `None` for floating point.
        dimension: Number d of coordinates of a record, with a grid.

    Example:
        >>> from tff_mf import Identity, SingleParticipation
        >>> round(calibrate_noise_multiplier(Identity(), 100, SingleParticipation(), epsilon=1.0, delta=1e-6), 4)
        4.2247

    Raises:
        InputTypeError: If an argument is of the wrong type.
        InputValueError: If an argument is out of range, or no finite noise is enough.
    """
    target = validation.positive("epsilon", epsilon)
    delta = validation.open_unit("delta", delta)
    validation.one_of("adjacency", adjacency, ADJACENCIES)
    sens = released_sensitivity(mechanism, rounds, participation, restart_every=restart_every)
    # Twice a float is exact, so that this doubles μ as `Guarantee.replace_one` does.
    sens *= 2 if adjacency == "replace-one" else 1
    # σ is sens / μ, as μ is sens / σ.
    sigma = max(gaussian.rounded_sigma(gaussian.mu_of(sens, gaussian.mu_from(target, delta))), sys.float_info.min)
    step = 2.0**-40
    while sigma < math.inf and Guarantee.of_gaussian(sens, gaussian.on_every_machine(sigma)).epsilon(delta) > target:
        sigma, step = gaussian.rounded_sigma(sigma * (1 + step)), 2 * step
    if sigma == math.inf:
        raise InputValueError(f"epsilon={target!r} at delta={delta!r} needs more noise than float64 can represent.")
    if grid is None and dimension is None:
        return sigma

    def of(noise_multiplier: float) -> Guarantee:
        return guarantee(
            mechanism,
            rounds,
            participation,
            noise_multiplier=gaussian.on_every_machine(noise_multiplier),
            restart_every=restart_every,
            adjacency=adjacency,
            grid=grid,
            dimension=dimension,
        )

    return _raised(sigma, of, target=target, delta=delta)


def _raised(sigma: float, of: Callable[[float], Guarantee], *, target: float, delta: float) -> float:
    """Returns a noise multiplier with which the noise of a grid is (target, δ)-DP, from one for real noise.

    What a grid costs hardly depends on σ, so that μ·σ hardly changes, and few steps are enough. A target above what the
    tail allows is replaced by that: the release is then (ε, δ)-DP with a smaller ε.
    """
    try:
        found = of(sigma)
    except InputValueError as error:
        raise InputValueError(f"epsilon={target!r} at delta={delta!r} has no noise on this grid: {error}") from error
    largest = gaussian.largest_epsilon_with_tail(delta, found.tail)
    if largest <= 0:
        raise InputValueError(
            f"delta={delta!r} is too small for noise on a grid, whose tail of {found.tail!r} is part of it."
        )
    allowed = gaussian.mu_from(target, delta) if target <= largest else gaussian.mu_from(largest, delta / 2)
    target = min(target, largest)
    for exponent in range(-40, 0):
        if found.epsilon(delta) <= target:
            return sigma
        sigma = gaussian.rounded_sigma(sigma * max(found.mu / allowed, 1.0) * (1 + 2.0**exponent))
        found = of(sigma)
    raise InputValueError(
        f"epsilon={target!r} at delta={delta!r} is not reached with noise on a grid: take fewer bits, or a larger ε."
    )


def dp_event(
    mechanism: Mechanism, rounds: int, participation: Participation, *, noise_multiplier: float
) -> "dp_accounting.GaussianDpEvent":
    """Returns the whole run as one event of dp-accounting, a Gaussian with the effective noise multiplier.

    Compose it with events of other runs, but never with itself once per round.

    Formal guarantee: as for `epsilon`; an accountant of dp-accounting adds its own discretization.

    Args:
        mechanism: The mechanism with strategy matrix C.
        rounds: Number of rounds n.
        participation: The participation schema Π.
        noise_multiplier: σ, as for `epsilon`.

    Example:
        >>> from tff_mf import Identity, SingleParticipation
        >>> round(dp_event(Identity(), 10, SingleParticipation(), noise_multiplier=2.0).noise_multiplier, 9)
        2.0

    Raises:
        InputTypeError: If an argument is of the wrong type.
        InputValueError: If an argument is out of range.
    """
    return guarantee(mechanism, rounds, participation, noise_multiplier=noise_multiplier).dp_event()
