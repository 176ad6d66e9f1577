"""Sensitivity of tree aggregation: that of the tree's nodes."""

import math

from tff_mf._sensitivity import tree_nodes
from tff_mf._sensitivity._result import SensitivityResult
from tff_mf.mechanisms.tree import Tree
from tff_mf.participation import FixedEpoch, MinSep, Participation, SingleParticipation


def tree_sensitivity(mechanism: Tree, rounds: int, participation: Participation) -> SensitivityResult:
    """Denisov et al. (2022), theorem 2.1: with CᵀC that of the node matrix, C is as sensitive as the nodes.

    That is exact for the full variant over all its rounds. Over fewer rounds, and for the online variant, the release
    is computed from the noised nodes of a tree, whose sensitivity is an upper bound. The first n rounds of the online
    and of the vanilla variant are those of a tree over n rounds; those of the full variant depend on the total number
    of rounds. The vanilla variant's C is the matrix of the nodes that it uses, so that theirs is exact.
    """
    vanilla = mechanism.variant == "vanilla"
    leaves = mechanism.max_rounds if mechanism.variant == "full" else rounds
    arguments = (leaves, participation.min_sep, participation.max_participations)
    fixed = isinstance(participation, FixedEpoch)
    largest = tree_nodes.fixed_epoch if fixed else tree_nodes.min_sep
    nodes = largest(*arguments, only_left=vanilla)
    known = fixed or isinstance(participation, MinSep | SingleParticipation)
    exact = known and rounds == leaves and mechanism.variant != "online"
    return SensitivityResult(
        value=math.sqrt(nodes),
        exact=exact,
        rule=f"tree{'' if exact else ', upper bound'}: largest sum of squared "
        f"{'left-child' if vanilla else 'node'} counts over "
        f"{'fixed epochs' if fixed else 'min-sep patterns'}, Kairouz et al. (2021)",
    )
