"""Square lower-triangular factors of tree aggregation, in closed form.

A binary tree has up to 2n − 1 nodes for n rounds, so its strategy matrix is not square. By Denisov et al. (2022),
proposition 2.2, some lower-triangular square factor has noise of the same distribution. C and C⁻¹ of all variants
have closed forms, built from the root of the tree to its leaves.

If n is not a power of two, the nodes are those that are complete within n rounds: one tree for each 1 in the binary
expansion of n, the largest first.
"""

import math
from collections.abc import Iterator

import numpy as np

from tff_mf.base import in_order

# Exceeds the relative error of a computed 1 / C_tt.
ROUND_UP = 1 + 2.0**-44


def forest(rounds: int) -> Iterator[int]:
    """Yields the heights of the trees over `rounds` leaves, the largest first.

    Example:
        >>> list(forest(11))
        [3, 1, 0]
    """
    return (height for height in range(rounds.bit_length() - 1, -1, -1) if rounds >> height & 1)


def full_split(height: int, alpha: float) -> tuple[float, float, float]:
    """Returns the parameters of the blocks of F(height, α): α of the left half, α of the right half, their coupling.

    F(h, α) is the lower-triangular matrix with FᵀF = X(h) + α·11ᵀ, where X(h) counts the nodes below the root,
    the leaves included, that two rounds have in common, and X(0) = 1. With a = 1 + α, m = 2^(h − 1) and
    g = 1 / (2^h − 1 + a·m) its left half is F(h − 1, a − a²mg), its right one F(h − 1, a), and a·g the coupling.
    Taking a − a²mg literally would cancel; it is a·(2^h − 1)·g.
    """
    a = 1 + alpha
    below = math.ldexp(1.0, height) - 1
    g = 1 / (below + a * math.ldexp(1.0, height - 1))
    return a * below * g, a, a * g


def full_encoder(height: int, alpha: float = 0.0) -> np.ndarray:
    """Returns F(height, α), float64 `[2^height, 2^height]`; with α = 0 the C of the pseudo-inverse decoder."""
    if height == 0:
        return np.array([[math.sqrt(1 + alpha)]])
    left, right, coupling = full_split(height, alpha)
    after = full_encoder(height - 1, right)
    return _lower(full_encoder(height - 1, left), coupling * in_order.sums(after)[:, np.newaxis], after)


def full_inverse(height: int, alpha: float = 0.0) -> np.ndarray:
    """Returns F(height, α)⁻¹, float64 `[2^height, 2^height]`."""
    if height == 0:
        return np.array([[1 / math.sqrt(1 + alpha)]])
    left, right, coupling = full_split(height, alpha)
    before = full_inverse(height - 1, left)
    return _lower(before, -coupling * in_order.sums(before.T), full_inverse(height - 1, right))


def online_weight(height: int) -> float:
    """Returns w: how much of a node's own noise its estimate from below has, and also its variance.

    The noise of a node and the sum of its children's estimates are independent, of variance 1 and 2w'.
    """
    return 1 / (2 - math.ldexp(1.0, -height))


def online_scale(height: int) -> float:
    """Returns s: the standard deviation that a node's estimate has given all rounds before its last."""
    scale = 1.0
    for level in range(1, height + 1):
        weight = online_weight(level)
        inherited = (1 - weight) * scale
        scale = math.sqrt(weight * weight + inherited * inherited)
    return scale


def online_step(height: int) -> tuple[float, list[float]]:
    """Returns 1 / C_tt, rounded up, for a round that completes nodes up to a height, and its weights w_h below it.

    The noise of the round is the new draw times 1 / C_tt, less Σ_{h < height} w_h·I_h for the sum I_h of the noise of
    the last complete block of 2^h rounds.

    Example:
        >>> online_step(1)[1]
        [0.6666666666666666]
    """
    rests = [1 - online_weight(level) for level in range(1, height + 1)]
    return online_scale(height) * ROUND_UP, [1 - math.prod(rests[level:]) for level in range(height)]


def online_decoder(rounds: int) -> np.ndarray:
    """Returns B of the online estimator, lower-triangular, float64 `[rounds, rounds]`.

    The noise of a prefix sum is the sum of the estimates of the nodes it consists of. In noise that is new in
    each round, the estimate of a node of height h is the row T(h) of 2^h numbers, T(0) = 1 and

        T(h) = (1 − w)·[T(h − 1), T(h − 1) without its last number], s(h):

    in the last round of a node the noise of the node and the part of its right child that is new there are seen
    only as one sum, whose standard deviation is s(h).
    """
    estimates = [np.ones(1)]
    while 2 ** len(estimates) <= rounds:
        height, last = len(estimates), estimates[-1]
        halves = (1 - online_weight(height)) * np.concatenate([last, last[:-1]])
        estimates.append(np.append(halves, online_scale(height)))
    decoder = np.zeros((rounds, rounds))
    for done in range(1, rounds + 1):
        parts = [estimates[height] for height in forest(done)]
        decoder[done - 1, :done] = np.concatenate(parts)
    return decoder


def vanilla_encoder(rounds: int) -> np.ndarray:
    """Returns C of the vanilla decoder, float64 `[rounds, rounds]`: row t has ones in the rounds of one node.

    Prefix sum t consists of one node for each 1 in the binary expansion of t, the largest first. The last of them ends
    with round t and has as many rounds as the lowest 1 is worth; the others belong to an earlier prefix sum. Each
    node that is a left child or a root is the last of one prefix sum, and a right child is in none, so that n rounds
    use n nodes, of which the first t are known after t rounds: C is square and lower-triangular, with a diagonal of 1.

    Source: Kairouz et al. (2021), appendix B.1 (GetSum).
    """
    last = np.arange(1, rounds + 1)[:, np.newaxis]
    columns = np.arange(rounds)
    return ((last - (last & -last) <= columns) & (columns < last)).astype(np.float64)


def vanilla_decoder(rounds: int) -> np.ndarray:
    """Returns B of the vanilla decoder, float64 `[rounds, rounds]`: the nodes of each prefix sum, by their last round.

    With A the prefix sums, B·C = A for C of `vanilla_encoder`, because the nodes of a prefix sum are disjoint.
    """
    decoder = np.zeros((rounds, rounds))
    for done in range(1, rounds + 1):
        ends = np.cumsum([2**height for height in forest(done)])
        decoder[done - 1, ends - 1] = 1
    return decoder


def _lower(first: np.ndarray, corner: np.ndarray, second: np.ndarray) -> np.ndarray:
    size = len(first)
    result = np.zeros((2 * size, 2 * size))
    result[:size, :size] = first
    result[size:, :size] = corner
    result[size:, size:] = second
    return result
