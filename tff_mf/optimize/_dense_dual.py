"""The dual of the optimal dense factorization, its gradient, and a feasible X for every dual point."""

from typing import NamedTuple

import numpy as np

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
    result = gram * scale[:, :, None, None] * scale
    diagonal = np.einsum("cece->ce", result).copy()
    result[np.arange(classes), :, np.arange(classes), :] = 0.0
    np.einsum("cece->ce", result)[...] = diagonal
    return result


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
    result = correlations * (1 - identity) + identity
    least = np.linalg.eigvalsh(result)[:, 0]
    share = np.where(least < _LEAST_EIGENVALUE, (1 - 1e-3) / (1 - np.minimum(least, 0.0)), 1.0)
    return share[:, None, None] * (result - identity) + identity
