"""Runs whose noise starts anew after every r rounds: one C after another, each with its own z.

With restarts the strategy matrix of the whole run is block-diagonal, C_r in every block. It is one Gaussian release
like any other, and ‖Cu‖² is the sum over restarts i of ‖C_r u_i‖² for contributions u_i in them.
"""

import numpy as np

from tff_mf import _validate
from tff_mf._sensitivity import SensitivityResult, explain_sensitivity, general, sensitivity, tree_nodes
from tff_mf.mechanisms import Mechanism
from tff_mf.mechanisms.tree import Tree
from tff_mf.mechanisms.tree_factors import forest
from tff_mf.participation import FixedEpoch, MinSep, Participation, SingleParticipation

# Whole block-diagonal matrices are looked at up to here: a second.
_MOST_WHOLE_ROUNDS = 2**11

# Rounding of a sum of squares, each good to 2⁻⁴⁰.
_ROUNDING = 2.0**-44


def restart_sensitivity(
    mechanism: Mechanism, rounds: int, participation: Participation, *, restart_every: int
) -> SensitivityResult:
    """Returns the sensitivity of a whole run whose noise starts anew after every r rounds, or an upper bound of it.

    A client may take part in several restarts: what it adds to them adds up in squares. The result is the smallest of

    * exactly, for trees: the sum of squared node counts over the forest of all restarts' trees;
    * exactly or by the rules for any matrix: the sensitivity of the block-diagonal C, if it is small enough;
    * for any C: let f(j) be the squared sensitivity of one restart with at most j participations in it. A pattern
      with j_i participations in restart i has ‖Cu‖² = Σ_i ‖C_r u_i‖² ≤ Σ_i f(j_i), because what it has in one restart
      is a pattern of the schema with at most j_i participations. Σ_i j_i is at most k, so that the largest Σ_i f(j_i)
      over such j bounds them all. That participations in two restarts are also b apart is not used.

    Formal guarantee: that of `sensitivity`, for the block-diagonal C. A single restart's sensitivity is not that of the
    run, unless no client comes back.

    Args:
        mechanism: The mechanism with strategy matrix C_r.
        rounds: Number of rounds n of the whole run; the last restart may be shorter.
        participation: The participation schema Π of the whole run.
        restart_every: Rounds r of a restart, at least 1; with r ≥ n there is none.

    Source: Kairouz et al. (2021), appendix D (DP-FTRL-TR), for any C and any schema.

    Example:
        >>> from tff_mf import MinSep, Tree
        >>> p = MinSep(min_sep=8, max_participations=3)
        >>> round(restart_sensitivity(Tree(8), 24, p, restart_every=8).value ** 2, 9)
        12.0

    Raises:
        InputTypeError: If an argument is of the wrong type.
        InputValueError: If the participations do not fit in `rounds`, or C has fewer rounds than a restart.
    """
    _validate.instance("mechanism", mechanism, Mechanism, "pass a mechanism such as tff_mf.BLT or tff_mf.Identity")
    _validate.instance("participation", participation, Participation, "pass MinSep, FixedEpoch or SingleParticipation")
    rounds = _validate.whole("rounds", rounds)
    every = _validate.whole("restart_every", restart_every)
    if every >= rounds:
        return explain_sensitivity(mechanism, rounds, participation)
    participation.check(rounds)
    mechanism.check(every)
    if participation.max_participations == 1:
        one = explain_sensitivity(mechanism, every, SingleParticipation())
        rule = f"one participation, in one restart: {one.rule}"
        return SensitivityResult(value=one.value, exact=one.exact, rule=rule)
    if type(mechanism) is Tree and isinstance(participation, MinSep) and _fills(mechanism, every):
        return _of_trees(mechanism, rounds, participation, every)
    bounds = [_by_counts(mechanism, rounds, participation, every)]
    if rounds <= _MOST_WHOLE_ROUNDS and type(mechanism) is not Tree:
        whole = general.of_matrix(_block_diagonal(mechanism, rounds, every), participation)
        bounds.insert(0, SensitivityResult(value=whole.value, exact=whole.exact, rule=f"all restarts, {whole.rule}"))
    return min(bounds, key=lambda bound: bound.value)


def _fills(tree: Tree, every: int) -> bool:
    """Says whether the nodes that a restart releases are those of a tree over as many rounds."""
    return tree.variant == "online" or tree.rounds == every


def _of_trees(mechanism: Tree, rounds: int, participation: MinSep, every: int) -> SensitivityResult:
    restarts, rest = divmod(rounds, every)
    # The full variant's decoder uses the nodes of a whole tree, also where the last restart is cut short.
    last = [] if not rest else [*forest(every if mechanism.variant == "full" else rest)]
    heights = [*forest(every)] * restarts + last
    nodes = tree_nodes.min_sep_over(heights, participation.min_sep, participation.max_participations)
    exact = mechanism.variant == "full" and not rest
    rule = (
        "largest sum of squared node counts over min-sep patterns and all restarts, Kairouz et al. (2021), appendix D"
    )
    return SensitivityResult(value=nodes**0.5, exact=exact, rule=f"trees{'' if exact else ', upper bound'}: {rule}")


def _by_counts(mechanism: Mechanism, rounds: int, participation: Participation, every: int) -> SensitivityResult:
    min_sep = participation.min_sep
    limit = min(participation.max_participations, -(-rounds // min_sep))
    restarts, rest = divmod(rounds, every)
    whole = _squares(mechanism, every, participation, limit)
    best = np.zeros(limit + 1)
    for index in range(restarts + bool(rest)):
        squares = whole if index < restarts else _squares(mechanism, rest, participation, limit)
        reached = best.copy()
        for count, square in enumerate(squares):
            reached[count:] = np.maximum(reached[count:], best[: limit + 1 - count] + square)
        if np.array_equal(reached, best):
            break
        best = reached
    rule = "restarts, upper bound: largest sum of squared sensitivities over the ways to spread k participations"
    return SensitivityResult(value=float(np.sqrt(best[-1])) * (1 + _ROUNDING), exact=False, rule=rule)


def _squares(mechanism: Mechanism, rounds: int, participation: Participation, limit: int) -> list[float]:
    """Returns f(0), f(1), …, f(j) for as many participations as fit in `rounds`."""
    schema = FixedEpoch if isinstance(participation, FixedEpoch) else MinSep
    most = min(limit, -(-rounds // participation.min_sep))
    counts = range(1, most + 1)
    schemas = [schema(min_sep=participation.min_sep, max_participations=count) for count in counts]
    return [0.0, *(sensitivity(mechanism, rounds, each) ** 2 for each in schemas)]


def _block_diagonal(mechanism: Mechanism, rounds: int, every: int) -> np.ndarray:
    matrix = np.zeros((rounds, rounds))
    block = mechanism.encoder(every)
    for begin in range(0, rounds, every):
        end = min(begin + every, rounds)
        matrix[begin:end, begin:end] = block[: end - begin, : end - begin]
    return matrix
