"""Sums over the rounds of a participation pattern, and the largest of them.

All numbers are nonnegative and are only added, so that nothing cancels.
"""

import numpy as np


def window_sums(values: np.ndarray, *, width: int, stride: int) -> np.ndarray:
    """Returns at [j] the sum of values[j], values[j + stride], …, `width` of them or as many as there are.

    In O(n log width): windows are put together from windows whose widths are powers of two.
    Differences of running sums would be as fast, and cancel.

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


def largest_sums(values: np.ndarray, *, separation: int, limit: int) -> np.ndarray:
    """Returns, for each row, its largest sum over at most `limit` places that are `separation` apart or more.

    Choquette-Choo et al. (2023), algorithm 2 (VecSens), for all rows at once; their second loop, over
    the places, is a running maximum. Where no pattern is long enough for the limit to matter, one
    pass over the places does.

    Args:
        values: Nonnegative numbers, float64 `[rows, rounds]`.
        separation: Smallest distance b of two places.
        limit: Largest number k of places; may be 0.

    Example:
        >>> largest_sums(np.array([[3.0, 4.0, 3.0, 0.0, 2.0]]), separation=2, limit=2)
        array([6.])
    """
    rows, rounds = values.shape
    most = -(-rounds // separation)
    if limit == 0:
        return np.zeros(rows)
    if separation == 1:
        largest = np.partition(values, rounds - min(limit, rounds), axis=1)[:, rounds - min(limit, rounds) :]
        return np.sum(largest, axis=1)
    return _unlimited(values, separation) if limit >= most else _limited(values, separation, limit)


def _limited(values: np.ndarray, separation: int, limit: int) -> np.ndarray:
    # best[:, t] is the largest sum over the first t + 1 places.
    best = np.maximum.accumulate(values, axis=1)
    for size in range(1, limit):
        # More than `size` places do not fit in front of it.
        start = size * separation
        candidates = values[:, start:] + best[:, start - separation : -separation]
        np.maximum(candidates[:, 0], best[:, start - 1], out=candidates[:, 0])
        np.maximum.accumulate(candidates, axis=1, out=best[:, start:])
    return best[:, -1]


def _unlimited(values: np.ndarray, separation: int) -> np.ndarray:
    best = values.copy()
    for start in range(0, values.shape[1], separation):
        block = best[:, start : start + separation]
        if start:
            block += best[:, start - separation : start - separation + block.shape[1]]
            np.maximum(block[:, 0], best[:, start - 1], out=block[:, 0])
        np.maximum.accumulate(block, axis=1, out=block)
    return best[:, -1]


def _add_from(total: np.ndarray, values: np.ndarray, offset: int) -> None:
    if offset < len(total):
        total[: len(total) - offset] += values[offset:]
