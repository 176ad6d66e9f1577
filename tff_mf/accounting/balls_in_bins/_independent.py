"""The deterministic bound where no two groups share a row of C: Z is then a mean of independent terms."""

import dataclasses

import numpy as np

from tff_mf.accounting import allocation
from tff_mf.accounting.betting import DirectionBound

# δ below it is not told from 0.
_LEAST_DELTA = 1e-250


def is_independent(gram: np.ndarray) -> bool:
    """Whether G is diagonal.

    Example:
        >>> bool(is_independent(np.eye(2))), bool(is_independent(np.ones((2, 2))))
        (True, False)
    """
    return np.count_nonzero(gram - np.diag(np.diagonal(gram))) == 0


def independent_epsilon(plain: DirectionBound, bins: int, mu: float, delta: float, *, remove: bool) -> DirectionBound:
    """Returns the smaller of `plain` and of ε at `delta` for terms that are all as large as the largest.

    Formal guarantee: by Kahane's inequality, δ grows with every entry of the diagonal of K.
    """
    atoms = allocation.one_of_many(bins, mu, delta)
    if atoms is None:
        return plain
    return _smaller(plain, atoms.epsilon(delta, most=plain.value, remove=remove))


def independent_delta(plain: DirectionBound, bins: int, mu: float, epsilon: float, *, remove: bool) -> DirectionBound:
    """Returns the smaller of `plain` and of δ at `epsilon`; as `independent_epsilon`."""
    near = plain.value
    for _ in range(2):
        atoms = allocation.one_of_many(bins, mu, min(max(near, _LEAST_DELTA), 0.1))
        if atoms is None:
            return plain
        near = min(near, atoms.delta(epsilon, remove=remove))
    return _smaller(plain, near)


def _smaller(plain: DirectionBound, value: float) -> DirectionBound:
    if value >= plain.value:
        return plain
    return dataclasses.replace(plain, value=value, estimate=value, bound="allocation")
