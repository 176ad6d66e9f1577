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


def largest_sum(values: np.ndarray, *, separation: int, limit: int) -> float:
    """Returns the largest sum over at most `limit` places that are at least `separation` apart.

    Choquette-Choo et al. (2023), algorithm 2 (VecSens) without the root. Their loop over the places is a running
    maximum. If no pattern is long enough to reach the limit, one pass is enough.

    Args:
        values: Nonnegative numbers, float64 `[rounds]`.
        separation: Smallest distance b of two places.
        limit: Largest number k of places.

    Example:
        >>> largest_sum(np.array([3.0, 4.0, 3.0, 0.0, 2.0]), separation=2, limit=2)
        6.0
    """
    rounds = len(values)
    if separation == 1:
        return float(np.sum(np.sort(values)[rounds - min(limit, rounds) :]))
    unlimited = limit * separation >= rounds
    return float(_in_one_pass(values, separation) if unlimited else _place_by_place(values, separation, limit))


def largest_sums(values: np.ndarray, *, separation: int, limit: int) -> np.ndarray:
    """Returns `largest_sum` of each row, or a little more where that is much faster.

    A large limit k is replaced by a price λ of each place. For every λ ≥ 0,

        max over patterns of at most k places of Σ value ≤ λk + max over all patterns of Σ (value − λ),

    and for the best λ both are equal, because "one of any b neighbours, k in all" is an interval matrix. A search over
    λ comes close, and is never below the maximum.

    Args:
        values: Nonnegative numbers, float64 `[rows, rounds]`.
        separation: Smallest distance b of two places.
        limit: Largest number k of places; may be 0.

    Example:
        >>> largest_sums(np.array([[3.0, 4.0, 3.0, 0.0, 2.0]]), separation=2, limit=2)
        array([6.])
    """
    rows, rounds = values.shape
    if limit == 0:
        return np.zeros(rows)
    if separation == 1:
        rest = rounds - min(limit, rounds)
        return np.sum(np.partition(values, rest, axis=1)[:, rest:], axis=1)
    if limit <= _MOST_PASSES:
        return _place_by_place(values, separation, min(limit, -(-rounds // separation)))
    return _by_price(np.ascontiguousarray(values.T), separation, limit)


def _place_by_place(values: np.ndarray, separation: int, limit: int) -> np.ndarray:
    # best[..., t] is the largest sum over the first t + 1 places.
    best = np.maximum.accumulate(values, axis=-1)
    for size in range(1, limit):
        # No more than `size` places fit before it.
        start = size * separation
        candidates = values[..., start:] + best[..., start - separation : -separation]
        np.maximum(candidates[..., :1], best[..., start - 1 : start], out=candidates[..., :1])
        np.maximum.accumulate(candidates, axis=-1, out=best[..., start:])
    return best[..., -1]


def _in_one_pass(values: np.ndarray, separation: int) -> np.ndarray:
    best = values.copy()
    for start in range(0, len(values), separation):
        block = best[start : start + separation]
        if start:
            block += best[start - separation : start - separation + len(block)]
            np.maximum(block[:1], best[start - 1 : start], out=block[:1])
        np.maximum.accumulate(block, axis=0, out=block)
    return best[-1]


def _by_price(values: np.ndarray, separation: int, limit: int) -> np.ndarray:
    """Golden-section search, for each column `[rounds]` of `values` on its own."""
    best = np.empty_like(values)

    def bound(price: np.ndarray) -> np.ndarray:
        np.subtract(values, price, out=best)
        np.maximum(best[0], 0, out=best[0])
        for place in range(1, len(best)):
            row = best[place]
            if place >= separation:
                row += best[place - separation]
            np.maximum(row, best[place - 1], out=row)
        return best[-1] + limit * price

    low, high = np.zeros(values.shape[1]), np.max(values, axis=0)
    left, right = high - _GOLDEN * high, _GOLDEN * high
    at_left, at_right = bound(left), bound(right)
    smallest = np.minimum(np.minimum(bound(low), at_left), at_right)
    for _ in range(_SEARCHES):
        falls = at_left > at_right
        low, high = np.where(falls, left, low), np.where(falls, high, right)
        step = _GOLDEN * (high - low)
        price = np.where(falls, low + step, high - step)
        found = bound(price)
        np.minimum(smallest, found, out=smallest)
        left, right = np.where(falls, right, price), np.where(falls, price, left)
        at_left, at_right = np.where(falls, at_right, found), np.where(falls, found, at_left)
    return smallest


def _add_from(total: np.ndarray, values: np.ndarray, offset: int) -> None:
    if offset < len(total):
        total[: len(total) - offset] += values[offset:]
