"""`sensitivity`, `explain_sensitivity` and `pattern_sensitivity`: over all patterns of a schema, or observed ones."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np

from tff_mf.base import validation
from tff_mf.base.errors import InputValueError
from tff_mf.mechanisms import BLT, Mechanism, ScaledBLT, Tree
from tff_mf.problem.participation import Participation
from tff_mf.sensitivities.general import ROUNDING, SensitivityResult, by_structure, scaled
from tff_mf.sensitivities.scaled_columns import scaled_columns_sensitivity
from tff_mf.sensitivities.toeplitz import blt_sensitivity
from tff_mf.sensitivities.tree_nodes import tree_sensitivity

# Numbers that are summed at a time, to bound the memory.
_BLOCK = 2**22
# By the exact class: a subclass may have another C. All others go by their structure.
_CLOSED_FORMS: Mapping[type[Mechanism], Callable[..., SensitivityResult]] = {
    BLT: blt_sensitivity,
    ScaledBLT: scaled_columns_sensitivity,
    Tree: tree_sensitivity,
}


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
        InputValueError: If the participations do not fit in `rounds`, C has fewer rounds, or its entries
            are too many or too large to compute with.
    """
    return explain_sensitivity(mechanism, rounds, participation).value


def explain_sensitivity(mechanism: Mechanism, rounds: int, participation: Participation) -> SensitivityResult:
    """Returns what `sensitivity` does, with the rule that gave it and whether it is exact.

    Takes the arguments of `sensitivity` and raises the same errors.

    Formal guarantee: as for `sensitivity`. For a class from outside of this package, the result follows from the
    structure of C: its coefficients, diagonals or entries.

    Example:
        >>> from tff_mf import BLT, MinSep
        >>> explain_sensitivity(BLT(theta=[0.5], omega=[0.5]), 4, MinSep(min_sep=2, max_participations=2)).exact
        True
    """
    validation.instance("mechanism", mechanism, Mechanism, "pass a mechanism such as tff_mf.BLT or tff_mf.Identity")
    validation.instance("participation", participation, Participation, "pass MinSep, FixedEpoch or SingleParticipation")
    rounds = participation.check(mechanism.check(rounds))
    return _CLOSED_FORMS.get(type(mechanism), by_structure)(mechanism, rounds, participation)


def pattern_sensitivity(
    mechanism: Mechanism, rounds: int, patterns: Iterable[Sequence[int]], *, restart_every: int | None = None
) -> SensitivityResult:
    """Returns the largest change of Cx by any one of the clients whose rounds are listed, or an upper bound of it.

    For contributions u_t of norm at most 1 in the rounds t of a pattern π, ‖Cu‖² = Σ_{s,t∈π} X_st ⟨u_s, u_t⟩ ≤
    Σ_{s,t∈π} |X_st| with X = CᵀC, with equality for equal contributions if these X_st ≥ 0. With restarts, X_st is taken
    from the restart's CᵀC if s and t lie in the same one, and is 0 otherwise.

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
        InputValueError: If a pattern has a round twice or outside the run, or C is defined for fewer rounds.
    """
    validation.instance("mechanism", mechanism, Mechanism, "pass a mechanism such as tff_mf.BLT or tff_mf.Identity")
    rounds = validation.whole("rounds", rounds)
    every = rounds if restart_every is None else min(rounds, validation.whole("restart_every", restart_every))
    encoder, scale = scaled(mechanism, mechanism.encoder(validation.dense(mechanism.check(every))))
    grams = _grams(encoder, rest=rounds % every)
    largest, reached = 0.0, 0.0
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
            argmax = int(np.argmax(sums))
            if sums[argmax] > largest:
                largest, reached = float(sums[argmax]), float(np.sum(pairs[argmax]))
    exact = reached >= largest * (1 - ROUNDING)
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
        indices = tuple(sorted(validation.whole("round", index, at_least=0) for index in pattern))
        if not indices:
            continue
        if indices[-1] >= rounds:
            raise InputValueError(f"pattern={indices} has round {indices[-1]}, but rounds={rounds} are counted from 0.")
        if len(set(indices)) < len(indices):
            raise InputValueError(f"pattern={indices} has a round twice: a client contributes at most once per round.")
        groups[len(indices)].add(indices)
    return [np.array(sorted(group), dtype=np.int64) for _, group in sorted(groups.items())]
