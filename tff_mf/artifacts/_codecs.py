"""How each kind of mechanism and participation is written: one entry a kind.

A codec sees only what the file format has checked already: the tensors are float64, of the names and
numbers of axes it declares, and finite.
"""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from tff_mf.errors import InputValueError
from tff_mf.mechanisms import (
    BLT,
    Banded,
    BandedInverse,
    BandedPlusLowRank,
    BandedToeplitz,
    Dense,
    Identity,
    Mechanism,
    OptimizedFor,
    Tree,
)
from tff_mf.participation import FixedEpoch, MinSep, Participation, SingleParticipation
from tff_mf.workloads import LearningRates, Momentum, MomentumWithRates, PrefixSum, Workload


@dataclasses.dataclass(frozen=True, kw_only=True)
class MechanismCodec:
    """Tensors of a mechanism, and the mechanism of tensors.

    Attributes:
        axes: Name of each tensor and its number of axes.
        encode: Returns the tensors of a mechanism.
        decode: Returns the mechanism of tensors and setting; raises `InputError` where they are wrong.
    """

    axes: Mapping[str, int]
    encode: Callable[[Any], dict[str, np.ndarray]]
    decode: Callable[[Mapping[str, np.ndarray], OptimizedFor | None], Mechanism]


_TREE_VARIANTS = ("full", "online")


def _whole(name: str, tensor: np.ndarray) -> int:
    if tensor.shape != (1,) or not float(tensor[0]).is_integer():
        raise InputValueError(f"its tensor {name!r} must be one whole number")
    return int(tensor[0])


def _tree_variant(tensor: np.ndarray) -> str:
    index = _whole("variant", tensor)
    if not 0 <= index < len(_TREE_VARIANTS):
        raise InputValueError(f"its tensor 'variant' is {index}, which stands for no variant of the tree")
    return _TREE_VARIANTS[index]


MECHANISMS: dict[str, MechanismCodec] = {
    BLT.kind: MechanismCodec(
        axes={"theta": 1, "omega": 1},
        encode=lambda blt: {"theta": np.array(blt.theta), "omega": np.array(blt.omega)},
        decode=lambda tensors, optimized_for: BLT(
            theta=tensors["theta"].tolist(), omega=tensors["omega"].tolist(), optimized_for=optimized_for
        ),
    ),
    Banded.kind: MechanismCodec(
        axes={"values": 2},
        encode=lambda banded: {"values": np.array(banded.values)},
        decode=lambda tensors, optimized_for: Banded(values=tensors["values"], optimized_for=optimized_for),
    ),
    BandedInverse.kind: MechanismCodec(
        axes={"inverse_column": 1},
        encode=lambda banded: {"inverse_column": np.array(banded.inverse_column)},
        decode=lambda tensors, optimized_for: BandedInverse(
            inverse_column=tensors["inverse_column"].tolist(), optimized_for=optimized_for
        ),
    ),
    BandedToeplitz.kind: MechanismCodec(
        axes={"column": 1},
        encode=lambda banded: {"column": np.array(banded.column)},
        decode=lambda tensors, optimized_for: BandedToeplitz(
            column=tensors["column"].tolist(), optimized_for=optimized_for
        ),
    ),
    Dense.kind: MechanismCodec(
        axes={"matrix": 2},
        encode=lambda dense: {"matrix": np.array(dense.matrix)},
        decode=lambda tensors, optimized_for: Dense(matrix=tensors["matrix"], optimized_for=optimized_for),
    ),
    Identity.kind: MechanismCodec(
        axes={},
        encode=lambda identity: {},
        decode=lambda tensors, optimized_for: Identity(optimized_for=optimized_for),
    ),
    BandedPlusLowRank.kind: MechanismCodec(
        axes={"diagonals": 2, "left": 2, "right": 2},
        encode=lambda structured: {
            "diagonals": np.array(structured.diagonals),
            "left": np.array(structured.left),
            "right": np.array(structured.right),
        },
        decode=lambda tensors, optimized_for: BandedPlusLowRank(
            diagonals=tensors["diagonals"], left=tensors["left"], right=tensors["right"], optimized_for=optimized_for
        ),
    ),
    Tree.kind: MechanismCodec(
        axes={"rounds": 1, "variant": 1},
        encode=lambda tree: {
            "rounds": np.array([float(tree.rounds)]),
            "variant": np.array([float(_TREE_VARIANTS.index(tree.variant))]),
        },
        decode=lambda tensors, optimized_for: Tree(
            _whole("rounds", tensors["rounds"]), _tree_variant(tensors["variant"]), optimized_for=optimized_for
        ),
    ),
}

PARTICIPATIONS: dict[str, type[Participation]] = {
    "fixed_epoch": FixedEpoch,
    "min_sep": MinSep,
    "single": SingleParticipation,
}

WORKLOADS: dict[str, type[Workload]] = {
    workload.kind: workload for workload in (LearningRates, Momentum, MomentumWithRates, PrefixSum)
}
