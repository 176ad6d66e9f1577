"""Sensitivity of a strategy matrix: how far one client can move the stream that noise is added to.

One function a rule. The kind of the mechanism picks it: a mechanism with a rule of its own registers
one function with `_rule`.
"""

import dataclasses
import functools

import numpy as np

from tff_mf import _validate
from tff_mf.errors import InputTypeError, InputValueError
from tff_mf.mechanisms import Mechanism, ToeplitzMechanism
from tff_mf.participation import Participation


@dataclasses.dataclass(frozen=True, kw_only=True)
class SensitivityResult:
    """A sensitivity, and how it was found.

    Attributes:
        value: sens_Π(C) for clip norm 1.
        exact: Whether some client in Π reaches `value`; otherwise it is a proven upper bound.
        rule: Name of the rule, with its source.
    """

    value: float
    exact: bool
    rule: str


def sensitivity(mechanism: Mechanism, rounds: int, participation: Participation) -> float:
    """Returns sens_Π(C) for clip norm 1, or a proven upper bound of it.

    Formal guarantee:
        Adjacency: zero-out. Two streams are adjacent if they are equal but for the contributions of
        one client, which may be any vectors of L2 norm at most 1 in the rounds of one pattern of
        `participation`, and are zero in the other stream.
        Participation: every pattern of `participation` within `rounds`.
        Sensitivity: the largest Frobenius norm of C(x − x') over adjacent streams x and x' is at
        most the result, up to the rounding of float64 (below 9e-13 relative).
        Released: nothing.

    Args:
        mechanism: The mechanism with strategy matrix C.
        rounds: Number of rounds n.
        participation: The participation schema Π.

    Source: McMahan et al. (2024), equation 8.

    Example:
        >>> from tff_mf import BLT, MinSep
        >>> round(sensitivity(BLT.production("b400"), 4000, MinSep(min_sep=400, max_participations=5)), 4)
        4.8831

    Raises:
        InputTypeError: If an argument is of the wrong type, or no rule for the mechanism is known.
        InputValueError: If the participations do not fit in `rounds`, or C has fewer rounds.
    """
    return explain_sensitivity(mechanism, rounds, participation).value


def explain_sensitivity(mechanism: Mechanism, rounds: int, participation: Participation) -> SensitivityResult:
    """Returns what `sensitivity` does, with the rule that gave it and whether it is exact.

    Formal guarantee: that of `sensitivity`.

    Example:
        >>> from tff_mf import BLT, MinSep
        >>> explain_sensitivity(BLT(theta=[0.5], omega=[0.5]), 4, MinSep(min_sep=2, max_participations=2)).exact
        True

    Raises:
        InputTypeError: If an argument is of the wrong type, or no rule for the mechanism is known.
        InputValueError: If the participations do not fit in `rounds`, or C has fewer rounds.
    """
    _validate.instance("mechanism", mechanism, Mechanism, "pass a mechanism such as tff_mf.BLT or tff_mf.Identity")
    _validate.instance("participation", participation, Participation, "pass MinSep or SingleParticipation")
    rounds = participation.check(mechanism.check(rounds))
    return _rule(mechanism, rounds, participation)


@functools.singledispatch
def _rule(mechanism: Mechanism, rounds: int, participation: Participation) -> SensitivityResult:
    raise InputTypeError(f"mechanism={mechanism!r} is of a kind whose sensitivity is not known.")


@_rule.register
def _toeplitz(mechanism: ToeplitzMechanism, rounds: int, participation: Participation) -> SensitivityResult:
    """Chooses among the rules for LtToep(c) by what holds for `c` itself, without any tolerance."""
    column = mechanism.coefficients(_validate.listable(rounds))
    if not np.all(np.isfinite(column)):
        raise InputValueError(f"the coefficients of this {mechanism.kind} mechanism overflow within rounds={rounds}.")
    if participation.limit == 1 or not np.any(column[participation.separation :]):
        return _toeplitz_orthogonal(column, participation)
    if np.all(column >= 0) and np.all(column[1:] <= column[:-1]):
        return _toeplitz_non_increasing(column, participation)
    bounds = (_toeplitz_majorant(column, participation), _toeplitz_cauchy_schwarz(column, participation))
    return min(bounds, key=lambda bound: bound.value)


