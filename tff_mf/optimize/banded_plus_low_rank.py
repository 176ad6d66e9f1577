"""How a decoder is approximated by a few diagonals and a low rank."""

import dataclasses
import time

import numpy as np

from tff_mf import _validate
from tff_mf.errors import InputValueError
from tff_mf.losses import rms_loss
from tff_mf.mechanisms import BandedPlusLowRank, Mechanism
from tff_mf.optimize._result import OptimizationResult
from tff_mf.workloads import PrefixSum

# Denisov et al. (2022), appendix H, take 1e-6; at 256 rounds that doubles the distance that is left.
_PENALTY = 1e-9

_ITERATIONS = 1000
_STATIONARY = 1e-4


def optimize_banded_plus_low_rank(*, mechanism: Mechanism, diagonals: int, rank: int) -> BandedPlusLowRank:
    """Returns a mechanism near `mechanism` that runs in few rows of memory.

    Args:
        mechanism: What is approximated; it must say what setting it was made for.
        diagonals: Number h of diagonals of the decoder that are kept as they are.
        rank: Rank r of the rest.

    Example:
        >>> from tff_mf import SingleParticipation, optimize_dense
        >>> dense = optimize_dense(rounds=64, participation=SingleParticipation())
        >>> optimize_banded_plus_low_rank(mechanism=dense, diagonals=3, rank=3).right.shape
        (64, 3)

    Raises:
        InputTypeError: If an argument is of the wrong type.
        InputValueError: If an argument is out of range, or the mechanism does not fit.
    """
    return optimize_banded_plus_low_rank_result(mechanism=mechanism, diagonals=diagonals, rank=rank).mechanism


def optimize_banded_plus_low_rank_result(
    *, mechanism: Mechanism, diagonals: int, rank: int
) -> OptimizationResult[BandedPlusLowRank]:
    """Returns the mechanism whose decoder of prefix sums, of h diagonals plus rank r, is nearest to that of another.

    The diagonals are those of the decoder. Below them, L·Rᵀ is fitted by alternating least squares, with a penalty
    of 1e-9 on the squares of L and R, which keeps what hardly counts from growing without bound. The result is a
    mechanism of its own: its C is the one that belongs to the decoder that runs, and `loss` and every sensitivity are
    of that C, never of what was approximated.

    The result's `history` has the distance of the decoders, relative to the norm of the one that is approximated,
    before each tenth iteration; `gradient_norm` is what the last iterations changed of it, each, relatively.

    Args:
        mechanism: What is approximated; it must say what setting it was made for.
        diagonals: Number h of diagonals of the decoder that are kept as they are.
        rank: Rank r of the rest.

    Source: Denisov et al. (2022), appendix H.

    Example:
        >>> from tff_mf import SingleParticipation, optimize_dense
        >>> dense = optimize_dense(rounds=64, participation=SingleParticipation())
        >>> result = optimize_banded_plus_low_rank_result(mechanism=dense, diagonals=3, rank=3)
        >>> round(result.loss, 1)
        2.1

    Raises:
        InputTypeError: If an argument is of the wrong type.
        InputValueError: If an argument is out of range, or the mechanism does not fit.
    """
    began = time.perf_counter()
    _validate.instance("mechanism", mechanism, Mechanism, "pass a mechanism such as one of tff_mf.optimize_dense")
    optimized_for = mechanism.optimized_for
    if optimized_for is None or optimized_for.workload != PrefixSum():
        raise InputValueError(
            "mechanism must have been optimized for a setting (optimized_for) whose workload is the prefix sum."
        )
    rounds = _validate.dense(optimized_for.rounds)
    diagonals, rank = _validate.whole("diagonals", diagonals), _validate.whole("rank", rank)
    if diagonals + rank > rounds:
        raise InputValueError(f"diagonals={diagonals} and rank={rank} are together more than rounds={rounds}.")

    decoder = np.cumsum(mechanism.inverse(rounds), axis=0)
    kept = np.zeros((diagonals, rounds))
    for offset in range(diagonals):
        kept[offset, offset:] = np.diagonal(decoder, -offset)
    left, right, history, change = _fit(decoder, diagonals, rank)
    converged = bool(change <= _STATIONARY)
    optimized_for = dataclasses.replace(optimized_for, duality_gap=None, converged=converged)
    fitted = BandedPlusLowRank(diagonals=kept, left=left, right=right, optimized_for=optimized_for)
    return OptimizationResult(
        mechanism=fitted,
        objective="rms",
        loss=rms_loss(fitted, rounds, optimized_for.participation),
        converged=converged,
        message=f"Decoder within {history[-1]:.1e}, relatively, of the one that is approximated.",
        iterations=10 * (len(history) - 1),
        seconds=time.perf_counter() - began,
        gradient_norm=change,
        history=tuple(history),
    )


def _fit(decoder: np.ndarray, diagonals: int, rank: int) -> tuple[np.ndarray, np.ndarray, list[float], float]:
    """Returns L, R, and the distances on the way: each half step is a least-squares problem for each row.

    Row t of L meets the first t − h + 1 rows of R, whose products are running sums; so it is the other way round.
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
    """Returns the best approximation of what is below the diagonals, as if it were zero above."""
    vectors, values, others = np.linalg.svd(np.tril(decoder, -diagonals))
    roots = np.sqrt(values[:rank])
    return vectors[:, :rank] * roots, others[:rank].T * roots


def _running(rows: np.ndarray, delay: int) -> np.ndarray:
    """Returns at `[t]` the sum of r·rᵀ over the rows r up to t − delay, float64 `[rounds, rank, rank]`."""
    sums = np.cumsum(rows[:, :, None] * rows[:, None, :], axis=0)
    result = np.zeros_like(sums)
    result[delay:] = sums[: len(sums) - delay]
    return result


def _solved(products: np.ndarray, grams: np.ndarray) -> np.ndarray:
    penalty = _PENALTY * np.eye(products.shape[1])
    return np.linalg.solve(grams + penalty, products[:, :, None])[:, :, 0]


def _distance(below: np.ndarray, left: np.ndarray, right: np.ndarray, diagonals: int) -> float:
    """Returns the root of what is minimized, the penalty included, so that it never rises."""
    apart = np.sum(np.square(below - np.tril(left @ right.T, -diagonals)))
    return float(np.sqrt(apart + _PENALTY * (np.sum(np.square(left)) + np.sum(np.square(right)))))
