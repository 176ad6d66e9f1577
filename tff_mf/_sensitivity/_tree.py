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
    variant are those of a tree over n rounds; those of the full variant depend on the total number of rounds.
    """
    online = mechanism.variant == "online"
    leaves = rounds if online else mechanism.max_rounds
    arguments = (leaves, participation.separation, participation.limit)
    fixed = isinstance(participation, FixedEpoch)
    nodes = tree_nodes.fixed_epoch(*arguments) if fixed else tree_nodes.min_sep(*arguments)
    known = fixed or isinstance(participation, MinSep | SingleParticipation)
    exact = known and not online and rounds == leaves
    return SensitivityResult(
        value=math.sqrt(nodes),
        exact=exact,
        rule=f"tree{'' if exact else ', upper bound'}: largest sum of squared node counts over "
        f"{'fixed epochs' if fixed else 'min-sep patterns'}, Kairouz et al. (2021)",
    )
