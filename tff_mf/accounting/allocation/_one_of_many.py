"""The likelihood ratio of one of many Gaussian releases."""

import functools

from tff_mf.accounting.allocation._atoms import Atoms

# Outside, exp overflows, or the slack for rounding errors exceeds ε.
_LEAST_MU, _MOST_MU = 1e-5, 12.0


@functools.lru_cache(maxsize=64)
def one_of_many(count: int, mu: float, delta: float) -> Atoms | None:
    """Returns the likelihood ratio of Gaussian releases of which one, chosen at random, has a client in it.

    Formal guarantee: above the mean of `count` independent exp(μg − μ²/2) in convex order.

    Args:
        count: Number of releases.
        mu: μ of each.
        delta: A δ of the size that is of interest; it determines where points are, not whether the result is right.

    Returns:
        Its distribution, or `None` if μ is too small or too large to compute with.

    Example:
        >>> atoms = one_of_many(10, 1.0, 1e-6)
        >>> round(atoms.epsilon(1e-6, most=4.5, remove=True), 2)
        2.65
    """
    if not _LEAST_MU <= mu <= _MOST_MU:
        return None
    return Atoms.lognormal(mu, delta).mean_of(count, delta)
