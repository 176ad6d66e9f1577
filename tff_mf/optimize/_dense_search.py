"""Search for the dual optimum: from coarse to fine, by Anderson's mixing of fixed-point steps."""

from collections.abc import Iterator

import numpy as np

from tff_mf.optimize import _dense_dual
from tff_mf.optimize._dense_dual import Evaluation, Point, Problem

# Number of steps that are mixed. More give no gain, and each takes as much memory as all multipliers.
_MEMORY = 8

# Length of the first step, which has no others to be mixed with; residuals shrink by half or more in later ones.
_FIRST_STEP = 1.5

# Accuracy of a coarse solution: a better one would be lost in the interpolation.
_COARSE_VIOLATION = 3e-3
_COARSE_STEPS = 30
_COARSEST_CLASSES = 8

# Growth of the residual, relative to the best, at which a search is restarted.
_GROWTH = 4.0


def search(problem: Problem) -> Iterator[Evaluation]:
    """Yields evaluations that approach the optimum, without end: the caller decides when one is close enough.

    Multipliers are smooth functions of the place in an epoch. The optimum of the problem with half as many rounds per
    epoch, found in the same way in an eighth of the time, is a start from which few steps are needed.
    """
    yield from _mixed(problem, _first(problem))


def _first(problem: Problem) -> Point:
    classes = len(problem.exists)
    if classes < 2 * _COARSEST_CLASSES:
        return _dense_dual.start(problem)
    groups = _halved(problem.exists)
    coarse = _coarse(problem, groups)
    best = None
    for step, evaluation in enumerate(search(coarse)):
        if best is None or evaluation.violation < best.violation:
            best = evaluation
        if best.violation < _COARSE_VIOLATION or step == _COARSE_STEPS:
            return _interpolated(problem, coarse, best.point)
    raise AssertionError("a search has no end of its own")


def _mixed(problem: Problem, point: Point) -> Iterator[Evaluation]:
    """Yields the evaluations of Anderson's mixing, restarted at the best point so far if the residual grew a lot."""
    best: Evaluation | None = None
    first_step = _FIRST_STEP
    places: list[np.ndarray] = []
    residuals: list[np.ndarray] = []
    while True:
        evaluation = _dense_dual.evaluate(problem, point)
        yield evaluation
        size = float(np.linalg.norm(evaluation.residual))
        if best is not None and not size <= _GROWTH * float(np.linalg.norm(best.residual)):
            places, residuals, first_step = [], [], first_step / 2
            evaluation = best
        elif best is None or size < np.linalg.norm(best.residual):
            best = evaluation
        places = [*places, _dense_dual.variables(problem, evaluation.point)][-_MEMORY - 1 :]
        residuals = [*residuals, evaluation.residual][-_MEMORY - 1 :]
        point = _dense_dual.point_of(problem, _step(places, residuals, first_step))


def _step(places: list[np.ndarray], residuals: list[np.ndarray], first_step: float) -> np.ndarray:
    if len(places) == 1:
        return places[0] + first_step * residuals[0]
    moves, changes = np.diff(places, axis=0).T, np.diff(residuals, axis=0).T
    mixture = np.linalg.lstsq(changes, residuals[-1], rcond=1e-10)[0]
    return places[-1] + residuals[-1] - (moves + changes) @ mixture


def _halved(exists: np.ndarray) -> np.ndarray:
    """Returns the first class of each group of one or two neighboring classes that have the same epochs."""
    change = int(np.count_nonzero(exists[:, -1]))
    return np.unique(np.concatenate([np.arange(0, change, 2), np.arange(change, len(exists), 2)]))


def _coarse(problem: Problem, groups: np.ndarray) -> Problem:
    sizes = np.diff(groups, append=len(problem.exists))
    sums = np.add.reduceat(np.add.reduceat(problem.gram, groups, axis=0), groups, axis=2)
    gram = sums / (sizes[:, None, None, None] * sizes[:, None])
    return Problem(np.ascontiguousarray(gram), problem.exists[groups], problem.equal_norms)


def _interpolated(problem: Problem, coarse: Problem, point: Point) -> Point:
    change, coarse_change = np.count_nonzero(problem.exists[:, -1]), np.count_nonzero(coarse.exists[:, -1])
    parts = [
        Point(
            np.exp(_stretched(np.log(point.weights[here]), size)),
            _stretched(point.correlations[here], size),
        )
        for here, size in (
            (slice(coarse_change), change),
            (slice(coarse_change, None), len(problem.exists) - change),
        )
        if size
    ]
    weights = np.concatenate([part.weights for part in parts])
    correlations = np.concatenate([part.correlations for part in parts])
    whole = Point(weights, correlations)
    return _dense_dual.point_of(problem, _dense_dual.variables(problem, whole))


def _stretched(values: np.ndarray, size: int) -> np.ndarray:
    """Returns values interpolated to `size` places along the first axis.

    Multipliers fall like powers of the distance to either end, so that they are nearly linear in its logarithm.
    """
    if len(values) == 1:
        return np.repeat(values, size, axis=0)
    known, wanted = _logits(len(values)), _logits(size)
    after = np.clip(np.searchsorted(known, wanted), 1, len(known) - 1)
    share = ((wanted - known[after - 1]) / (known[after] - known[after - 1])).reshape(-1, *[1] * (values.ndim - 1))
    return (1 - share) * values[after - 1] + share * values[after]


def _logits(size: int) -> np.ndarray:
    places = np.arange(size) + 0.5
    return np.log(places / (size - places))
