"""ε and σ of random allocation, by a deterministic bound."""

import functools
import math

from tff_mf import gaussian, validation
from tff_mf.allocation import one_of_many
from tff_mf.amplification import bands_and_norm
from tff_mf.errors import InputValueError
from tff_mf.guarantees import Guarantee
from tff_mf.mechanisms import Mechanism


def random_allocation_epsilon(
    mechanism: Mechanism, rounds: int, *, participations: int, noise_multiplier: float, delta: float
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
        Arithmetic: noise is taken to be Gaussian with real values; what the integers of a grid cost is not included.
        Certainty: no random numbers are used; rounding errors are included.
        Proof: docs/amplification.md.

    Args:
        mechanism: A mechanism whose C is diagonal, such as `tff_mf.Identity`.
        rounds: Number of rounds n.
        participations: Number k of rounds of a client, at most n.
        noise_multiplier: σ, standard deviation of a coordinate of z divided by the clip norm; at least 0.
        delta: δ, at least 1e-12 and below 1.

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
    return _epsilon(rounds // turns, turns, Guarantee.of_gaussian(norm, sigma).mu, delta)


def calibrate_random_allocation_noise_multiplier(
    mechanism: Mechanism, rounds: int, *, participations: int, epsilon: float, delta: float
) -> float:
    """Returns the smallest σ, to 0.1 %, for which a run with random allocation is (ε, δ)-DP.

    Formal guarantee: that of `random_allocation_epsilon`, which for the result is at most the requested `epsilon`.

    Args:
        mechanism: A mechanism whose C is diagonal, such as `tff_mf.Identity`.
        rounds: Number of rounds n.
        participations: Number k of rounds of a client, at most n.
        epsilon: ε, greater than 0.
        delta: δ, at least 1e-12 and below 1.

    Source: see `random_allocation_epsilon`.

    Example:
        >>> from tff_mf import Identity
        >>> setting = {"participations": 1, "epsilon": 1.0, "delta": 1e-6}
        >>> round(calibrate_random_allocation_noise_multiplier(Identity(), 16, **setting), 1)
        1.4

    Raises:
        InputTypeError: If an argument is of the wrong type.
        InputValueError: If an argument is out of range, or C is not diagonal.
    """
    target, delta = validation.positive("epsilon", epsilon), validation.tail_delta(delta)
    norm, turns = _checked(mechanism, rounds, participations)
    plain = gaussian.mu_of(norm * math.sqrt(turns), gaussian.mu_from(target, delta)) * (1 + 2.0**-30)

    def private(sigma: float) -> bool:
        return _epsilon(rounds // turns, turns, Guarantee.of_gaussian(norm, sigma).mu, delta) <= target

    low = high = plain
    while low > plain * 1e-3 and private(low):
        high, low = low, low / 1.5
    while high > low * (1 + 1e-3):
        middle = math.sqrt(low * high)
        low, high = (low, middle) if private(middle) else (middle, high)
    return high


@functools.lru_cache(maxsize=256)
def _epsilon(releases: int, turns: int, mu: float, delta: float) -> float:
    plain = Guarantee(mu=mu * math.sqrt(turns) * (1 + 2.0**-50)).epsilon(delta)
    if releases == 1 or plain in (0.0, math.inf):
        return plain
    atoms = one_of_many(releases, mu, delta)
    if atoms is None:
        return plain
    product = atoms.product_of(turns, delta)
    return min(plain, max(product.epsilon(delta, most=plain, remove=each) for each in (True, False)))


def _checked(mechanism: Mechanism, rounds: int, participations: int) -> tuple[float, int]:
    """Returns the largest entry of C, and k."""
    validation.instance("mechanism", mechanism, Mechanism, "pass tff_mf.Identity()")
    turns = validation.whole("participations", participations)
    bands, norm = bands_and_norm(mechanism.cast_to_float32(), mechanism.check(rounds))
    if bands > 1:
        raise InputValueError(
            f"mechanism has {bands} bands, and no theorem here amplifies it by random allocation: take "
            "tff_mf.Identity(), or tff_mf.balls_in_bins_epsilon for clients with a secret group."
        )
    if turns > rounds:
        raise InputValueError(f"participations={turns} must be at most rounds={rounds}.")
    return norm, turns
