"""BFGS for functions with kinks, and a measure of stationarity at kinks.

Lewis and Overton (2013), "Nonsmooth optimization via quasi-Newton methods": BFGS with a weak Wolfe line search moves
along a kink, where the gradient does not tend to zero.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from tff_mf.optimize._descent import Value

_DECREASE, _CURVATURE = 1e-4, 0.9

# A step is tried if its expected gain is at least this fraction of the tolerance.
_PROMISE = 1e-4
_TRIALS = 60

# A search ends after this number of consecutive iterations that gain no more than the tolerance each.
_PATIENCE = 8

# Sizes are at a kink if making them equal would change the function by no more than this.
_TIED = 1e-4

# Largest number of sizes at kinks that are considered, since leaving some out only overestimates the slope; and the
# weight of the equations between them in least squares.
_MOST_TIES = 300
_EQUATIONS = 1e3


class Path(NamedTuple):
    """Where a search ended, its value after each iteration, and whether it ended by itself."""

    variables: np.ndarray
    values: list[float]
    ended: bool


def bfgs(loss: Callable[[np.ndarray], Value], start: np.ndarray, *, iterations: int, tolerance: float) -> Path:
    """Minimizes a function that is finite at `start`; it may be infinite or NaN elsewhere.

    Args:
        loss: Returns the function and its gradient, at a kink from one side.
        start: Where to start, float64 `[variables]`, in units in which the curvature is about 1.
        iterations: Largest number of iterations.
        tolerance: Largest gain of an iteration that is taken for none.
    """
    variables, here = start, loss(start)
    metric = np.eye(len(start))
    values, idle = [here.value], 0
    while idle < _PATIENCE:
        if len(values) > iterations:
            return Path(variables, values, ended=False)
        direction = -metric @ here.gradient
        length, there = _line_search(loss, variables, here, direction, _PROMISE * tolerance)
        if length == 0:
            break
        step, bend = length * direction, there.gradient - here.gradient
        if step @ bend > 0:
            metric = _updated(metric, step, bend)
        idle = idle + 1 if here.value - there.value <= tolerance else 0
        variables, here = variables + step, there
        values.append(here.value)
    return Path(variables, values, ended=True)


def _line_search(
    loss: Callable[[np.ndarray], Value], variables: np.ndarray, here: Value, direction: np.ndarray, least: float
) -> tuple[float, Value]:
    """Returns the length of a step that meets the weak Wolfe conditions, or else the first of them, or else 0."""
    slope = float(here.gradient @ direction)
    low, high, at_low = 0.0, np.inf, here
    length = 1.0
    for _ in range(_TRIALS):
        if not -slope * length > least:
            break
        there = loss(variables + length * direction)
        if not there.value <= here.value + _DECREASE * length * slope:
            high = length
        elif there.gradient @ direction < _CURVATURE * slope:
            low, at_low = length, there
        else:
            return length, there
        length = (low + high) / 2 if np.isfinite(high) else 2 * length
    return low, at_low


def _updated(metric: np.ndarray, step: np.ndarray, bend: np.ndarray) -> np.ndarray:
    product = step @ bend
    bent = metric @ bend
    cross = np.outer(bent, step)
    return metric + (product + bend @ bent) / product**2 * np.outer(step, step) - (cross + cross.T) / product


class Ties(NamedTuple):
    """The sizes |c_j| that are bounds, or nearly so; derivatives may be shifted between sizes that are linked.

    Attributes:
        places: Places j of these sizes, in increasing order, int `[ties]`.
        held: Sum of the derivatives with respect to the bounds that equal this size, float64 `[ties]`.
        linked: Whether the next of these sizes is as large, so that it may be the bound instead, bool `[ties]`.
        none: Whether the size is nearly 0, bool `[ties]`.
    """

    places: np.ndarray
    held: np.ndarray
    linked: np.ndarray
    none: np.ndarray


def ties(sizes: np.ndarray, bound: np.ndarray, mass: np.ndarray, *, may_rise: bool) -> Ties:
    """Returns the sizes on which their bounds depend.

    Args:
        sizes: |c|, float64 `[rounds]`.
        bound: For each place, the largest size from there on, or the size itself, float64 `[rounds]`.
        mass: Derivatives of a function with respect to the bounds, ≥ 0, float64 `[rounds]`.
        may_rise: Whether each bound is the size itself.
    """
    whole = mass.sum()
    tied = _TIED / whole if whole else 0.0
    places = np.flatnonzero(sizes >= bound - tied)
    at_places = sizes[places]
    return Ties(
        places=places,
        held=np.add.reduceat(mass, np.concatenate([[0], places[:-1] + 1])),
        linked=np.zeros(len(places), dtype=bool) if may_rise else _linked(at_places, tied),
        none=at_places <= tied,
    )


def _linked(sizes: np.ndarray, tied: float) -> np.ndarray:
    """Returns whether the next size is, up to `tied`, no less than all sizes linked to it."""
    linked = np.zeros(len(sizes), dtype=bool)
    largest = sizes[0]
    for place, size in enumerate(sizes[1:]):
        linked[place] = size >= largest - tied
        largest = max(largest, size) if linked[place] else size
    return linked


def split(found: Ties) -> tuple[Ties, Ties]:
    """Returns the sizes at kinks, at most `_MOST_TIES` of them, and the others."""
    kinked = found.linked | np.append(False, found.linked[:-1]) | found.none
    kinked &= np.cumsum(kinked) <= _MOST_TIES
    at_kinks, others = (Ties(*(values[where] for values in found)) for where in (kinked, ~kinked))
    # The last one may have been linked to a size that is left out.
    at_kinks.linked[-1:] = False
    return at_kinks, others


def least_gradient(rest: np.ndarray, gradients: np.ndarray, at_kinks: Ties) -> float:
    """Returns the largest entry of the shortest generalized gradient at a kink.

    The derivative held by a size may be shifted along links, and has either sign if the size is 0. The resulting sums
    are Clarke's generalized gradient, and a point is stationary if it contains 0. If sizes are only nearly equal, it
    belongs to nearby points.

    Args:
        rest: Gradient of the terms without a kink, float64 `[variables]`.
        gradients: Gradients of the sizes at kinks, float64 `[ties, variables]`.
        at_kinks: The sizes at kinks.
    """
    from scipy.optimize import nnls

    whole = at_kinks.held.sum()
    if not whole > 0:
        return float(np.abs(rest).max())
    # Unknowns: the part that stays at each size, the part that does with opposite sign, and the part that is shifted.
    stays = np.eye(len(gradients))
    moves = (stays - np.eye(len(gradients), k=-1))[:, at_kinks.linked]
    balance = np.hstack([stays, stays[:, at_kinks.none], moves])
    slopes = whole * np.hstack([gradients.T, -gradients[at_kinks.none].T, np.zeros((len(rest), moves.shape[1]))])
    weight = _EQUATIONS * max(np.abs(slopes).max(), np.abs(rest).max())
    try:
        shares, _ = nnls(np.vstack([weight * balance, slopes]), np.append(weight * at_kinks.held / whole, -rest))
    except RuntimeError:
        # It did not converge: the gradient of one side is an upper bound.
        return float(np.abs(rest + at_kinks.held @ gradients).max())
    return float(np.abs(rest + slopes @ shares).max())
