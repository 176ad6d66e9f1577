"""Sensitivity of tree aggregation: the largest sum of squared node counts of one client.

A client with rounds π adds at most Σ over nodes of (number of its rounds below the node)² to the squared norm of all
node sums. With X_st the number of nodes that rounds s and t have in common that is Σ_{s,t∈π} X_st. It is attained,
because X ≥ 0, and adding a round to a pattern never decreases it.

With `only_left`, the nodes are the left children and the roots, which the vanilla decoder uses.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from tff_mf.mechanisms.tree import Tree, forest
from tff_mf.problem.participation import FixedEpoch, MinSep, Participation, SingleParticipation
from tff_mf.sensitivities import sums
from tff_mf.sensitivities.general import SensitivityResult

_IMPOSSIBLE = -1


class _Span(NamedTuple):
    """The participations that are possible within consecutive rounds.

    Attributes:
        width: Number of rounds.
        counts: Number of participations of each entry, int64 `[entries]`.
        values: Its sum of squared counts, int64 `[entries]`.
        slack: At `[entry, s]`, the largest number of rounds that stay free at the end if the first s do, over all
            patterns with this count and at least this sum, int64 `[entries, starts]`. Capped at b − 1, because more
            makes no difference; −1 where there is no such pattern.
    """

    width: int
    counts: np.ndarray
    values: np.ndarray
    slack: np.ndarray


def tree_sensitivity(mechanism: Tree, rounds: int, participation: Participation) -> SensitivityResult:
    """Denisov et al. (2022), theorem 2.1: with CᵀC = NᵀN for the node matrix N, C is as sensitive as the nodes.

    That is exact for the full variant over all its rounds. Over fewer rounds, and for the online variant, the release
    is computed from the noised nodes of a tree, whose sensitivity is an upper bound. In the online and the vanilla
    variant, the first n rounds are the same as in a tree over n rounds; in the full variant, they depend on the total
    number of rounds. The vanilla variant's C is the matrix of the nodes that it uses, so that theirs is exact.
    """
    vanilla = mechanism.variant == "vanilla"
    leaves = mechanism.max_rounds if mechanism.variant == "full" else rounds
    arguments = (participation.min_sep, participation.max_participations)
    fixed = isinstance(participation, FixedEpoch)
    nodes = (fixed_epoch if fixed else min_sep)([*forest(leaves)], *arguments, only_left=vanilla)
    exact_schema = fixed or isinstance(participation, MinSep | SingleParticipation)
    exact = exact_schema and rounds == leaves and mechanism.variant != "online"
    return SensitivityResult(
        value=math.sqrt(nodes),
        exact=exact,
        rule=f"tree{'' if exact else ', upper bound'}: largest sum of squared "
        f"{'left-child' if vanilla else 'node'} counts over "
        f"{'fixed epochs' if fixed else 'min-sep patterns'}, Kairouz et al. (2021)",
    )


def min_sep(heights: Sequence[int], min_sep: int, max_participations: int, *, only_left: bool = False) -> int:
    """Returns the largest sum of squared node counts over min-sep patterns, exactly, for complete trees side by side.

    A dynamic program over the trees, from the leaves up. Two spans side by side meet in one number only: how many
    rounds the left one leaves free at its end. Different sums are few, and each is kept with its slack for every
    start, so that the cost is O(b) for a pair of them.

    Args:
        heights: Heights of the trees, in the order of their rounds; at least one. `forest` has those of n rounds, and
            restarts leave others.
        min_sep: Smallest difference b of two rounds of a client.
        max_participations: Largest number k of rounds of a client.
        only_left: Whether right children do not count.

    Example:
        >>> min_sep([3, 0], min_sep=4, max_participations=3), min_sep([2, 2], min_sep=4, max_participations=2)
        (11, 6)
        >>> min_sep([3, 0], min_sep=4, max_participations=3, only_left=True)
        10
    """
    rounds = sum(2**height for height in heights)
    # A larger min-sep excludes no more: no two rounds are that far apart.
    min_sep = min(min_sep, rounds)
    starts = np.arange(min_sep)
    # What a node is worth as the left child of its parent, or as a root, and as the right child.
    left = _Span(1, np.array([1]), np.array([1]), np.where(starts == 0, 0, _IMPOSSIBLE)[None])
    right = left._replace(values=np.array([0])) if only_left else left
    trees = {0: left}
    highest = max(heights)
    # If nothing comes before the only largest tree, only its right half needs every start.
    alone = heights[0] == highest and list(heights).count(highest) == 1
    for height in range(1, highest + 1):
        first = left._replace(slack=left.slack[:, :1]) if alone and height == highest else left
        parent = _side_by_side(first, right, min_sep, max_participations)
        left = parent._replace(values=parent.values + parent.counts**2)
        right = parent if only_left else left
        trees[height] = left
    whole = trees[heights[0]]
    whole = whole._replace(slack=whole.slack[:, :1])
    for height in heights[1:]:
        whole = _side_by_side(whole, trees[height], min_sep, max_participations)
    return int(whole.values.max())


def fixed_epoch(heights: Sequence[int], min_sep: int, max_participations: int, *, only_left: bool = False) -> int:
    """Returns the largest sum of squared node counts over the patterns j, j + b, … ; the arguments are as of `min_sep`.

    A pattern has `max_participations` rounds, or as many as fit.

    Example:
        >>> fixed_epoch([3, 0], min_sep=4, max_participations=3)
        11
    """
    widths = 2 ** np.array(heights)
    rounds = int(np.sum(widths))
    top = np.repeat(np.array(heights), widths)
    tree = np.repeat(np.arange(len(heights)), widths)
    place = np.arange(rounds) - np.repeat(np.cumsum(widths) - widths, widths)
    totals = np.zeros(rounds)
    for epochs in range(min(max_participations, -(-rounds // min_sep))):
        early, late = slice(rounds - epochs * min_sep), slice(epochs * min_sep, None)
        # The first node in common is as high as the highest bit in which the places differ.
        first = np.frexp((place[early] ^ place[late]).astype(np.float64))[1]
        above = top[early] + 1.0 - first
        if only_left:
            above -= _ones_from(place[early], first)
        common = np.where(tree[early] == tree[late], above, 0.0)
        pairs = sums.window_sums(common, width=max_participations - epochs, stride=min_sep)
        totals[early] += 2 * pairs if epochs else pairs
    return int(totals.max())


def _ones_from(places: np.ndarray, first: np.ndarray) -> np.ndarray:
    """Returns how many nodes above a place are right children, from a height on: ones of its digits from there."""
    digits = np.arange(int(places.max(initial=0)).bit_length())[:, np.newaxis]
    return np.sum((places >> digits & 1) * (digits >= first), axis=0)


def _side_by_side(left: _Span, right: _Span, min_sep: int, max_participations: int) -> _Span:
    """Returns the span of both; its starts are the left one's."""
    starts = left.slack.shape[1]
    # Participations on one side only.
    behind = np.where(left.slack >= 0, np.minimum(left.slack + right.width, min_sep - 1), _IMPOSSIBLE)
    before = right.slack[:, np.maximum(np.arange(starts) - left.width, 0)]
    # One integer for count and sum: sorting integers is many times faster than sorting pairs.
    base = int(left.values.max() + right.values.max()) + 1
    left_keys, right_keys = left.counts * base + left.values, right.counts * base + right.values
    allowed = np.add.outer(left.counts, right.counts) <= max_participations
    pairs = np.add.outer(left_keys, right_keys)
    distinct = np.unique(np.concatenate([left_keys, right_keys, pairs[allowed]]))
    slack = np.full((len(distinct), starts), _IMPOSSIBLE, dtype=np.int64)

    def offer(keys: np.ndarray, rows: np.ndarray) -> None:
        target = np.searchsorted(distinct, keys)
        slack[target] = np.maximum(slack[target], rows)

    offer(left_keys, behind)
    offer(right_keys, before)
    for entry, free in enumerate(left.slack):
        partners = np.flatnonzero(allowed[entry])
        needed = np.clip(min_sep - 1 - free, 0, min_sep - 1)
        offer(pairs[entry, partners], np.where(free >= 0, right.slack[np.ix_(partners, needed)], _IMPOSSIBLE))
    return _without_dominated(left.width + right.width, distinct // base, distinct % base, slack)


def _without_dominated(width: int, counts: np.ndarray, values: np.ndarray, slack: np.ndarray) -> _Span:
    """Drops entries that another entry of the same count and no smaller sum can replace from every start."""
    # From the largest sum of a count to the smallest. Lifted by their count's offset, all slacks of the next count
    # are above the last count's, so that one running maximum serves all counts.
    scan = slice(None, None, -1)
    offsets = (np.cumsum(np.diff(counts[scan], prepend=0) != 0) * (slack.max() + 2))[:, None]
    best = np.maximum.accumulate(slack[scan] + offsets, axis=0)
    new = np.any(np.diff(best, axis=0, prepend=np.full_like(best[:1], _IMPOSSIBLE)), axis=1)
    undominated = np.flatnonzero(new & np.any(best - offsets > _IMPOSSIBLE, axis=1))[scan]
    return _Span(width, counts[scan][undominated], values[scan][undominated], (best - offsets)[undominated])
