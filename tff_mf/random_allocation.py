"""ε and σ of random allocation, by a deterministic bound."""

import functools
import math
from collections.abc import Callable

from tff_mf import composed_losses, gaussian, grids, validation
from tff_mf.allocation import one_of_many
from tff_mf.amplification import bands_and_norm
from tff_mf.errors import InputValueError
from tff_mf.grids import Grid
from tff_mf.guarantees import Guarantee
from tff_mf.mechanisms import Mechanism
from tff_mf.sensitivities import as_released

# Of σ, in search of one that is large enough on a grid.
_DOUBLINGS = 12


def random_allocation_epsilon(
    mechanism: Mechanism,
    rounds: int,
    *,
    participations: int,
    noise_multiplier: float,
    delta: float,
    grid: Grid | None = None,
    dimension: int | None = None,
    clients_per_round: float | None = None,
) -> float:
    """Returns ε for which a run with random allocation is (ε, δ)-DP: a deterministic bound.

    For one participation it exceeds the smallest ε by about 0.05 %. For more, what is bounded is a run whose k blocks
    of rounds are known. It is never above the ε of the run without amplification.

    Formal guarantee:
        Adjacency: zero-out of all contributions of one client, each of L2 norm at most the clip norm. They may be
        chosen adaptively, from everything that was released before.
        Participation: a trusted server draws the k rounds of the client, each set of k of the n rounds with the same
        probability, once for the whole run, independently of everything else and in secret. Rounds of others may be
        anything that is independent of it; so cohorts of a fixed size are not covered.
        Sensitivity: C is `mechanism.cast_to_float32()` and diagonal: noise is independent in every round. For other
        matrices and k > 1 no bound is proven here; for k = 1 take `tff_mf.balls_in_bins_epsilon` with as many groups as
        rounds.
        Released: all `rounds` noised sums, possibly divided by a constant, but not by the size of a cohort, and nothing
        else that depends on the rounds of the client.
        Arithmetic: with `grid`, the release is the integers that are computed, and what they cost is included, by the
        chain of `grids.epsilon_of_chain`, if the rounds of all clients are drawn independently. Without one, noise is
        taken to be Gaussian with real values.
        Certainty: no random numbers are used; rounding errors are included.
        Proof: docs/amplification.md.

    Args:
        mechanism: A mechanism whose C is diagonal, such as `tff_mf.Identity`.
        rounds: Number of rounds n.
        participations: Number k of rounds of a client, at most n.
        noise_multiplier: σ, standard deviation of a coordinate of z divided by the clip norm; at least 0.
        delta: δ, at least 1e-12 and below 1.
        grid: The grid on which records are summed and noised, or `None` for floating point.
        dimension: Number d of coordinates of a record, with a grid.
        clients_per_round: Expected size of a cohort, with a grid.

    Source: Feldman and Shenfeld (2025), "Privacy amplification by random allocation", for the blocks.

    Example:
        >>> from tff_mf import Identity
        >>> setting = {"participations": 2, "noise_multiplier": 1.0, "delta": 1e-6}
        >>> round(random_allocation_epsilon(Identity(), 100, **setting), 2)
        1.56

    Raises:
        InputTypeError: If an argument is of the wrong type.
        InputValueError: If an argument is out of range, or C is not diagonal.
    """
    sigma = validation.nonnegative("noise_multiplier", noise_multiplier)
    delta = validation.tail_delta(delta)
    norm, turns = _checked(mechanism, rounds, participations)
    charge_of = grids.charge_of_secret_cohorts(
        mechanism, rounds, turns, grid=grid, dimension=dimension, clients_per_round=clients_per_round
    )
    if charge_of is None or sigma == 0:
        return _epsilon(rounds // turns, turns, Guarantee.of_gaussian(norm, sigma).mu, delta)
    return _on_grid(rounds // turns, turns, norm, sigma, delta, charge_of(sigma))


def calibrate_random_allocation_noise_multiplier(
    mechanism: Mechanism,
    rounds: int,
    *,
    participations: int,
    epsilon: float,
    delta: float,
    grid: Grid | None = None,
    dimension: int | None = None,
    clients_per_round: float | None = None,
) -> float:
    """Returns the smallest σ, to 0.1 %, for which a run with random allocation is (ε, δ)-DP.

    Formal guarantee: as for `random_allocation_epsilon`, which for the result is at most the requested `epsilon`.

    Args:
        mechanism: A mechanism whose C is diagonal, such as `tff_mf.Identity`.
        rounds: Number of rounds n.
        participations: Number k of rounds of a client, at most n.
        epsilon: ε, greater than 0.
        delta: δ, at least 1e-12 and below 1.
        grid: The grid on which records are summed and noised, or `None` for floating point.
        dimension: Number d of coordinates of a record, with a grid.
        clients_per_round: Expected size of a cohort, with a grid.

    Source: see `random_allocation_epsilon`.

    Example:
        >>> from tff_mf import Identity
        >>> setting = {"participations": 1, "epsilon": 1.0, "delta": 1e-6}
        >>> round(calibrate_random_allocation_noise_multiplier(Identity(), 16, **setting), 1)
        1.4

    Raises:
        InputTypeError: If an argument is of the wrong type.
        InputValueError: If an argument is out of range, C is not diagonal, or the grid alone costs more than `epsilon`.
    """
    target, delta = validation.positive("epsilon", epsilon), validation.tail_delta(delta)
    norm, turns = _checked(mechanism, rounds, participations)
    charge_of = grids.charge_of_secret_cohorts(
        mechanism, rounds, turns, grid=grid, dimension=dimension, clients_per_round=clients_per_round
    )

    def private(sigma: float) -> bool:
        if charge_of is None:
            found = _epsilon(rounds // turns, turns, Guarantee.of_gaussian(norm, sigma).mu, delta)
        else:
            found = _on_grid(rounds // turns, turns, norm, sigma, delta, charge_of(sigma))
        return found <= target * composed_losses.ON_EVERY_MACHINE

    plain = gaussian.mu_of(norm * math.sqrt(turns), gaussian.mu_from(target, delta)) * (1 + 2.0**-27)
    low = high = plain
    while low > plain * 1e-3 and private(low):
        high, low = low, low / 1.5
    if low == high:
        # On a grid, what is enough for real numbers need not be.
        high = _enough(plain, private, f"epsilon={epsilon!r} at delta={delta!r} was not reached on grid={grid!r}")
    while high > low * (1 + 1e-3):
        middle = math.sqrt(low * high)
        low, high = (low, middle) if private(middle) else (middle, high)
    high = gaussian.rounded_sigma(high)
    # The bound is not quite monotone in σ.
    while not private(high):
        high = gaussian.rounded_sigma(high * (1 + 2.0**-20))
    return high


def _enough(plain: float, private: Callable[[float], bool], failed: str) -> float:
    for doubling in range(_DOUBLINGS):
        if private(plain * 2.0**doubling):
            return plain * 2.0**doubling
    raise InputValueError(f"{failed}, which costs too much of it: take fewer bits, or a larger max_clients.")


def _on_grid(releases: int, turns: int, norm: float, sigma: float, delta: float, charge: grids.GridCharge) -> float:
    """Returns ε of the computed release: that of the chain, or that of a run whose rounds are known."""
    if charge.tail >= delta:
        return math.inf
    mu = Guarantee.of_gaussian(norm + charge.sensitivity, sigma).mu
    known = Guarantee(mu=(mu * math.sqrt(turns) + 2 * charge.mu) * (1 + 2.0**-48), tail=charge.tail).epsilon(delta)
    return min(known, grids.epsilon_of_chain(delta, charge, lambda part: _epsilon(releases, turns, mu, part)))


@functools.lru_cache(maxsize=256)
def _epsilon(releases: int, turns: int, mu: float, delta: float) -> float:
    plain = Guarantee(mu=mu * math.sqrt(turns) * (1 + 2.0**-50)).epsilon(delta)
    if releases == 1 or plain in (0.0, math.inf):
        return plain
    atoms = one_of_many(releases, mu, delta)
    if atoms is None:
        return plain
    losses = [atoms.losses(remove=each) for each in (True, False)]
    return composed_losses.epsilon(losses, turns, delta, most=plain)


def _checked(mechanism: Mechanism, rounds: int, participations: int) -> tuple[float, int]:
    """Returns the largest entry of C, and k."""
    validation.instance("mechanism", mechanism, Mechanism, "pass tff_mf.Identity()")
    turns = validation.whole("participations", participations)
    bands, norm = bands_and_norm(as_released(mechanism), mechanism.check(rounds))
    if bands > 1:
        raise InputValueError(
            f"mechanism has {bands} bands, and no theorem here amplifies it by random allocation: take "
            "tff_mf.Identity(), or tff_mf.balls_in_bins_epsilon for clients with a secret group."
        )
    if turns > rounds:
        raise InputValueError(f"participations={turns} must be at most rounds={rounds}.")
    return norm, turns
