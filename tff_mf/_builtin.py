"""The mechanisms of this package, registered as any other is: what each kind has besides its class.

The class has C and its recursion. Without `codec`, each of its fields is written as a tensor; without `sensitivity`,
the rule follows from the structure of C (`sensitivities.general.by_structure`).
"""

import functools
from collections.abc import Mapping

import numpy as np

from tff_mf import optimize
from tff_mf.base.errors import InputValueError
from tff_mf.mechanisms import (
    BLT,
    Banded,
    BandedPlusLowRank,
    BandedToeplitz,
    Dense,
    Identity,
    OptimizedFor,
    ScaledBLT,
    Tree,
)
from tff_mf.mechanisms.registry import Codec, Search, register_mechanism, whole_number
from tff_mf.sensitivities import (
    blt_sensitivity,
    scaled_columns_sensitivity,
    tree_sensitivity,
)

# In the order in which artifacts count them.
_VARIANTS = ("full", "online", "vanilla")


def _tree_tensors(tree: Tree) -> dict[str, np.ndarray]:
    return {"rounds": np.array([float(tree.rounds)]), "variant": np.array([float(_VARIANTS.index(tree.variant))])}


def _tree_of(tensors: Mapping[str, np.ndarray], optimized_for: OptimizedFor | None) -> Tree:
    index = whole_number("variant", tensors["variant"])
    if not 0 <= index < len(_VARIANTS):
        raise InputValueError(f"its tensor 'variant' is {index}, which stands for no variant of the tree")
    return Tree(whole_number("rounds", tensors["rounds"]), _VARIANTS[index], optimized_for=optimized_for)


def _tree(rounds: int | None, *, variant: str) -> Tree:
    if rounds is None:
        raise InputValueError(f"rounds missing: the name 'tree-{variant}' does not say how many a tree has.")
    return Tree(rounds, variant=variant)


register_mechanism(
    BLT,
    sensitivity=blt_sensitivity,
    search=Search(optimizer=optimize.optimize_blt, options=("buffers", "objective"), objective="max"),
    named={f"production:{name}": lambda _, name=name: BLT.production(name) for name in BLT.production_names()},
)
register_mechanism(
    ScaledBLT,
    sensitivity=scaled_columns_sensitivity,
    search=Search(optimizer=optimize.optimize_scaled_blt, options=("buffers", "objective"), objective="max"),
)
register_mechanism(
    Banded,
    codec=Codec.of_fields(Banded, values=2),
    search=Search(optimizer=optimize.optimize_banded, options=("bands", "unit_norms", "workload", "progress")),
)
register_mechanism(
    BandedToeplitz,
    search=Search(
        optimizer=optimize.optimize_banded_toeplitz, options=("bands", "objective", "workload"), toeplitz=True
    ),
)
register_mechanism(
    Dense,
    codec=Codec.of_fields(Dense, matrix=2),
    search=Search(optimizer=optimize.optimize_dense, options=("workload", "progress")),
)
register_mechanism(
    BandedPlusLowRank,
    codec=Codec.of_fields(BandedPlusLowRank, diagonals=2, left=2, right=2),
)
register_mechanism(
    Tree,
    codec=Codec(axes={"rounds": 1, "variant": 1}, encode=_tree_tensors, decode=_tree_of),
    sensitivity=tree_sensitivity,
    named={f"tree-{variant}": functools.partial(_tree, variant=variant) for variant in _VARIANTS},
)
register_mechanism(Identity, named={"identity": lambda _: Identity()})
