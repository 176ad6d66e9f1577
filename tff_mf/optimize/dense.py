"""How dense mechanisms are found: by the dual of the problem, so that the result says how far from the best it is."""

import dataclasses
import time
from collections.abc import Callable

import numpy as np

from tff_mf import _validate
from tff_mf.errors import InputValueError
from tff_mf.losses import rms_loss
from tff_mf.mechanisms import Dense, OptimizedFor
from tff_mf.optimize import _dense_dual, _dense_search
from tff_mf.optimize._progress import Progress
from tff_mf.optimize._result import OptimizationResult
from tff_mf.participation import FixedEpoch, Participation
from tff_mf.workloads import PrefixSum, Workload

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
    """Returns the lower-triangular C with the least RmsLoss: the mechanism of `optimize_dense_result`.

    Args:
        rounds: Number of rounds n.
        participation: The participation schema.
        workload: The workload A; `None` is the prefix sum.
        progress: Is called after each iteration.

    Example:
        >>> from tff_mf import SingleParticipation
        >>> optimize_dense(rounds=2, participation=SingleParticipation()).matrix.round(2)
        array([[0.92, 0.  ],
               [0.38, 1.  ]])

    Raises:
        InputTypeError: If an argument is of the wrong type.
        InputValueError: If an argument is out of range, or the participations do not fit in `rounds`.
    """
    return optimize_dense_result(
        rounds=rounds, participation=participation, workload=workload, progress=progress
    ).mechanism


def optimize_dense_result(
    *,
    rounds: int,
    participation: Participation,
    workload: Workload | None = None,
    progress: Callable[[Progress], None] = lambda where: None,
) -> OptimizationResult[Dense]:
    """Returns the C with the least RmsLoss among those in a class, with a bound on how far it is from the best.

    With one participation the class is all of them. With more, rounds of a client that are a multiple of `min_sep`
    apart have orthogonal columns, and
        for `FixedEpoch` of as many epochs as there are, the squared norms of a client's columns add up to 1;
        else all columns have one norm. Min-sep patterns are far more, so that what is optimal here is not known to
        be so for them, and their sensitivity, which `loss` is computed with, is an upper bound.
    C is scaled to sensitivity 1 for clients in fixed epochs.

    The problem is convex; each step solves it exactly for given Lagrange multipliers, which bounds the least loss
    of the class from below. `duality_gap` is the relative difference of the squared loss and that bound, for clients
    in fixed epochs, and `converged` says that it is 5e-5 at most. `history` has the gap after each step.

    Args:
        rounds: Number of rounds n; time grows as n³, and is a minute or so for 4096.
        participation: The participation schema.
        workload: The workload A; `None` is the prefix sum.
        progress: Is called after each iteration.

    Source: Denisov et al. (2022), section 3; Choquette-Choo et al. (2023), section 3.

    Example:
        >>> from tff_mf import FixedEpoch
        >>> result = optimize_dense_result(rounds=60, participation=FixedEpoch(min_sep=10, max_participations=6))
        >>> result.converged, round(result.loss, 2)
        (True, 5.68)

    Raises:
        InputTypeError: If an argument is of the wrong type.
        InputValueError: If an argument is out of range, or the participations do not fit in `rounds`.
    """
    began = time.perf_counter()
    workload = PrefixSum() if workload is None else workload
    optimized_for = OptimizedFor(rounds=rounds, participation=participation, workload=workload)
    matrix = workload.matrix(_validate.dense(optimized_for.rounds))
    if not np.all(np.diagonal(matrix)):
        raise InputValueError(f"workload={workload!r} has a round that counts for nothing: rates must be above 0.")

    limit = optimized_for.participation.max_participations
    min_sep = optimized_for.participation.min_sep if limit > 1 else optimized_for.rounds
    epochs = -(-optimized_for.rounds // min_sep)
    equal_norms = limit > 1 and not (isinstance(optimized_for.participation, FixedEpoch) and limit >= epochs)
    problem = _dense_dual.problem_of(matrix, min_sep, equal_norms=equal_norms)

    best, best_error = _diagonal(problem, optimized_for.rounds), np.inf
    bound, violation = 0.0, np.inf
    gaps: list[float] = []
    for step, evaluation in enumerate(_dense_search.search(problem)):
        bound = max(bound, evaluation.value)
        candidate = _factor(_dense_dual.in_rounds(_dense_dual.feasible(problem, evaluation.gram), optimized_for.rounds))
        error = np.inf if candidate is None else _squared_error(matrix, candidate)
        if candidate is not None and error < best_error:
            best, best_error, violation = candidate, error, evaluation.violation
        gaps.append(float(best_error / bound - 1))
        progress(Progress(optimized_for.rounds, step + 1, float(np.sqrt(best_error / optimized_for.rounds))))
        if gaps[-1] <= _GAP or step + 1 == _STEPS:
            break

    gap = max(gaps[-1], 0.0)
    if equal_norms:
        best = best / np.sqrt(min(limit, epochs))
    converged = gap <= _GAP
    optimized_for = dataclasses.replace(
        optimized_for, duality_gap=gap if np.isfinite(gap) else None, converged=converged
    )
    mechanism = Dense(matrix=best, optimized_for=optimized_for)
    return OptimizationResult(
        mechanism=mechanism,
        objective="rms",
        loss=rms_loss(mechanism, optimized_for.rounds, optimized_for.participation, workload),
        converged=converged,
        message=_message(gap, equal_norms=equal_norms, single=limit == 1),
        iterations=len(gaps),
        seconds=time.perf_counter() - began,
        gradient_norm=violation,
        history=tuple(gaps),
        duality_gap=gap,
    )


def _diagonal(problem: _dense_dual.Problem, rounds: int) -> np.ndarray:
    """Returns a C that meets the constraints, whatever the search comes to."""
    norms = np.eye(problem.exists.size).reshape(problem.gram.shape)
    return np.sqrt(_dense_dual.in_rounds(_dense_dual.feasible(problem, norms), rounds))


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


def _message(gap: float, *, equal_norms: bool, single: bool) -> str:
    among = "all matrices" if single else "those with orthogonal columns an epoch apart"
    if equal_norms:
        among += " and of one norm, for clients in fixed epochs"
    ending = f"Squared loss within {gap:.1e}, relatively, of the least among {among}"
    return f"{ending}." if gap <= _GAP else f"{ending}: not converged."
