"""The recursion of trees over the sums of n in complete blocks of rounds."""

import functools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from tff_mf import _in_order
from tff_mf.grids._recursion import ROUNDING, SLACK, Recursion, allowed
from tff_mf.mechanisms import Tree, tree_factors

# Above it, C⁻¹ is not formed, and bounds are coarse.
_MOST_WHOLE_ROUNDS = 2**12


class TreeRecursion(Recursion[Tree]):
    """L_t = Σ_h w_h(t)·I_h for the integer sums I_h of n over the last complete block of 2^h rounds.

    Up to 4,096 rounds, the bounds on n and I_h are sums of absolute values of C⁻¹; for more, they are coarse: of the
    full tree, |n_t| ≤ (levels + 1)·u, of the others, (levels + 1)²·u, for u = T·s + max C_tt. Sums of a block are at
    most a sum of one estimate per level, of norm 1 in the vanilla tree and of more in the online one.
    """

    def __init__(self, mechanism: Tree, *, deviation: float, largest_normal: float) -> None:
        super().__init__(mechanism, deviation=deviation, largest_normal=largest_normal)
        self._levels = mechanism.rounds.bit_length()
        # 1/√(1 + α) with α below the number of levels, and online_scale, which is at least ½.
        largest = {"full": math.sqrt(1 + self._levels), "online": 2.0, "vanilla": 1.0}
        self.largest_diagonal = largest[mechanism.variant]
        unit = (deviation * largest_normal + self.largest_diagonal) * SLACK
        norms = _norms(mechanism) if mechanism.rounds <= _MOST_WHOLE_ROUNDS else self._coarse()
        self._largest, *self._blocks = (norm * unit for norm in norms)
        allowed("tree", np.array([max(self._largest, *self._blocks)]), np.array([self.error(mechanism.rounds)]))

    def _coarse(self) -> list[float]:
        levels = self._levels
        if self.mechanism.variant == "full":
            return [levels + 1.0, *(2.0**height * (levels + 1) for height in range(levels))]
        # The sum of n in a block is a difference of two prefix sums: of at most one estimate of a node per level.
        block = math.fsum(_estimate_norms(levels)) if self.mechanism.variant == "online" else levels + 1.0
        return [(levels + 1.0) ** 2, *[block] * levels]

    @property
    def rounds(self) -> int:
        return self.mechanism.rounds

    def largest_within(self, rounds: int) -> float:
        return self._largest

    def error(self, rounds: int) -> float:
        del rounds
        levels, blocks = self._levels, self._blocks
        if self.mechanism.variant == "vanilla":
            return 0.0
        if self.mechanism.variant == "online":
            # Weights below 1, products of up to as many factors as there are levels.
            return (3 * levels + 8) * ROUNDING * (math.fsum(blocks) + 1) * SLACK
        weights = self._full_table[:, 1:]
        # At each level, a weight is multiplied by a factor that takes at most 16 operations.
        total = float(_in_order.product(weights, np.array(blocks[: weights.shape[1]])[:, np.newaxis]).max(initial=0.0))
        return (16 * levels + 20) * ROUNDING * (total + 1) * SLACK

    @property
    def numbers(self) -> Sequence[np.ndarray]:
        if self.mechanism.variant == "full":
            return (self._full_table,)
        if self.mechanism.variant == "vanilla":
            return ()
        steps = map(tree_factors.online_step, range(self._levels))
        return tuple(np.array([scale, *weights]) for scale, weights in steps)

    @functools.cached_property
    def _full_table(self) -> np.ndarray:
        """1 / C_tt of the full tree by round, rounded up, then w_h(t) by height, all at least 0."""
        rounds = np.arange(self.mechanism.rounds)
        alpha = np.zeros(len(rounds))
        levels = self.mechanism.rounds.bit_length() - 1
        # Written for numbers, it takes arrays.
        split: Any = tree_factors.full_split
        table = np.zeros((len(rounds), 1 + levels))
        for height in range(levels, 0, -1):
            left, right, coupling = split(height, alpha)
            in_right = rounds >> (height - 1) & 1 == 1
            in_tree = (rounds ^ self.mechanism.rounds) >> height > 0
            coupling = np.where(in_tree & in_right, coupling, 0.0)
            table *= (1 + coupling * math.ldexp(1.0, height - 1))[:, np.newaxis]
            table[:, height] = coupling
            alpha = np.where(in_tree, np.where(in_right, right, left), alpha)
        table[:, 0] = tree_factors.ROUND_UP / np.sqrt(1 + alpha)
        return table


def _estimate_norms(levels: int) -> list[float]:
    """Returns the sum of the rows T(h) of `tree_factors.online_decoder`, which are positive, for each height h."""
    norms = [1.0]
    for height in range(1, levels):
        rest = 1 - tree_factors.online_weight(height)
        halves = rest * (2 * norms[-1] - tree_factors.online_scale(height - 1))
        norms.append(halves + tree_factors.online_scale(height))
    return norms


def _norms(tree: Tree) -> list[float]:
    """Returns the largest sum of absolute values of a row of C⁻¹, and of a sum of rows of a block of each height."""
    inverse = tree.inverse(tree.rounds)
    norms = [float(_in_order.sums(np.abs(inverse)).max())]
    blocks = inverse
    for _ in range(tree.rounds.bit_length()):
        norms.append(float(_in_order.sums(np.abs(blocks)).max(initial=0.0)))
        whole = len(blocks) // 2 * 2
        blocks = blocks[0:whole:2] + blocks[1:whole:2]
    return norms
