"""Approximation of a decoder by a few diagonals plus a matrix of low rank."""

import time

import numpy as np

from tff_mf.base import validation
from tff_mf.base.errors import InputValueError
from tff_mf.mechanisms import BandedPlusLowRank, Mechanism
from tff_mf.optimize._descent import with_status
from tff_mf.problem.workloads import PrefixSum

# Denisov et al. (2022), appendix H, take 1e-6; at 256 rounds that doubles the remaining distance.
_PENALTY = 1e-9

_ITERATIONS = 1000
_STATIONARY = 1e-4


def optimize_banded_plus_low_rank(*, mechanism: Mechanism, diagonals: int, rank: int) -> BandedPlusLowRank:
    """Returns the mechanism whose decoder of prefix sums, h diagonals plus rank r, is nearest to another mechanism's.

    The diagonals are the other decoder's. Below them, L·Rᵀ is fitted by alternating least squares, with a
    penalty of 1e-9 on the squares of L and R, which keeps entries with little effect from growing without bound. The
    result is a mechanism in its own right: its C is the one that belongs to the fitted decoder, and `loss` and every
    sensitivity refer to this C, never to the mechanism that was approximated.

    The `history` in `optimized_for.search` has the distance between the two decoders, relative to the norm of the one
    that is approximated, before each tenth iteration; `gradient_norm` is the relative change of it per iteration at the
    end.

    Args:
        mechanism: The mechanism to approximate; its `optimized_for` must be set.
        diagonals: Number h of diagonals of the decoder that are kept as they are.
        rank: Rank r of the rest.

    Source: Denisov et al. (2022), appendix H.

    Example:
        >>> from tff_mf import SingleParticipation, optimize_dense
        >>> dense = optimize_dense(rounds=64, participation=SingleParticipation())
        >>> mechanism = optimize_banded_plus_low_rank(mechanism=dense, diagonals=3, rank=3)
        >>> mechanism.right.shape, round(mechanism.optimized_for.search.loss, 1)
        ((64, 3), 2.1)

    Raises:
        InputValueError: If the mechanism does not fit.
    """
    began = time.perf_counter()
    validation.instance("mechanism", mechanism, Mechanism, "pass a mechanism such as a result of tff_mf.optimize_dense")
    optimized_for = mechanism.optimized_for
    if optimized_for is None or optimized_for.workload != PrefixSum():
        raise InputValueError(
            "mechanism must have an `optimized_for` whose workload is the prefix sum: pass one optimized for it."
        )
    rounds = validation.dense(optimized_for.rounds)
    diagonals, rank = validation.whole("diagonals", diagonals), validation.whole("rank", rank)
    if diagonals + rank > rounds:
        raise InputValueError(f"diagonals={diagonals} and rank={rank} together exceed rounds={rounds}.")

    decoder = np.cumsum(mechanism.inverse(rounds), axis=0)
    kept_diagonals = np.zeros((diagonals, rounds))
    for offset in range(diagonals):
        kept_diagonals[offset, offset:] = np.diagonal(decoder, -offset)
    left, right, history, change = _fit(decoder, diagonals, rank)
    return with_status(
        BandedPlusLowRank(diagonals=kept_diagonals, left=left, right=right, optimized_for=optimized_for),
        objective="rms",
        converged=bool(change <= _STATIONARY),
        message=f"Relative distance to the approximated decoder: {history[-1]:.1e}.",
        iterations=10 * (len(history) - 1),
        began=began,
        gradient_norm=change,
        history=tuple(history),
    )


def _fit(decoder: np.ndarray, diagonals: int, rank: int) -> tuple[np.ndarray, np.ndarray, list[float], float]:
    """Returns L, R, the distances during the fit, and their last relative change.

    Each half step is a least-squares problem for each row. Row t of L meets the first t − h + 1 rows of R, so that the
    Gram matrices are running sums; likewise with L and R exchanged.
    """
    below = np.tril(decoder, -diagonals)
    norm = float(np.linalg.norm(decoder))
    left, right = _start(decoder, diagonals, rank)
    history = [_distance(below, left, right, diagonals) / norm]
    change = np.inf
    while len(history) <= _ITERATIONS // 10 and change > _STATIONARY:
        for _ in range(10):
            left = _solved(below @ right, _running(right, diagonals))
            right = _solved(below.T @ left, _running(left[::-1], diagonals)[::-1])
        history.append(_distance(below, left, right, diagonals) / norm)
        change = (history[-2] - history[-1]) / (10 * history[-1]) if history[-1] else 0.0
    return left, right, history, change


def _start(decoder: np.ndarray, diagonals: int, rank: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns the best approximation of the part below the diagonals, with zeros above it."""
    vectors, values, right_vectors = np.linalg.svd(np.tril(decoder, -diagonals))
    roots = np.sqrt(values[:rank])
    return vectors[:, :rank] * roots, right_vectors[:rank].T * roots


def _running(rows: np.ndarray, delay: int) -> np.ndarray:
    """Returns the sums of r·rᵀ over the rows r up to t − delay for each t, float64 `[rounds, rank, rank]`."""
    sums = np.cumsum(rows[:, :, None] * rows[:, None, :], axis=0)
    delayed = np.zeros_like(sums)
    delayed[delay:] = sums[: len(sums) - delay]
    return delayed


def _solved(products: np.ndarray, grams: np.ndarray) -> np.ndarray:
    penalty = _PENALTY * np.eye(products.shape[1])
    return np.linalg.solve(grams + penalty, products[:, :, None])[:, :, 0]


def _distance(below: np.ndarray, left: np.ndarray, right: np.ndarray, diagonals: int) -> float:
    """Returns the root of the objective, penalty included, so that it never rises."""
    apart = np.sum(np.square(below - np.tril(left @ right.T, -diagonals)))
    return float(np.sqrt(apart + _PENALTY * (np.sum(np.square(left)) + np.sum(np.square(right)))))
