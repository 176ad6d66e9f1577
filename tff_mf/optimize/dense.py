"""Optimizer of dense mechanisms, by the dual problem, so that the result comes with a duality gap."""

import time
from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np

from tff_mf.base import validation
from tff_mf.base.errors import InputValueError
from tff_mf.mechanisms import Dense, OptimizedFor
from tff_mf.optimize._dense_dual import (
    Evaluation,
    Point,
    Problem,
    evaluate,
    feasible,
    in_rounds,
    point_of,
    problem_of,
    start,
    variables,
)
from tff_mf.optimize._descent import Progress, with_status
from tff_mf.problem.participation import FixedEpoch, Participation
from tff_mf.problem.workloads import PrefixSum, Workload

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
        return start(problem)
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
        evaluation = evaluate(problem, point)
        yield evaluation
        size = float(np.linalg.norm(evaluation.residual))
        if best is not None and not size <= _GROWTH * float(np.linalg.norm(best.residual)):
            places, residuals, first_step = [], [], first_step / 2
            evaluation = best
        elif best is None or size < np.linalg.norm(best.residual):
            best = evaluation
        places = [*places, variables(problem, evaluation.point)][-_MEMORY - 1 :]
        residuals = [*residuals, evaluation.residual][-_MEMORY - 1 :]
        point = point_of(problem, _step(places, residuals, first_step))


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
            np.exp(stretched(np.log(point.weights[here]), size)),
            stretched(point.correlations[here], size),
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
    return point_of(problem, variables(problem, whole))


def stretched(values: np.ndarray, size: int) -> np.ndarray:
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


# Relative difference of the squared loss and its lower bound at which a search has converged.
_GAP = 5e-5

_STEPS = 60


def optimize_dense(
    *,
    rounds: int,
    participation: Participation,
    workload: Workload | None = None,
    progress: Callable[[Progress], None] = lambda where: None,
) -> Dense:
    """Returns the lower-triangular C with the least RmsLoss within a class, with a bound on how far from it it is.

    With one participation the class is all lower-triangular matrices. With more, columns of rounds that are a multiple
    of `min_sep` apart are orthogonal, and
        for `FixedEpoch` with as many participations as there are epochs, the squared norms of a client's columns add up
        to 1;
        otherwise all columns have one norm. There are far more min-sep patterns than patterns of fixed epochs, so that
        the optimum of this class is not known to be optimal for them, and their sensitivity, with which `loss` is
        computed, is an upper bound.
    C is scaled to sensitivity 1 for clients in fixed epochs.

    The problem is convex; each step solves it exactly for given Lagrange multipliers, which bounds the least loss of
    the class from below. `optimized_for.duality_gap` is the relative difference of the squared loss and that bound, for
    clients in fixed epochs, and the search has converged if it is at most 5e-5. The `history` in `optimized_for.search`
    has the gap after each step, and `gradient_norm` the largest violation of the constraints before they are enforced.

    Args:
        rounds: Number of rounds n; time grows as n³, about a minute for 4096.
        participation: The participation schema.
        workload: The workload A; `None` is the prefix sum.
        progress: Called after each iteration.

    Source: Denisov et al. (2022), section 3; Choquette-Choo et al. (2023), section 3.

    Example:
        >>> from tff_mf import FixedEpoch
        >>> mechanism = optimize_dense(rounds=60, participation=FixedEpoch(min_sep=10, max_participations=6))
        >>> mechanism.optimized_for.converged, round(mechanism.optimized_for.search.loss, 2)
        (True, 5.68)

    Raises:
        InputTypeError: If an argument is of the wrong type.
        InputValueError: If an argument is out of range, or the participations do not fit in `rounds`.
    """
    began = time.perf_counter()
    workload = PrefixSum() if workload is None else workload
    optimized_for = OptimizedFor(rounds=rounds, participation=participation, workload=workload)
    matrix = workload.matrix(validation.dense(optimized_for.rounds))
    if not np.all(np.diagonal(matrix)):
        raise InputValueError(
            f"workload={workload!r} has a zero on its diagonal; every learning rate must be positive."
        )
    setting = _Setting.of(optimized_for)
    problem = problem_of(matrix, setting.min_sep, equal_norms=setting.equal_norms)
    found = _searched(problem, matrix, progress)
    gap = max(found.gaps[-1], 0.0)
    return with_status(
        Dense(matrix=found.encoder / np.sqrt(setting.scale), optimized_for=optimized_for),
        objective="rms",
        converged=gap <= _GAP,
        duality_gap=gap if np.isfinite(gap) else None,
        message=_message(gap, setting),
        iterations=len(found.gaps),
        began=began,
        gradient_norm=found.violation,
        history=tuple(found.gaps),
    )


