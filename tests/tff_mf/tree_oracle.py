"""An oracle: rows of C⁻¹z one by one, for the decoders of a tree, in O(log n) memory."""

import math
from collections.abc import Iterable, Iterator

import numpy as np

import tff_mf
from tff_mf.mechanisms import tree_factors


def rows(tree: tff_mf.Tree, noise: Iterable[np.ndarray]) -> np.ndarray:
    """Returns all rows of C⁻¹z, given the rows of z."""
    if tree.variant == "full":
        return np.stack(list(full(tree.rounds, noise)))
    return np.stack(list(online(noise) if tree.variant == "online" else vanilla(noise)))


def full(rounds: int, noise: Iterable[np.ndarray]) -> Iterator[np.ndarray]:
    """The pseudo-inverse decoder: F(h, α)⁻¹ of `tree_factors.full_split`, walked from the root to a leaf each round.

    The right half of a block of F⁻¹ is, but for its own inverse, the same row in all rounds: the coupling times
    the sum over the left half. One such sum a level is all that is kept.
    """
    places = ((top, place) for top in tree_factors.forest(rounds) for place in range(2**top))
    sums: dict[int, np.ndarray] = {}
    for new, (top, place) in zip(noise, places, strict=False):
        alpha, couplings = 0.0, {}
        for height in range(top, 0, -1):
            left, right, couplings[height] = tree_factors.full_split(height, alpha)
            alpha = right if place >> (height - 1) & 1 else left
        row = new / math.sqrt(1 + alpha)
        # Upwards: what a block adds to its own rows, the blocks inside it must not see.
        for height in range(1, top + 1):
            if place >> (height - 1) & 1:
                row = row - couplings[height] * sums[height]
            else:
                begins = place % 2 ** (height - 1) == 0
                sums[height] = row if begins else sums[height] + row
        yield row


def online(noise: Iterable[np.ndarray]) -> Iterator[np.ndarray]:
    """The estimator from below, in the noise that is new each round: `tree_factors.online_decoder`.

    Kept are the estimates of the nodes that the prefix sum so far consists of. When a round completes nodes,
    they are merged, as the digits of a binary counter carry.
    """
    estimates: list[np.ndarray] = []
    for done, new in enumerate(noise):
        before = sum(estimates, np.zeros_like(new))
        # How far the counter carries: the height of the largest node that this round completes.
        height = (~done & (done + 1)).bit_length() - 1
        known = np.zeros_like(new)
        for level in range(1, height + 1):
            known = (1 - tree_factors.online_weight(level)) * (estimates.pop() + known)
        estimates.append(known + tree_factors.online_scale(height) * new)
        yield sum(estimates, np.zeros_like(new)) - before


def vanilla(noise: Iterable[np.ndarray]) -> Iterator[np.ndarray]:
    """The sum of the nodes of a prefix sum, by their first and last round: those of equal size merge into a new one."""
    nodes: list[tuple[int, np.ndarray]] = []
    for new in noise:
        before, size = sum((node for _, node in nodes), np.zeros_like(new)), 1
        while nodes and nodes[-1][0] == size:
            size += nodes.pop()[0]
        nodes.append((size, new))
        yield sum((node for _, node in nodes), np.zeros_like(new)) - before
