"""A linear program with a few variables and thousands of constraints, by the simplex method on its dual.

SciPy's solver ends the whole process on some of these badly scaled programs.
"""

import numpy as np

_MOST_STEPS = 400
# Bound on every variable, which makes the first step possible.
_LARGEST = 1e7
_TOLERANCE = 1e-10


def smallest_above(objective: np.ndarray, rows: np.ndarray, heights: np.ndarray) -> np.ndarray:
    """Returns x that nearly minimizes objective·x subject to rows·x ≥ heights and |x| ≤ 1e7.

    Constraints may be violated by rounding, or where the search ends early: verify the result.

    Args:
        objective: float64 `[variables]`.
        rows: float64 `[constraints, variables]`, each of a norm near 1.
        heights: float64 `[constraints]`.

    Example:
        >>> smallest_above(np.array([1.0, 0.0]), np.array([[1.0, -1.0], [1.0, 1.0]]), np.array([1.0, 2.0]))
        array([1.5, 0.5])
    """
    count = len(objective)
    signs = np.where(objective >= 0, 1.0, -1.0)
    columns = np.concatenate([rows, np.eye(count), -np.eye(count)])
    values = np.concatenate([heights, np.full(2 * count, -_LARGEST)])
    basis = len(rows) + np.arange(count) + np.where(signs > 0, 0, count)
    best = np.full(count, _LARGEST) * -signs
    for _ in range(_MOST_STEPS):
        matrix = columns[basis]
        try:
            x = np.linalg.solve(matrix, values[basis])
            weights = np.linalg.solve(matrix.T, objective)
        except np.linalg.LinAlgError:
            break
        best = x
        excess = values - columns @ x
        excess[basis] = 0
        entering = int(np.argmax(excess))
        if excess[entering] <= _TOLERANCE * (1 + abs(values[entering])):
            break
        change = np.linalg.solve(matrix.T, columns[entering])
        steps = np.where(change > 1e-13, np.maximum(weights, 0) / np.where(change > 1e-13, change, 1), np.inf)
        leaving = int(np.argmin(steps))
        if not np.isfinite(steps[leaving]):
            break
        basis[leaving] = entering
    return best