class _Setting(NamedTuple):
    """The constraints of a participation schema.

    Attributes:
        min_sep: Rounds that are a multiple of it apart have orthogonal columns.
        equal_norms: Whether all columns have one norm.
        single: Whether a client takes part once.
        scale: The squared sensitivity, for clients in fixed epochs, of a C that meets the constraints.
    """

    min_sep: int
    equal_norms: bool
    single: bool
    scale: int

    @classmethod
    def of(cls, optimized_for: OptimizedFor) -> "_Setting":
        """Returns the constraints of the schema in a setting."""
        schema, rounds = optimized_for.participation, optimized_for.rounds
        most = schema.max_participations
        min_sep = schema.min_sep if most > 1 else rounds
        epochs = -(-rounds // min_sep)
        equal_norms = most > 1 and not (isinstance(schema, FixedEpoch) and most >= epochs)
        return cls(min_sep, equal_norms, single=most == 1, scale=min(most, epochs) if equal_norms else 1)


class _Found(NamedTuple):
    """C before scaling, its violation of the constraints before they were enforced, and the gap after each step."""

    encoder: np.ndarray
    violation: float
    gaps: list[float]


def _searched(problem: Problem, workload: np.ndarray, progress: Callable[[Progress], None]) -> _Found:
    """Returns the best C of a search that ends at a small enough gap, or after `_STEPS` steps."""
    rounds = len(workload)
    best, best_error = _diagonal(problem, rounds), np.inf
    bound, violation = 0.0, np.inf
    gaps: list[float] = []
    for step, evaluation in enumerate(search(problem)):
        bound = max(bound, evaluation.value)
        candidate = _factor(in_rounds(feasible(problem, evaluation.gram), rounds))
        error = np.inf if candidate is None else _squared_error(workload, candidate)
        if candidate is not None and error < best_error:
            best, best_error, violation = candidate, error, evaluation.violation
        gaps.append(float(best_error / bound - 1))
        progress(Progress(rounds, step + 1, float(np.sqrt(best_error / rounds))))
        if gaps[-1] <= _GAP or step + 1 == _STEPS:
            break
    return _Found(best, violation, gaps)


def _diagonal(problem: Problem, rounds: int) -> np.ndarray:
    """Returns a C that meets the constraints, for a search in which no step yields one."""
    norms = np.eye(problem.exists.size).reshape(problem.gram.shape)
    return np.sqrt(in_rounds(feasible(problem, norms), rounds))


def _factor(gram: np.ndarray) -> np.ndarray | None:
    """Returns the lower-triangular C with CᵀC = X, if X is positive definite.

    The usual Cholesky factor has CCᵀ = X; taken from the other end it is Cᵀ.
    """
    try:
        return np.ascontiguousarray(np.linalg.cholesky(gram[::-1, ::-1])[::-1, ::-1].T)
    except np.linalg.LinAlgError:
        return None


def _squared_error(workload: np.ndarray, encoder: np.ndarray) -> float:
    # Imported here: it would double the time of `import tff_mf`.
    from scipy.linalg import solve_triangular

    decoder = solve_triangular(encoder, workload.T, trans="T", lower=True, check_finite=False)
    return float(np.sum(np.square(decoder)))


def _message(gap: float, setting: _Setting) -> str:
    among = "all matrices" if setting.single else "matrices with orthogonal columns an epoch apart"
    if setting.equal_norms:
        among += " and of equal norms, for clients in fixed epochs"
    ending = f"Squared loss within a relative {gap:.1e} of the minimum over {among}"
    return f"{ending}." if gap <= _GAP else f"{ending}: not converged."
