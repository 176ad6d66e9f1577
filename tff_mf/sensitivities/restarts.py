"""Sensitivity of runs whose noise restarts with fresh z after every r rounds.

With restarts the strategy matrix of the whole run is block-diagonal, with C_r in every block. The run is still one
Gaussian release, and ‖Cu‖² is the sum over restarts i of ‖C_r u_i‖² for the contributions u_i in them.
"""

import numpy as np

from tff_mf.base import validation
from tff_mf.mechanisms import Mechanism
from tff_mf.mechanisms.tree import Tree, forest
from tff_mf.problem.participation import FixedEpoch, MinSep, Participation, SingleParticipation
from tff_mf.sensitivities import general, tree_nodes
from tff_mf.sensitivities._api import explain_sensitivity, sensitivity
from tff_mf.sensitivities.general import SensitivityResult

# Largest number of rounds for which the whole block-diagonal matrix is formed: it takes a second.
_MOST_WHOLE_ROUNDS = 2**11

# Exceeds the rounding error of the sum of squares.
_ROUNDING = 2.0**-44


def restart_sensitivity(
    mechanism: Mechanism, rounds: int, participation: Participation, *, restart_every: int
) -> SensitivityResult:
    """Returns the sensitivity of a whole run whose noise restarts after every r rounds, or an upper bound of it.

    A client may take part in several restarts, whose squared sensitivities then add up. The result is the smallest of

    * for trees, the sum of squared node counts over the forest of all restarts' trees;
    * the sensitivity of the block-diagonal C by the rules for any matrix, if it is small enough;
    * for any C, the following bound. Let f(j) be the squared sensitivity of one restart with at most j participations
      in it. A pattern with j_i participations in restart i has ‖Cu‖² = Σ_i ‖C_r u_i‖² ≤ Σ_i f(j_i), because its part in
      one restart is a pattern of the schema with at most j_i participations. Σ_i j_i is at most k, so that the largest
      Σ_i f(j_i) over all such j is an upper bound. It ignores that participations in two restarts are also b apart.

    Formal guarantee: as for `sensitivity`, for the block-diagonal C. The sensitivity of a single restart equals the
    run's only if every client takes part once.

    Args:
        mechanism: The mechanism with strategy matrix C_r of one restart.
        rounds: Number of rounds n of the whole run; the last restart may be shorter.
        participation: The participation schema Π of the whole run.
        restart_every: Rounds r of a restart, at least 1; for r ≥ n the noise never restarts.

    Source: Kairouz et al. (2021), appendix D (DP-FTRL-TR), for any C and any schema.

    Example:
        >>> from tff_mf import MinSep, Tree
        >>> p = MinSep(min_sep=8, max_participations=3)
        >>> round(restart_sensitivity(Tree(8), 24, p, restart_every=8).value ** 2, 9)
        12.0

    Raises:
        InputValueError: If the participations do not fit in `rounds`, or C is defined for fewer rounds than a restart.
    """
    validation.instance("mechanism", mechanism, Mechanism, "pass a mechanism such as tff_mf.BLT or tff_mf.Identity")
    validation.instance("participation", participation, Participation, "pass MinSep, FixedEpoch or SingleParticipation")
    rounds = validation.whole("rounds", rounds)
    every = validation.whole("restart_every", restart_every)
    if every >= rounds:
        return explain_sensitivity(mechanism, rounds, participation)
    participation.check(rounds)
    mechanism.check(every)
    if participation.max_participations == 1:
        single = explain_sensitivity(mechanism, every, SingleParticipation())
        rule = f"one participation, in one restart: {single.rule}"
        return SensitivityResult(value=single.value, exact=single.exact, rule=rule)
    if type(mechanism) is Tree and isinstance(participation, MinSep) and _fills(mechanism, every):
        return _of_trees(mechanism, rounds, participation, every)
    bounds = [_by_counts(mechanism, rounds, participation, every)]
    if rounds <= _MOST_WHOLE_ROUNDS and type(mechanism) is not Tree:
        # Imported here: it takes a good part of the import time of the package.
        from scipy.linalg import block_diag

        block = mechanism.encoder(every)
        widths = [min(every, rounds - begin) for begin in range(0, rounds, every)]
        whole = general.of_matrix(block_diag(*(block[:width, :width] for width in widths)), participation)
        bounds.insert(0, SensitivityResult(value=whole.value, exact=whole.exact, rule=f"all restarts, {whole.rule}"))
    return min(bounds, key=lambda bound: bound.value)


def _fills(tree: Tree, every: int) -> bool:
    """Returns whether a restart releases the same nodes as a tree over as many rounds."""
    return tree.variant != "full" or tree.rounds == every


def _of_trees(mechanism: Tree, rounds: int, participation: MinSep, every: int) -> SensitivityResult:
    restarts, rest = divmod(rounds, every)
    # The decoder of the full variant uses the nodes of a whole tree, even if the last restart is shorter.
    last = [] if not rest else [*forest(every if mechanism.variant == "full" else rest)]
    heights = [*forest(every)] * restarts + last
    vanilla = mechanism.variant == "vanilla"
    nodes = tree_nodes.min_sep(heights, participation.min_sep, participation.max_participations, only_left=vanilla)
    exact = vanilla or (mechanism.variant == "full" and not rest)
    rule = (
        f"largest sum of squared {'left-child' if vanilla else 'node'} counts over min-sep patterns and all restarts, "
        "Kairouz et al. (2021), appendix D"
    )
    return SensitivityResult(value=nodes**0.5, exact=exact, rule=f"trees{'' if exact else ', upper bound'}: {rule}")


def _by_counts(mechanism: Mechanism, rounds: int, participation: Participation, every: int) -> SensitivityResult:
    min_sep = participation.min_sep
    most = min(participation.max_participations, -(-rounds // min_sep))
    restarts, rest = divmod(rounds, every)
    whole = _squares(mechanism, every, participation, most)
    best = np.zeros(most + 1)
    for index in range(restarts + bool(rest)):
        squares = whole if index < restarts else _squares(mechanism, rest, participation, most)
        reached = best.copy()
        for count, square in enumerate(squares):
            reached[count:] = np.maximum(reached[count:], best[: most + 1 - count] + square)
        if np.array_equal(reached, best):
            break
        best = reached
    rule = "restarts, upper bound: largest sum of squared sensitivities over the ways to spread k participations"
    return SensitivityResult(value=float(np.sqrt(best[-1])) * (1 + _ROUNDING), exact=False, rule=rule)


def _squares(mechanism: Mechanism, rounds: int, participation: Participation, most: int) -> list[float]:
    """Returns f(0), f(1), …, f(j) for j participations, at most `most` and as many as fit in `rounds`."""
    schema_class = FixedEpoch if isinstance(participation, FixedEpoch) else MinSep
    counts = range(1, min(most, -(-rounds // participation.min_sep)) + 1)
    schemas = [schema_class(min_sep=participation.min_sep, max_participations=count) for count in counts]
    return [0.0, *(sensitivity(mechanism, rounds, schema) ** 2 for schema in schemas)]
