"""Slow and direct computations of δ(ε) with balls-in-bins sampling, which share nothing with the package."""

import itertools
import math

import numpy as np
from scipy.special import ndtr


def quadrature(covariance, epsilon, *, remove, points=None, reach=10.0):
    """Returns δ(ε) of the pair of covariance K, by trapezoids over all normals but the last, which has a closed form.

    a = Tz with T lower-triangular, so that z_b moves a_b alone: e^L = (S + s)/b with s lognormal given S.
    """
    bins = len(covariance)
    lower = np.linalg.cholesky(covariance)
    shift = float(np.max(lower)) * 1.5
    points = points or {2: 4001, 3: 401, 4: 121}[bins]
    axis = np.linspace(-reach - shift, reach + shift, points)
    weight = np.exp(-axis * axis / 2) / math.sqrt(2 * math.pi) * (axis[1] - axis[0])
    grids = np.meshgrid(*[axis] * (bins - 1), indexing="ij")
    weights = np.prod(np.meshgrid(*[weight] * (bins - 1), indexing="ij"), axis=0).ravel()
    vector = np.stack([grid.ravel() for grid in grids], axis=1) @ lower[:, :-1].T - np.diagonal(covariance) / 2
    others = np.exp(vector[:, :-1]).sum(axis=1)
    spread = lower[-1, -1]
    mean = np.exp(vector[:, -1] + spread**2 / 2)
    # (S + s)/b − e^ε, or 1 − e^ε(S + s)/b: s against this threshold.
    threshold = bins * math.exp(epsilon if remove else -epsilon) - others
    inside = threshold > 0
    safe = np.where(inside, threshold, 1.0)
    at = (np.log(mean) - np.log(safe)) / spread
    if remove:
        option = mean * ndtr(at + spread / 2) - safe * ndtr(at - spread / 2)
        return float(weights @ np.where(inside, option, mean - threshold)) / bins
    option = safe * ndtr(spread / 2 - at) - mean * ndtr(-at - spread / 2)
    return float(weights @ np.where(inside, option, 0.0)) * math.exp(epsilon) / bins


def moment(covariance, order):
    """Returns E[(Z − 1)^order], by the sum over all indices and all subsets of them."""
    bins = len(covariance)
    total = 0.0
    for indices in itertools.product(range(bins), repeat=order):
        for size in range(order + 1):
            for chosen in itertools.combinations(indices, size):
                pairs = sum(covariance[i, j] for i, j in itertools.combinations(chosen, 2))
                total += (-1) ** (order - size) * math.exp(pairs)
    return total / bins**order
