"""Sensitivity and error of BLTs as finite geometric series, at a cost that does not grow with the rounds.

All terms are positive. Exponents are x = −log θ, which keep the digits that θ near 1 has lost.
"""

from fractions import Fraction
from typing import NamedTuple

import numpy as np

from tff_mf.mechanisms.blt import BLT
from tff_mf.mechanisms.geometric import geometric_sum, weighted_geometric_sum

# Up to this many rounds, coefficients are summed one by one.
_DIRECT_ROUNDS = 2**20

# Whole numbers are exact in float64 up to here.
_MOST_ROUNDS = 2**53

# With at most so many, the squared sensitivity is a sum whose every term is rounded fewer than 5000 times: a
# relative error below 2⁻⁴⁰ of the sensitivity, which accounting adds.
_MOST_PARTICIPATIONS = 2**20
_MOST_BUFFERS = 2**10
_BLOCK = 2**10

# Rounding of an eigenvalue.
_ROUNDING = 1e-12


class SquaredErrors(NamedTuple):
    """Mean and maximum, over rounds, of the squared row norms of B = A·C⁻¹ for the prefix sum A."""

    mean: float
    largest: float


def fits(mechanism: BLT, rounds: int, participations: int = 1) -> bool:
    """Returns whether the closed forms are needed for this many rounds, and accurate for them."""
    few = participations <= _MOST_PARTICIPATIONS and mechanism.buffers <= _MOST_BUFFERS
    return few and _DIRECT_ROUNDS < rounds <= _MOST_ROUNDS


def never_rises(mechanism: BLT) -> bool:
    """Returns whether c₀ ≥ c₁ ≥ c₂ ≥ … ≥ 0, decided without rounding.

    Since ω ≥ 0 and 0 < θ ≤ 1, that is the case if and only if c₁ = Σω is at most c₀ = 1.
    """
    return sum(map(Fraction, mechanism.omega)) <= 1


def earliest_pattern_norm(mechanism: BLT, rounds: int, separation: int, limit: int, *, raised: bool) -> float:
    """Returns ‖Cu‖ for the pattern 0, b, …, (k − 1)b, which must lie within `rounds`.

    From the (m+1)-th participation on and until the next, row mb + s of Cu is Σ_j ω_j θ_j^(s−1) P_mj with
    P_mj = Σ_{i≤m} θ_j^(ib): a sum of exponentials in s. Row mb itself is c₀ + Σ_j ω_j θ_j^(b−1) P_(m−1)j.

    Args:
        mechanism: The BLT.
        rounds: Number of rounds n.
        separation: b.
        limit: k.
        raised: Whether to replace c₀ by max(1, c₁), which makes c non-increasing.
    """
    omega = np.asarray(mechanism.omega)
    exponents = -np.log(mechanism.theta)
    head = max(1.0, float(np.nextafter(float(sum(map(Fraction, mechanism.omega))), np.inf))) if raised else 1.0
    separation = min(separation, rounds)
    bridged = omega * np.exp(-(separation - 1.0) * exponents)
    overlap = np.zeros((len(omega), len(omega)))
    hits = head * head
    for start in range(0, limit - 1, _BLOCK):
        until = np.arange(start + 1.0, min(start + _BLOCK, limit - 1) + 1.0)[:, np.newaxis]
        carried, _ = geometric_sum(separation * exponents, until)
        overlap += carried.T @ carried
        hits += float(np.sum(np.square(head + carried @ bridged)))
    last, _ = geometric_sum(separation * exponents, float(limit))
    added = exponents[:, np.newaxis] + exponents
    stretch, _ = geometric_sum(added, separation - 1.0)
    end, _ = geometric_sum(added, float(rounds - (limit - 1) * separation - 1))
    between = omega @ (overlap * stretch + np.multiply.outer(last, last) * end) @ omega
    return float(np.sqrt(hits + between))


def prefix_sum_errors(mechanism: BLT, rounds: int) -> SquaredErrors | None:
    """Returns the squared errors, or `None` if C⁻¹ alternates in sign, where this closed form does not hold.

    The prefix sums of C⁻¹ are b_i = Σ_p β_p p^i over p ∈ {1, θ̂₁, θ̂₂, …}, with β ≥ 0. For the matrix F of diag(√(1 − θ))
    over the row √ω, FᵀF is 1 less the matrix whose eigenvalues are the θ̂ (see `BLT.inverse_parameters`): the squared
    singular values of F are the 1 − θ̂, and the squares of the last row of its left singular vectors the β. That of
    the vector with Fᵀu = 0 belongs to p = 1. Small 1 − θ̂ keep the digits that θ̂ near 1 would lose.

    Source: McMahan et al. (2024), proposition 3.2.
    """
    factor = np.vstack([np.diag(np.sqrt(1 - np.asarray(mechanism.theta))), np.sqrt(mechanism.omega)])
    left, values, _ = np.linalg.svd(factor)
    gaps = np.append(np.square(values), 0.0)
    if np.max(gaps) > 1 + _ROUNDING:
        return None
    exponents = -np.log1p(-np.minimum(gaps, np.nextafter(1, 0)))
    beta = np.square(left[-1])
    added = exponents[:, np.newaxis] + exponents
    return SquaredErrors(
        mean=float(beta @ weighted_geometric_sum(added, float(rounds))[0] @ beta),
        largest=float(beta @ geometric_sum(added, float(rounds))[0] @ beta),
    )
