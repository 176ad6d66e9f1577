"""Central moments of Z = e^L′ = (1/b) Σ_j exp(a_j − K′_jj/2), exact up to rounding, which is bounded."""

import numpy as np

_STEPS = 1e4


def central_moments(
    covariance: np.ndarray, *, rounding: float = 0.0, highest: int = 4
) -> tuple[np.ndarray, np.ndarray]:
    """Returns E[(Z − 1)^r] for r = 0, …, `highest`, and bounds on their errors.

    E[Π (X_j − 1)] over the indices of r lognormal X_j with mean 1 is, by inclusion and exclusion, the sum over all
    graphs on r vertices without an isolated one of the product of expm1(K′_ij) over their edges. On 4 vertices those
    are 3 pairs of edges, 12 paths, 4 stars, 3 circles, 12 triangles with an edge, 6 circles with a chord and 1 complete
    graph; on 3 vertices, 3 paths and 1 triangle.

    Args:
        covariance: K′, float64 `[bins, bins]`.
        rounding: Bound on the error of each of its entries.
        highest: 4, or less to save time that grows with the fourth power of bins.

    Example:
        >>> moments, errors = central_moments(np.array([[0.04]]))
        >>> bool(abs(moments[2] - np.expm1(0.04)) < 1e-15)
        True
    """
    bins = len(covariance)
    edges = np.expm1(covariance)
    values, sizes = _sums(edges, complete=highest == 4), _sums(np.abs(edges), complete=False)
    # Sums of absolute values are convex along a ray: a larger step bounds, in proportion, a change too small to see.
    moved = _sums(np.abs(edges) + _STEPS * 2 * rounding * np.exp(np.abs(covariance)), complete=False)
    # A sum of up to b⁴ products, each with an error of a few units, added up in five nested sums of b terms.
    errors = sizes * (6 * bins + 64) * 2.0**-53 + (moved - sizes) / _STEPS + moved * 1e-14 / _STEPS
    return values[: highest + 1], errors[: highest + 1]


def _sums(edges: np.ndarray, *, complete: bool) -> np.ndarray:
    bins = len(edges)
    rows = edges.sum(axis=1)
    squared = edges @ edges
    triangles = np.einsum("ij,ij->i", squared, edges)
    second = rows.sum() / bins**2
    third = (3 * (rows @ rows) + triangles.sum()) / bins**3
    circle_with_chord = np.sum(edges * squared**2)
    fourth = (
        12 * (rows @ edges @ rows)
        + 4 * np.sum(rows**3)
        + 3 * np.sum(squared**2)
        + 12 * (triangles @ rows)
        + 6 * circle_with_chord
        + (_complete(edges) if complete else circle_with_chord * np.max(edges))
    ) / float(bins) ** 4 + 3 * second**2
    return np.array([1.0, 0.0, second, third, fourth])


def _complete(edges: np.ndarray) -> float:
    """Returns the sum over i, j, k, l of the product of all six entries between them."""
    total = 0.0
    for row in edges:
        beside = edges * row
        total += float(row @ np.einsum("jk,jk->j", beside @ edges, beside))
    return total
