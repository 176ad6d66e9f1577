"""Optimizer of dense mechanisms, by the dual problem, so that the result comes with a duality gap."""

import time
from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np

from tff_mf.base import validation
from tff_mf.base.errors import InputValueError
from tff_mf.mechanisms import Dense, OptimizedFor
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
# Least eigenvalue of U's blocks, scaled to a unit diagonal: a Cholesky factor needs it to be positive.
_LEAST_EIGENVALUE = 1e-9


class Problem(NamedTuple):
    """T by class and epoch: round e·b + c has the index `[c, e]`; entries beyond the last round are zero.

    Attributes:
        gram: T, float64 `[classes, epochs, classes, epochs]`.
        exists: Which of these rounds exist, bool `[classes, epochs]`.
        equal_norms: Whether all columns of C have one norm, rather than all classes one sum of squared norms.
    """

    gram: np.ndarray
    exists: np.ndarray
    equal_norms: bool


class Point(NamedTuple):
    """U: `weights` u on the diagonal, float64 `[classes, epochs]`, and off it √(u_i·u_j)·`correlations`_ij.

    Attributes:
        weights: u, above 0, float64 `[classes, epochs]`; the same for all epochs unless norms are equal.
        correlations: Unit diagonal, symmetric, float64 `[classes, epochs, epochs]`.
    """

    weights: np.ndarray
    correlations: np.ndarray


class Evaluation(NamedTuple):
    """The dual function at a point that was scaled to its optimal scale.

    Attributes:
        point: The point, scaled.
        value: Lower bound of tr(T·X⁻¹) if a client's squared norms add up to 1.
        gram: X, float64 `[classes, epochs, classes, epochs]`.
        residual: Step from `point` to where X would meet its constraints if nothing else changed, as a change of log u
            and of the correlations, float64 `[variables]`.
        violation: Largest violation of the constraints by X, relative to the norms.
    """

    point: Point
    value: float
    gram: np.ndarray
    residual: np.ndarray
    violation: float


