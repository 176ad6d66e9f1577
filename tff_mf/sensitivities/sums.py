"""Sums over the rounds of a participation pattern, and the largest of them.

All numbers are nonnegative and are only added, so nothing cancels.
"""

import numpy as np

# Up to this many passes over all values are faster than a search for a price.
_MOST_PASSES = 24
_SEARCHES = 24
_GOLDEN = (5**0.5 - 1) / 2


def window_sums(values: np.ndarray, *, width: int, stride: int) -> np.ndarray:
    """Returns at [j] the sum of values[j], values[j + stride], …, `width` of them or as many as there are.

    In O(n log width): a window is the sum of windows whose widths are powers of two. Differences of running sums would
    be as fast, but cancel.

    Args:
        values: Numbers, float64 `[rounds]`.
        width: Number of values to add.
        stride: Distance from one to the next.

    Example:
        >>> window_sums(np.array([1.0, 2.0, 4.0, 8.0, 16.0]), width=2, stride=2)
        array([ 5., 10., 20.,  8., 16.])
    """
    width = min(width, -(-len(values) // stride))
    total = np.zeros_like(values)
    window, size, done = values, 1, 0
    while True:
        if width & size:
            _add_from(total, window, done * stride)
            done += size
        if done == width:
            return total
        doubled = window.copy()
        _add_from(doubled, window, size * stride)
        window, size = doubled, 2 * size


def largest_sum(values: np.ndarray, *, min_sep: int, max_participations: int) -> float:
    """Returns the largest sum over at most `max_participations` places that are at least `min_sep` apart.

    Choquette-Choo et al. (2023), algorithm 2 (VecSens) without the root. Their loop over the places is a running
    maximum. If no pattern is long enough to reach the limit, one pass is enough.

    Args:
        values: Nonnegative numbers, float64 `[rounds]`.
        min_sep: Smallest distance b of two places.
        max_participations: Largest number k of places.

    Example:
        >>> largest_sum(np.array([3.0, 4.0, 3.0, 0.0, 2.0]), min_sep=2, max_participations=2)
        6.0
    """
    rounds = len(values)
    if min_sep == 1:
        return float(np.sum(np.sort(values)[rounds - min(max_participations, rounds) :]))
    unlimited = max_participations * min_sep >= rounds
    return float(_in_one_pass(values, min_sep) if unlimited else _place_by_place(values, min_sep, max_participations))


def largest_sums(values: np.ndarray, *, min_sep: int, max_participations: int) -> np.ndarray:
    """Returns `largest_sum` of each row, or a little more where that is much faster.

    A large limit k is replaced by a price λ of each place. For every λ ≥ 0,

        max over patterns of at most k places of Σ value ≤ λk + max over all patterns of Σ (value − λ),

    and for the best λ both are equal, because "one of any b neighbours, k in all" is an interval matrix. A search over
    λ comes close, and is never below the maximum.

    Args:
        values: Nonnegative numbers, float64 `[rows, rounds]`.
        min_sep: Smallest distance b of two places.
        max_participations: Largest number k of places; may be 0.

    Example:
        >>> largest_sums(np.array([[3.0, 4.0, 3.0, 0.0, 2.0]]), min_sep=2, max_participations=2)
        array([6.])
    """
    rows, rounds = values.shape
    if max_participations == 0:
        return np.zeros(rows)
    if min_sep == 1:
        rest = rounds - min(max_participations, rounds)
        return np.sum(np.partition(values, rest, axis=1)[:, rest:], axis=1)
    if max_participations <= _MOST_PASSES:
        return _place_by_place(values, min_sep, min(max_participations, -(-rounds // min_sep)))
    return _by_price(np.ascontiguousarray(values.T), min_sep, max_participations)


def _place_by_place(values: np.ndarray, min_sep: int, max_participations: int) -> np.ndarray:
    # best[..., t] is the largest sum over the first t + 1 places.
    best = np.maximum.accumulate(values, axis=-1)
    for size in range(1, max_participations):
        # No more than `size` places fit before it.
        start = size * min_sep
        candidates = values[..., start:] + best[..., start - min_sep : -min_sep]
        np.maximum(candidates[..., :1], best[..., start - 1 : start], out=candidates[..., :1])
        np.maximum.accumulate(candidates, axis=-1, out=best[..., start:])
    return best[..., -1]


def _in_one_pass(values: np.ndarray, min_sep: int) -> np.ndarray:
    best = values.copy()
    for start in range(0, len(values), min_sep):
        block = best[start : start + min_sep]
        if start:
            block += best[start - min_sep : start - min_sep + len(block)]
            np.maximum(block[:1], best[start - 1 : start], out=block[:1])
        np.maximum.accumulate(block, axis=0, out=block)
    return best[-1]


def _by_price(values: np.ndarray, min_sep: int, max_participations: int) -> np.ndarray:
    """Golden-section search, for each column `[rounds]` of `values` on its own."""
    best = np.empty_like(values)

    def bound(price: np.ndarray) -> np.ndarray:
        np.subtract(values, price, out=best)
        np.maximum(best[0], 0, out=best[0])
        for place in range(1, len(best)):
            row = best[place]
            if place >= min_sep:
                row += best[place - min_sep]
            np.maximum(row, best[place - 1], out=row)
        return best[-1] + max_participations * price

    low, high = np.zeros(values.shape[1]), np.max(values, axis=0)
    left, right = high - _GOLDEN * high, _GOLDEN * high
    at_left, at_right = bound(left), bound(right)
    smallest = np.minimum(np.minimum(bound(low), at_left), at_right)
    for _ in range(_SEARCHES):
        falls = at_left > at_right
        low, high = np.where(falls, left, low), np.where(falls, high, right)
        step = _GOLDEN * (high - low)
        price = np.where(falls, low + step, high - step)
        at_price = bound(price)
        np.minimum(smallest, at_price, out=smallest)
        left, right = np.where(falls, right, price), np.where(falls, price, left)
        at_left, at_right = np.where(falls, at_right, at_price), np.where(falls, at_price, at_left)
    return smallest


def _add_from(total: np.ndarray, values: np.ndarray, offset: int) -> None:
    if offset < len(total):
        total[: len(total) - offset] += values[offset:]
