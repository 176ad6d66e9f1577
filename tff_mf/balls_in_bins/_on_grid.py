"""ε of the integers that a run on a grid releases: that of the ideal release, and how close the integers are to it."""

import dataclasses
import math

import numpy as np

from tff_mf import gaussian, grids
from tff_mf.balls_in_bins._bounds import FAILURE, Problem, epsilon_bound
from tff_mf.balls_in_bins._result import BallsInBinsGuarantee
from tff_mf.grids import GridCharge
from tff_mf.guarantees import Guarantee


def epsilon_on_grid(problem: Problem, charge: GridCharge, delta: float, *, share: float) -> BallsInBinsGuarantee:
    """Returns ε of the computed release; a certificate by sampling may fail with `share` of δ/1000.

    Formal guarantee: given a certificate that holds, that of `grids.charged_epsilon`. The δ₀ of the ideal release
    includes what a certificate may fail with, and the chain multiplies δ₀ by at least 1. δ₀ depends on no sample.
    """
    ideal = dataclasses.replace(problem, gram=widened(problem.gram, charge.sensitivity))
    known = known_on_grid(problem, problem.sigma, charge).epsilon(delta)
    part = grids.ideal_delta(gaussian.epsilon_from_delta(delta, ideal.mu()), delta, charge)
    found = epsilon_bound(ideal, part or delta, failure=FAILURE * part * share)
    value = grids.charged_epsilon(found.epsilon, part, delta, charge) if part else math.inf
    if known <= value:
        return dataclasses.replace(found, epsilon=known, delta=delta, bound="unamplified", failure=0.0)
    return dataclasses.replace(found, epsilon=value, delta=delta)


def known_on_grid(problem: Problem, sigma: float, charge: GridCharge) -> Guarantee:
    """Returns the guarantee of the computed release for a client whose group is known."""
    ideal = dataclasses.replace(problem, gram=widened(problem.gram, charge.sensitivity), sigma=sigma)
    return Guarantee(mu=(ideal.mu() + 2 * charge.mu) * (1 + 2.0**-48), tail=charge.tail)


def widened(gram: np.ndarray, change: float) -> np.ndarray:
    """Returns a matrix that is at least C̃'s G in every entry, where every ‖(C̃ − C)x_j‖ is at most `change`.

    By Cauchy and Schwarz, ⟨C̃x_i, C̃x_j⟩ is at most G_ij + change·(√G_ii + √G_jj) + change².

    Example:
        >>> widened(np.array([[1.0, 0.5], [0.5, 4.0]]), 0.5)
        array([[2.25, 2.25],
               [2.25, 6.25]])
    """
    if not change:
        return gram
    norms = np.sqrt(np.diagonal(gram))
    return gram + change * (norms[:, np.newaxis] + norms) + change**2