def problem_of(workload: np.ndarray, min_sep: int, *, equal_norms: bool) -> Problem:
    """Returns the problem of a workload matrix, float64 `[rounds, rounds]`."""
    rounds = len(workload)
    epochs = -(-rounds // min_sep)
    whole = np.zeros((epochs * min_sep, epochs * min_sep))
    whole[:rounds, :rounds] = workload.T @ workload
    gram = whole.reshape(epochs, min_sep, epochs, min_sep).transpose(1, 0, 3, 2)
    exists = (np.arange(epochs * min_sep) < rounds).reshape(epochs, min_sep).T
    return Problem(np.ascontiguousarray(gram), exists, equal_norms)


def in_rounds(gram: np.ndarray, rounds: int) -> np.ndarray:
    """Returns X as a matrix over rounds, float64 `[rounds, rounds]`."""
    classes, epochs = gram.shape[:2]
    size = classes * epochs
    return gram.transpose(1, 0, 3, 2).reshape(size, size)[:rounds, :rounds]


def start(problem: Problem) -> Point:
    """Returns the U of the best diagonal X, as nearly as blocks of U can represent it: exactly for b = 1."""
    blocks = _blocks(problem.gram)
    scale = np.sqrt(np.where(problem.exists, np.diagonal(blocks, axis1=1, axis2=2), 1.0))
    correlations = blocks / (scale[:, :, None] * scale[:, None, :])
    weights = scale**2 if problem.equal_norms else np.sum(scale * problem.exists, axis=1, keepdims=True) ** 2
    return Point(np.broadcast_to(weights, scale.shape), _safe(correlations))


def evaluate(problem: Problem, point: Point) -> Evaluation:
    """Returns dual value, X and residual; O(n³), nearly all of it one symmetric eigendecomposition."""
    classes, epochs = problem.exists.shape
    size = classes * epochs
    roots = np.sqrt(point.weights)
    factors = roots[:, :, None] * np.linalg.cholesky(point.correlations)
    # U = GGᵀ serves as well as U^½U^½, without eigenvectors of the blocks.
    inner = _congruent(problem.gram, factors).reshape(size, size)
    values, vectors = np.linalg.eigh(inner)
    values = np.sqrt(np.maximum(values, 0.0))
    root = ((vectors * values) @ vectors.T).reshape(problem.gram.shape)
    total = float(np.sum(values))
    multipliers = float(np.sum(point.weights[problem.exists] if problem.equal_norms else point.weights[:, 0]))
    scale = (total / multipliers) ** 2
    gram = _congruent(root, np.linalg.inv(factors)) / scale**0.5

    point = point._replace(weights=point.weights * scale)
    residual, violation = _residual(problem, point, _blocks(gram))
    return Evaluation(point, total**2 / multipliers, gram, residual, violation)


def feasible(problem: Problem, gram: np.ndarray) -> np.ndarray:
    """Returns X scaled to meet the constraints; it may no longer be positive definite."""
    classes = len(problem.exists)
    norms = np.where(problem.exists, np.diagonal(_blocks(gram), axis1=1, axis2=2), 0.0)
    targets = norms if problem.equal_norms else np.sum(norms, axis=1, keepdims=True)
    scale = 1 / np.sqrt(np.where(problem.exists, targets, 1.0))
    scaled = gram * scale[:, :, None, None] * scale
    diagonal = np.einsum("cece->ce", scaled).copy()
    scaled[np.arange(classes), :, np.arange(classes), :] = 0.0
    np.einsum("cece->ce", scaled)[...] = diagonal
    return scaled


def variables(problem: Problem, point: Point) -> np.ndarray:
    """Returns log u and the correlations as one vector."""
    first = point.weights if problem.equal_norms else point.weights[:, :1]
    return np.concatenate([np.log(first).ravel(), point.correlations[_upper(point)].ravel()])


def point_of(problem: Problem, vector: np.ndarray) -> Point:
    """Returns the point of a vector, with its correlations moved to where they are positive definite."""
    classes, epochs = problem.exists.shape
    shape = (classes, epochs if problem.equal_norms else 1)
    weights = np.exp(vector[: shape[0] * shape[1]]).reshape(shape)
    correlations = np.tile(np.eye(epochs), (classes, 1, 1))
    rows, columns = np.triu_indices(epochs, 1)
    upper = vector[shape[0] * shape[1] :].reshape(classes, -1)
    correlations[:, rows, columns] = upper
    correlations[:, columns, rows] = upper
    return Point(np.broadcast_to(weights, (classes, epochs)), _safe(correlations))


def _residual(problem: Problem, point: Point, blocks: np.ndarray) -> tuple[np.ndarray, float]:
    """Returns Denisov's step u ← u·diag(X), for blocks U ← U^½·X·U^½, on a scale on which the target of X is 1."""
    exists, epochs = problem.exists, problem.exists.shape[1]
    norms = np.where(exists, np.diagonal(blocks, axis1=1, axis2=2), 0.0)
    sums = norms if problem.equal_norms else np.sum(norms, axis=1, keepdims=True)
    logs = np.log(np.where(exists[:, : sums.shape[1]], sums, 1.0))
    lengths = np.sqrt(np.where(exists, norms, 1.0))
    pairs = lengths[:, :, None] * lengths[:, None, :]
    excess = blocks / pairs
    excess[~(exists[:, :, None] & exists[:, None, :])] = 0.0
    excess[:, np.arange(epochs), np.arange(epochs)] = 0.0
    roots = np.sqrt(point.weights)
    spread = roots[:, :, None] * roots[:, None, :]
    values, vectors = np.linalg.eigh(point.correlations * spread * pairs)
    root = (vectors * np.sqrt(np.maximum(values, 0.0))[:, None, :]) @ vectors.transpose(0, 2, 1)
    change = root @ excess @ root / (pairs * spread)
    violation = max(float(np.max(np.abs(logs))), float(np.max(np.abs(excess))))
    return np.concatenate([logs.ravel(), change[_upper(point)].ravel()]), violation


def _congruent(gram: np.ndarray, factors: np.ndarray) -> np.ndarray:
    """Returns GᵀMG for factors G that are block diagonal over the classes."""
    classes, epochs = factors.shape[:2]
    size = classes * epochs
    left = factors.transpose(0, 2, 1) @ gram.reshape(classes, epochs, size)
    right = left.reshape(size, classes, epochs).transpose(1, 0, 2) @ factors
    return np.ascontiguousarray(right.transpose(1, 0, 2)).reshape(gram.shape)


def _blocks(gram: np.ndarray) -> np.ndarray:
    """Returns the blocks of the classes, float64 `[classes, epochs, epochs]`."""
    return np.einsum("cecf->cef", gram).copy()


def _upper(point: Point) -> tuple:
    return (slice(None), *np.triu_indices(point.correlations.shape[1], 1))


def _safe(correlations: np.ndarray) -> np.ndarray:
    """Returns correlations with a unit diagonal, mixed with the identity where they are not positive definite."""
    epochs = correlations.shape[1]
    identity = np.eye(epochs)
    unit_diagonal = correlations * (1 - identity) + identity
    smallest = np.linalg.eigvalsh(unit_diagonal)[:, 0]
    mixture = np.where(smallest < _LEAST_EIGENVALUE, (1 - 1e-3) / (1 - np.minimum(smallest, 0.0)), 1.0)
    return mixture[:, None, None] * (unit_diagonal - identity) + identity


def search(problem: Problem) -> Iterator[Evaluation]:
    """Yields evaluations that approach the optimum, without end: the caller decides when one is close enough.

    Multipliers are smooth functions of the place in an epoch. The optimum of the problem with half as many rounds per
    epoch, found in the same way in an eighth of the time, is a start from which few steps are needed: for momentum with
    falling rates, 34 instead of 126 at 100 rounds, and more than 150 at 300.
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
    pieces = [
        Point(
            np.exp(stretched(np.log(point.weights[classes]), size)),
            stretched(point.correlations[classes], size),
        )
        for classes, size in (
            (slice(coarse_change), change),
            (slice(coarse_change, None), len(problem.exists) - change),
        )
        if size
    ]
    weights = np.concatenate([piece.weights for piece in pieces])
    correlations = np.concatenate([piece.correlations for piece in pieces])
    return point_of(problem, variables(problem, Point(weights, correlations)))


def stretched(values: np.ndarray, size: int) -> np.ndarray:
    """Returns values interpolated to `size` places along the first axis.

    Multipliers fall like powers of the distance to either end, so that they are nearly linear in its logarithm.
    """
    if len(values) == 1:
        return np.repeat(values, size, axis=0)
    places, targets = _logits(len(values)), _logits(size)
    after = np.clip(np.searchsorted(places, targets), 1, len(places) - 1)
    weight = ((targets - places[after - 1]) / (places[after] - places[after - 1])).reshape(-1, *[1] * (values.ndim - 1))
    return (1 - weight) * values[after - 1] + weight * values[after]


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
        InputValueError: If the participations do not fit in `rounds`.
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
    best = _searched(problem, matrix, progress)
    gap = max(best.gaps[-1], 0.0)
    return with_status(
        Dense(matrix=best.encoder / np.sqrt(setting.scale), optimized_for=optimized_for),
        objective="rms",
        converged=gap <= _GAP,
        duality_gap=gap if np.isfinite(gap) else None,
        message=_message(gap, setting),
        iterations=len(best.gaps),
        began=began,
        gradient_norm=best.violation,
        history=tuple(best.gaps),
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


class _Best(NamedTuple):
    """C before scaling, its violation of the constraints before they were enforced, and the gap after each step."""

    encoder: np.ndarray
    violation: float
    gaps: list[float]


def _searched(problem: Problem, workload: np.ndarray, progress: Callable[[Progress], None]) -> _Best:
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
    return _Best(best, violation, gaps)


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
