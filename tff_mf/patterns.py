"""Sensitivity over the observed patterns of participation, rather than over all patterns of a schema."""

from collections import defaultdict
from collections.abc import Iterable, Sequence

import numpy as np

from tff_mf import registry, validation
from tff_mf._sensitivity import SensitivityResult
from tff_mf._sensitivity.scale import scaled
from tff_mf.errors import InputValueError
from tff_mf.mechanisms import Mechanism

# Numbers that are summed at a time, to bound the memory.
_BLOCK = 2**22

# Relative difference of two equal squared norms that rounding may cause.
_ROUNDING = 2.0**-42


def pattern_sensitivity(
    mechanism: Mechanism, rounds: int, patterns: Iterable[Sequence[int]], *, restart_every: int | None = None
) -> SensitivityResult:
    """Returns the largest change of Cx by any of several clients with known rounds, or an upper bound of it.

    For contributions u_t of norm at most 1 in the rounds t of a pattern π, ‖Cu‖² = Σ_{s,t∈π} X_st ⟨u_s, u_t⟩ ≤
    Σ_{s,t∈π} |X_st| with X = CᵀC, with equality for equal contributions if these X_st ≥ 0. With restarts, X_st is that
    of the restart if s and t lie in the same one, and 0 otherwise.

    Formal guarantee:
        Adjacency: zero-out of one client's contributions, each of norm at most 1, in the rounds of its pattern.
        Participation: the given patterns, which must include every client's and must not depend on the clients' data.
        Sensitivity: the largest Frobenius norm of C(x − x') is at most the result, up to rounding (below 9e-13).
        Released: nothing.

    Args:
        mechanism: The mechanism with strategy matrix C.
        rounds: Number of rounds n.
        patterns: Rounds of each client, counted from 0, no round twice; empty patterns are ignored.
        restart_every: Rounds r after which the noise restarts, or `None`.

    Source: Choquette-Choo et al. (2023), proposition D.1, pattern by pattern.

    Example:
        >>> from tff_mf import Tree
        >>> round(pattern_sensitivity(Tree(4), 4, [(0, 1), (3,)]).value ** 2, 9)
        10.0

    Raises:
        InputTypeError: If an argument is of the wrong type.
        InputValueError: If a pattern has a round twice or outside the run, or C is defined for fewer rounds.
    """
    validation.instance("mechanism", mechanism, Mechanism, "pass a mechanism such as tff_mf.BLT or tff_mf.Identity")
    rounds = validation.whole("rounds", rounds)
    every = rounds if restart_every is None else min(rounds, validation.whole("restart_every", restart_every))
    registry.check_matrices(mechanism, every)
    encoder, scale = scaled(mechanism, mechanism.encoder(validation.dense(mechanism.check(every))))
    grams = _grams(encoder, rest=rounds % every)
    largest = reached = 0.0
    for indices in _by_length(patterns, rounds):
        size = max(1, _BLOCK // indices.shape[1] ** 2)
        for begin in range(0, len(indices), size):
            block = indices[begin : begin + size]
            place, restart = block % every, block // every
            # 1 in the last restart if it is shorter than the others, and 0 elsewhere.
            cut = (restart == rounds // every).astype(np.int64)
            pairs = grams[cut[:, :, None], place[:, :, None], place[:, None, :]]
            pairs *= restart[:, :, None] == restart[:, None, :]
            sums = np.sum(np.abs(pairs), axis=(1, 2))
            worst = int(np.argmax(sums))
            if sums[worst] > largest:
                largest, reached = float(sums[worst]), float(np.sum(pairs[worst]))
    exact = reached >= largest * (1 - _ROUNDING)
    rule = f"observed patterns{'' if exact else ', upper bound'}: largest sum of |CᵀC| over the rounds of a client"
    return SensitivityResult(value=largest**0.5 * scale, exact=exact, rule=rule)


def _grams(encoder: np.ndarray, *, rest: int) -> np.ndarray:
    """Returns CᵀC of a whole restart and, unless `rest` is 0, of one that ends after `rest` rounds.

    Float64, `[1, every, every]` or `[2, every, every]`. The effect of a contribution on rounds after the end of the run
    is not part of the release.
    """
    grams = np.zeros((1 + bool(rest), *encoder.shape))
    grams[0] = encoder.T @ encoder
    if rest:
        grams[1, :rest, :rest] = encoder[:rest, :rest].T @ encoder[:rest, :rest]
    return grams


def _by_length(patterns: Iterable[Sequence[int]], rounds: int) -> list[np.ndarray]:
    """Returns the distinct patterns, one int64 array `[patterns, length]` for each length that occurs."""
    validation.instance("patterns", patterns, Iterable, "the rounds of each client")
    groups: dict[int, set[tuple[int, ...]]] = defaultdict(set)
    for pattern in patterns:
        validation.instance("pattern", pattern, Iterable, "the rounds of one client")
        each = tuple(sorted(validation.whole("round", index, at_least=0) for index in pattern))
        if not each:
            continue
        if each[-1] >= rounds:
            raise InputValueError(f"pattern={each} has round {each[-1]}, but rounds={rounds} are counted from 0.")
        if len(set(each)) < len(each):
            raise InputValueError(f"pattern={each} has a round twice: a client contributes at most once per round.")
        groups[len(each)].add(each)
    return [np.array(sorted(group), dtype=np.int64) for _, group in sorted(groups.items())]
