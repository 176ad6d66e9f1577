"""BFGS for functions with kinks, and how far from stationary a point at a kink is.

Lewis and Overton (2013), "Nonsmooth optimization via quasi-Newton methods": BFGS with a line search that asks for less
decrease than the smooth theory finds its way along a kink, where the gradient does not go to zero.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from tff_mf.optimize._descent import Value

_DECREASE, _CURVATURE = 1e-4, 0.9

# A step is tried as long as it promises so many times the tolerance.
_PROMISE = 1e-4
_TRIALS = 60

# A search ends where so many iterations in a row gain no more than the tolerance each.
_PATIENCE = 8

# Sizes meet in a kink if all of them together would change the function by less if they were equal.
_TIED = 1e-4

# Sizes that meet are looked at up to so many: fewer of them only make a slope look larger.
_MOST_TIES = 300
_EQUATIONS = 1e3


class Path(NamedTuple):
    """Where a search ended, the values on its way, and whether it ended by itself."""

    variables: np.ndarray
    values: list[float]
    ended: bool


def bfgs(loss: Callable[[np.ndarray], Value], start: np.ndarray, *, iterations: int, tolerance: float) -> Path:
    """Minimizes a function that is finite at `start`; it may be infinite or NaN elsewhere.

    Args:
        loss: Returns the function and its gradient, at a kink that of one side.
        start: Where to start, float64 `[variables]`, in units in which the curvature is about 1.
        iterations: Largest number of them.
        tolerance: Gain of an iteration that counts as none.
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
    """Returns a step that meets the weak Wolfe conditions, or at least the first of them, or 0 if there is none."""
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
    """Sizes |c_j| that the bounds are made of, or nearly: each may take over what those that it is linked to hold.

    Attributes:
        places: Places j of these sizes, rising, int `[ties]`.
        held: Sum of the derivatives by the bounds that are this size, float64 `[ties]`.
        linked: Whether the next of these sizes is as large, so that it may be the bound as well, bool `[ties]`.
        none: Whether the size is nearly 0, bool `[ties]`.
    """

    places: np.ndarray
    held: np.ndarray
    linked: np.ndarray
    none: np.ndarray


def ties(sizes: np.ndarray, bound: np.ndarray, mass: np.ndarray, *, may_rise: bool) -> Ties:
    """Returns the sizes that bounds of them depend on.

    Args:
        sizes: |c|, float64 `[rounds]`.
        bound: Each the largest size from there on, or the size itself, float64 `[rounds]`.
        mass: Derivatives of a function by the bounds, ≥ 0, float64 `[rounds]`.
        may_rise: Whether a bound is the size itself.
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
    """Returns whether the next size is no less than all that are linked to it, but for `tied`."""
    linked = np.zeros(len(sizes), dtype=bool)
    largest = sizes[0]
    for place, size in enumerate(sizes[1:]):
        linked[place] = size >= largest - tied
        largest = max(largest, size) if linked[place] else size
    return linked


def split(found: Ties) -> tuple[Ties, Ties]:
    """Returns those at kinks, up to as many as are looked at, and the others."""
    kinked = found.linked | np.append(False, found.linked[:-1]) | found.none
    kinked &= np.cumsum(kinked) <= _MOST_TIES
    at_kinks, others = (Ties(*(values[where] for values in found)) for where in (kinked, ~kinked))
    # The last one may have been linked to one that is not looked at.
    at_kinks.linked[-1:] = False
    return at_kinks, others


def least_gradient(rest: np.ndarray, gradients: np.ndarray, at_kinks: Ties) -> float:
    """Returns the largest entry of the shortest of the gradients that meet at a kink.

    What a size holds may move on along links, and where a size is 0 count with both signs: the sums are
    Clarke's generalized gradient, and a point is stationary where 0 is one of them. With sizes that are nearly equal,
    they are those of points close by.

    Args:
        rest: Gradient of all that has no kink here, float64 `[variables]`.
        gradients: Gradients of the sizes at kinks, float64 `[ties, variables]`.
        at_kinks: What they hold.
    """
    from scipy.optimize import nnls

    whole = at_kinks.held.sum()
    if not whole > 0:
        return float(np.abs(rest).max())
    # Unknowns: what stays at each size, what does with the other sign, and what moves on from it.
    stays = np.eye(len(gradients))
    moves = (stays - np.eye(len(gradients), k=-1))[:, at_kinks.linked]
    balance = np.hstack([stays, stays[:, at_kinks.none], moves])
    slopes = whole * np.hstack([gradients.T, -gradients[at_kinks.none].T, np.zeros((len(rest), moves.shape[1]))])
    weight = _EQUATIONS * max(np.abs(slopes).max(), np.abs(rest).max())
    try:
        shares, _ = nnls(np.vstack([weight * balance, slopes]), np.append(weight * at_kinks.held / whole, -rest))
    except RuntimeError:
        # It did not end in as many steps as it is given: the gradient of one side is no smaller.
        return float(np.abs(rest + at_kinks.held @ gradients).max())
    return float(np.abs(rest + slopes @ shares).max())
