"""A bound that is below the loss of every mechanism, so that one sees how much there is left to gain."""

from typing import NamedTuple

import numpy as np

from tff_mf.base import validation
from tff_mf.mechanisms import OptimizedFor
from tff_mf.optimize.dense import stretched
from tff_mf.problem.participation import Participation

# A search is done with about this many rounds, and at most this many epochs, and its result stretched.
_COARSE_ROUNDS, _COARSE_EPOCHS = 240, 40
_STEPS = 8
# The eigenvalues of more rounds take more than a few seconds.
_MOST_ROUNDS = 2500


class _Bound(NamedTuple):
    """A lower bound, and the weights that it is for.

    Attributes:
        value: ‖V^½·A·M^½‖_*.
        classes: w: probabilities of the classes of rounds, `[b]`.
        rows: v: weights of the rows of B, `[n]`.
        keep: ρ: correlation of a client's sign with its last one.
    """

    value: float
    classes: np.ndarray
    rows: np.ndarray
    keep: float


def least_loss(rounds: int, participation: Participation, objective: str = "rms") -> float:
    """Returns a lower bound of the loss of every mechanism for prefix sums.

    Let u be random: 0 outside of a pattern of Π and 1 or −1 in it. A client may contribute u_t·x in round t, with
    ‖x‖ = 1, so that sens² ≥ ‖Cu‖², and in the mean sens² ≥ ‖C·M^½‖_F² with M = E[uuᵀ]. Let v ≥ 0 have sum 1, and V
    be the diagonal matrix of v: MaxLoss² ≥ sens²·‖V^½·B‖_F², with equality for RmsLoss and v = 1/n. Since
    ‖V^½·A·M^½‖_* = ‖V^½·B·C·M^½‖_* ≤ ‖V^½·B‖_F·‖C·M^½‖_F, the left side is below the loss, for every u and v.

    Here the pattern is i, i + b, …, with probability w_i; where it has more than k rounds, k neighbors of them. A sign
    differs from the last one with probability (1 − ρ)/2. The best w, v and ρ are found with fewer rounds, where that
    is enough, and stretched; a bound is computed with all rounds, and holds, however good they are. For more than
    2,500 rounds w and v are uniform and ρ = 0, with the singular values 1 / (2 sin((2j − 1)π / (4n + 2))) of A.

    Args:
        rounds: Number of rounds n.
        participation: The participation schema Π.
        objective: `rms` for RmsLoss, `max` for MaxLoss.

    Returns:
        The bound; 0 where there is none.

    Example:
        >>> import tff_mf
        >>> schema = tff_mf.MinSep(min_sep=32, max_participations=4)
        >>> best = tff_mf.optimize_banded(rounds=128, participation=schema, bands=32, unit_norms=False)
        >>> round(tff_mf.least_loss(128, schema), 2), round(tff_mf.rms_loss(best, 128, schema), 2)
        (4.77, 4.9)

    Raises:
        InputValueError: If the participations do not fit in `rounds`.
    """
    optimized_for = OptimizedFor(rounds=validation.listable(rounds), participation=participation)
    n, participation = optimized_for.rounds, optimized_for.participation
    validation.one_of("objective", objective, ("rms", "max"))
    k = participation.max_participations
    b = n if k == 1 else min(participation.min_sep, n)
    if n > _MOST_ROUNDS:
        nuclear = np.sum(0.5 / np.sin((2 * np.arange(1, n + 1) - 1) * np.pi / (4 * n + 2)))
        return float(nuclear / np.sqrt(n * b)) if k * b >= n else 0.0
    epochs = -(-n // b)
    few = min(epochs, _COARSE_EPOCHS)
    width = min(b, max(1, _COARSE_ROUNDS // few))
    coarse = _searched(min(n, few * width), width, max(1, round(k * few / epochs)), objective)
    classes = np.exp(stretched(np.log(coarse.classes), b))
    # The weights of rows jump from epoch to epoch.
    padded = np.pad(coarse.rows, (0, few * width - len(coarse.rows)), mode="edge").reshape(few, width)
    nearest = [np.log(padded[(2 * epoch + 1) * few // (2 * epochs)]) for epoch in range(epochs)]
    rows = np.exp(np.concatenate([stretched(logs, b) for logs in nearest])[:n])
    _, gram = _gram(_moments(n, b, k, coarse.keep), classes / classes.sum(), rows / rows.sum())
    squares = np.linalg.eigvalsh(gram)
    # Less the error of an eigenvalue, so that the bound holds as computed.
    return float(np.sqrt(np.maximum(squares - n * np.finfo(float).eps * squares[-1], 0)).sum())


def _searched(n: int, b: int, k: int, objective: str) -> _Bound:
    """Returns the best bound of a search over w, v and ρ."""
    best = _Bound(0.0, np.full(b, 1 / b), np.full(n, 1 / n), 0.0)

    def improved(keep: float, steps: int = _STEPS) -> float:
        nonlocal best
        moments = _moments(n, b, k, keep)
        classes, rows, value = best.classes, best.rows, 0.0
        for _ in range(steps):
            value, of_rounds, of_rows = _evaluated(moments, classes, rows)
            if value > best.value:
                best = _Bound(value, classes, rows, keep)
            # At the optimum each weight is its share of the bound.
            shares = np.bincount(np.arange(n) % b, of_rounds, b)
            classes = shares / shares.sum()
            if objective == "max":
                rows = of_rows / of_rows.sum()
        return -value

    improved(0.0, 2 * _STEPS)
    if k > 1:
        from scipy.optimize import minimize_scalar

        minimize_scalar(improved, bounds=(0, 1), method="bounded", options={"xatol": 0.02})
    return best


def _moments(n: int, b: int, k: int, keep: float) -> np.ndarray:
    """Returns E[uuᵀ], `[n, n]`, with every w_i = 1."""
    moments = np.zeros((n, n))
    place = np.arange(n) // b
    # How often a class comes, and how many of its places can be the first one of a pattern, less one.
    starts = np.maximum((n - 1 - np.arange(n) % b) // b + 1 - k, 0)
    for apart in range(min(k, -(-n // b))):
        first = np.arange(n - apart * b)
        holding = np.minimum(place[first], starts[first]) - np.maximum(place[first] + apart - k + 1, 0) + 1
        moment = np.maximum(holding, 0) / (starts[first] + 1) * keep**apart
        moments[first, first + apart * b] = moments[first + apart * b, first] = moment
    return moments


def _evaluated(moments: np.ndarray, classes: np.ndarray, rows: np.ndarray) -> tuple[float, np.ndarray, np.ndarray]:
    """Returns ‖V^½·A·M^½‖_*, and its shares by rounds of participation and by rows."""
    scaled, gram = _gram(moments, classes, rows)
    squares, vectors = np.linalg.eigh(gram)
    singular = np.sqrt(np.maximum(squares, squares[-1] * np.finfo(float).eps))
    back = scaled.T @ (vectors / np.sqrt(singular))
    return float(singular.sum()), np.einsum("ij,ij->i", back, moments @ back), np.square(vectors) @ singular


def _gram(moments: np.ndarray, classes: np.ndarray, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns X = V^½·A·W^½, and X·R·Xᵀ = V^½·A·M·Aᵀ·V^½ for R = `moments`."""
    roots, factors = np.sqrt(rows), np.sqrt(classes[np.arange(len(moments)) % len(classes)])
    # Prefix sums of rows and columns, of numbers that are at least 0.
    sums = np.cumsum(np.cumsum(moments * np.outer(factors, factors), axis=0), axis=1)
    return np.tril(np.outer(roots, factors)), sums * np.outer(roots, roots)