def _toeplitz_orthogonal(column: np.ndarray, participation: Participation) -> SensitivityResult:
    """Columns that one client touches never share a row: one participation, or no more bands than b.

    The squared norms of the columns then add up, whatever the directions of the contributions.
    Column t of a Toeplitz matrix is column 0 cut off after n − t numbers, so norms fall from left to
    right, and the worst pattern is the earliest.
    """
    return SensitivityResult(
        value=float(np.sqrt(_earliest_squared_norms(column, participation))),
        exact=True,
        rule="Toeplitz, orthogonal columns: root of the sum of their squared norms",
    )


def _toeplitz_non_increasing(column: np.ndarray, participation: Participation) -> SensitivityResult:
    """McMahan et al. (2024), theorem 3.1: the earliest pattern is the worst, if c is ≥ 0 and never rises."""
    return SensitivityResult(
        value=_earliest_pattern_norm(column, participation),
        exact=True,
        rule="Toeplitz, non-increasing: McMahan et al. (2024), theorem 3.1",
    )


def _toeplitz_majorant(column: np.ndarray, participation: Participation) -> SensitivityResult:
    """Theorem 3.1 for M = LtToep(m), m_i = max over j ≥ i of |c_j|, bounds any Toeplitz C.

    Proof: for contributions u_t of norm at most 1 in the rounds t of a pattern π,
    ‖Cu‖² = Σ_{s,t∈π} (CᵀC)_st ⟨u_s, u_t⟩ ≤ Σ |CᵀC|_st ≤ Σ (|C|ᵀ|C|)_st ≤ Σ (MᵀM)_st = ‖M·1_π‖²,
    entry by entry, since |⟨u_s, u_t⟩| ≤ 1 and |C| ≤ M. M meets the conditions of the theorem.
    """
    majorant = np.maximum.accumulate(np.abs(column)[::-1])[::-1]
    return SensitivityResult(
        value=_earliest_pattern_norm(majorant, participation),
        exact=False,
        rule="Toeplitz, upper bound: theorem 3.1 of McMahan et al. (2024) for the non-increasing majorant",
    )


def _toeplitz_cauchy_schwarz(column: np.ndarray, participation: Participation) -> SensitivityResult:
    """‖Cu‖² ≤ (Σ ‖column t of C‖)² ≤ k Σ ‖column t of C‖² over the t of a pattern, for any C."""
    return SensitivityResult(
        value=float(np.sqrt(participation.limit * _earliest_squared_norms(column, participation))),
        exact=False,
        rule="Toeplitz, upper bound: Cauchy-Schwarz inequality over the columns",
    )


def _earliest_squared_norms(column: np.ndarray, participation: Participation) -> float:
    """Returns the sum of the squared norms of the columns 0, b, …, (k − 1)b of LtToep(column).

    Each number is weighed by how many of the columns it is in, so that one pairwise sum does.
    """
    rounds = len(column)
    columns = np.minimum(participation.limit, np.arange(rounds - 1, -1, -1) // participation.separation + 1)
    return float(np.sum(columns * np.square(column)))


def _earliest_pattern_norm(column: np.ndarray, participation: Participation) -> float:
    """Returns ‖Σ_j column jb of LtToep(column)‖ over j < k, in O(n log k).

    Sums over k shifts are put together from sums over powers of two of them. Differences of running
    sums would be as fast, and cancel.
    """
    total = np.zeros_like(column)
    window, width, done = column, 1, 0
    while True:
        if participation.limit & width:
            total += _shifted(window, done * participation.separation)
            done += width
        if done == participation.limit:
            return float(np.sqrt(np.sum(np.square(total))))
        window = window + _shifted(window, width * participation.separation)
        width *= 2


def _shifted(column: np.ndarray, by: int) -> np.ndarray:
    by = min(by, len(column))
    return np.concatenate([np.zeros(by), column[: len(column) - by]])
