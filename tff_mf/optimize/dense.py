"""Optimizer of dense mechanisms, by the dual problem, so that the result comes with a duality gap."""

import time
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from tff_mf import validation
from tff_mf.errors import InputValueError
from tff_mf.mechanisms import Dense, OptimizedFor
from tff_mf.optimize import _dense_dual, _dense_search
from tff_mf.optimize._progress import Progress
from tff_mf.optimize._status import with_status
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
    problem = _dense_dual.problem_of(matrix, setting.min_sep, equal_norms=setting.equal_norms)
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


def _searched(problem: _dense_dual.Problem, workload: np.ndarray, progress: Callable[[Progress], None]) -> _Found:
    """Returns the best C of a search that ends at a small enough gap, or after `_STEPS` steps."""
    rounds = len(workload)
    best, best_error = _diagonal(problem, rounds), np.inf
    bound, violation = 0.0, np.inf
    gaps: list[float] = []
    for step, evaluation in enumerate(_dense_search.search(problem)):
        bound = max(bound, evaluation.value)
        candidate = _factor(_dense_dual.in_rounds(_dense_dual.feasible(problem, evaluation.gram), rounds))
        error = np.inf if candidate is None else _squared_error(workload, candidate)
        if candidate is not None and error < best_error:
            best, best_error, violation = candidate, error, evaluation.violation
        gaps.append(float(best_error / bound - 1))
        progress(Progress(rounds, step + 1, float(np.sqrt(best_error / rounds))))
        if gaps[-1] <= _GAP or step + 1 == _STEPS:
            break
    return _Found(best, violation, gaps)


def _diagonal(problem: _dense_dual.Problem, rounds: int) -> np.ndarray:
    """Returns a C that meets the constraints, for a search in which no step yields one."""
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


def _message(gap: float, setting: _Setting) -> str:
    among = "all matrices" if setting.single else "matrices with orthogonal columns an epoch apart"
    if setting.equal_norms:
        among += " and of equal norms, for clients in fixed epochs"
    ending = f"Squared loss within a relative {gap:.1e} of the minimum over {among}"
    return f"{ending}." if gap <= _GAP else f"{ending}: not converged."
