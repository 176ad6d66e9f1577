"""Privacy amplification by shuffling: banded mechanisms whose clients are shuffled and take part once.

Clients are shuffled, and each round takes the next cohort. With b̂ bands, the T = ⌊n/b̂⌋ or more rounds with
i mod b̂ = j do not share a row of C (Choquette-Choo et al. (2023), corollary E.2), and a client is equally likely to
take part in any of them.

From each cohort of such a group of rounds take one client, among them the client in question, and hold all others
fixed. These T clients are distributed uniformly over the T rounds, so that, given all others, the run is T adaptive
randomizers applied to T shuffled clients, for cohorts of any size. Feldman, McMillan and Talwar (2021) bound its
privacy loss. If (ε, δ) holds for every choice of the others, it holds for a random choice, because the hockey-stick
divergence is jointly convex.

Cohorts of varying size, and clients that choose their rounds themselves, are not covered.
"""

import math

import numpy as np

from tff_mf import validation
from tff_mf.amplification import bands_and_norm
from tff_mf.guarantees import Guarantee
from tff_mf.mechanisms import Mechanism

# Shares of δ to try for the difference between (ε₀, δ₀)-DP, which Gaussian noise has, and pure ε₀-DP.
_SHARES = (0.5, 0.1, 0.02)

# Exceeds the rounding error of a difference of binomial tails.
_ROUNDING = 1e-13


def shuffled_epsilon(mechanism: Mechanism, rounds: int, *, noise_multiplier: float, delta: float) -> float:
    """Returns ε for which one epoch of shuffled clients is (ε, δ)-DP: the smaller of two upper bounds.

    One is for a client that takes part once, in a round that is known; the other is amplified by shuffling. With fewer
    than thousands of rounds per group, or little noise, the first is smaller: no useful amplified bound is known
    there.

    Formal guarantee:
        Adjacency: zero-out of the contribution of one client, of L2 norm at most the clip norm.
        Participation: the population is shuffled uniformly and in secret; cohorts of a fixed size are taken from it one
        after another, and no client takes part twice.
        Sensitivity: the largest column norm of `mechanism.cast_to_float32()`, rounded up, and twice that when one
        client's contribution is replaced by another's.
        Released: all `rounds` noised sums.

    Args:
        mechanism: A mechanism whose C has b̂ bands; b̂ is counted from its entries.
        rounds: Number of rounds n, at least b̂.
        noise_multiplier: σ, standard deviation of a coordinate of z divided by the clip norm; at least 0.
        delta: δ, at least 1e-12 and below 1.

    Source: Choquette-Choo et al. (2023), corollary E.2; Feldman, McMillan and Talwar (2021), theorem 3.2 for the worst
    pair of distributions, and theorem 3.8 for noise that is not pure.

    Example:
        >>> from tff_mf import Identity
        >>> round(shuffled_epsilon(Identity(), 100, noise_multiplier=1.0, delta=1e-6), 2)
        4.89

    Raises:
        InputTypeError: If an argument is of the wrong type.
        InputValueError: If an argument is out of range, or C has more bands than rounds.
    """
    validation.instance("mechanism", mechanism, Mechanism, "pass a mechanism such as tff_mf.Banded")
    sigma, delta = validation.nonnegative("noise_multiplier", noise_multiplier), validation.tail_delta(delta)
    bands, norm = bands_and_norm(mechanism.cast_to_float32(), mechanism.check(rounds))
    one = Guarantee.of_gaussian(norm, sigma)
    plain = one.epsilon(delta)
    if plain in (0.0, math.inf):
        return plain
    return min([plain, *(_amplified(rounds // bands, one, delta, share, plain) for share in _SHARES)])


def _amplified(count: int, one: Guarantee, delta: float, share: float, most: float) -> float:
    """Returns ε ≤ `most` of `count` shuffled Gaussian randomizers, or `most`."""
    # Theorem 3.8 adds (e^ε + 1)(1 + e^(−ε₀)/2)·T·δ₀ to δ.
    impure = delta * share / ((math.exp(min(most, 700.0)) + 1) * 1.5 * count)
    if impure < 1e-300:
        return most
    pure = one.replace_one().epsilon(impure)

    def private(epsilon: float) -> bool:
        return clones_delta(count, pure, epsilon) <= delta * (1 - share)

    low, high = 0.0, most
    if not private(high):
        return most
    while high - low > 1e-6 * high:
        middle = (low + high) / 2
        low, high = (low, middle) if private(middle) else (middle, high)
    return high


def clones_delta(count: int, pure: float, epsilon: float) -> float:
    """Returns δ(ε) of `count` shuffled ε₀-DP randomizers, rounded up by 1e-13.

    With C ~ Bin(T − 1, e^(−ε₀)), A ~ Bin(C, ½) and Δ ~ Bernoulli(e^ε₀ / (e^ε₀ + 1)), no two neighboring data sets are
    easier to tell apart than (A + Δ, C − A + 1 − Δ) and (A + 1 − Δ, C − A + Δ). Given C, the likelihood ratio rises in
    the first entry, so that each hockey-stick divergence is a difference of binomial tails.

    Args:
        count: Number T of randomizers.
        pure: ε₀ of each, for any two inputs.
        epsilon: ε.

    Source: Feldman, McMillan and Talwar (2021), theorem 3.2.

    Example:
        >>> clones_delta(1, 1.0, 0.5) == clones_delta(1, 1.0, 0.0)
        False
    """
    # Imported here: it would double the time of `import tff_mf`.
    from scipy import stats

    clones = np.arange(count)
    weights = stats.binom.pmf(clones, count - 1, math.exp(-pure))
    heads = 1 / (1 + math.exp(-pure))
    ratio = math.exp(epsilon)
    gain, cost = heads - ratio * (1 - heads), ratio * heads - (1 - heads)
    if gain <= 0:
        return _ROUNDING
    # P(x) > e^ε·Q(x) for x ≥ r/(1 + r)·(c + 1) with r = cost/gain. The adjacent integers guard against rounding of it.
    start = np.ceil((clones + 1) * (cost / (cost + gain)))
    best = np.zeros(count)
    for first in (start - 1, start, start + 1):
        tails = gain * stats.binom.sf(first - 2, clones, 0.5) - cost * stats.binom.sf(first - 1, clones, 0.5)
        best = np.maximum(best, tails)
    return float(np.sum(weights * best)) + _ROUNDING
