"""How each kind of mechanism and participation is written: one entry a kind.

A codec sees only what the file format has checked already: the tensors are float64, of the names and
numbers of axes it declares, and finite.
"""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from tff_mf.mechanisms import BLT, Identity, MadeFor, Mechanism
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
    decode: Callable[[Mapping[str, np.ndarray], MadeFor | None], Mechanism]


MECHANISMS: dict[str, MechanismCodec] = {
    BLT.kind: MechanismCodec(
        axes={"theta": 1, "omega": 1},
        encode=lambda blt: {"theta": np.array(blt.theta), "omega": np.array(blt.omega)},
        decode=lambda tensors, made_for: BLT(
            theta=tensors["theta"].tolist(), omega=tensors["omega"].tolist(), made_for=made_for
        ),
    ),
    Identity.kind: MechanismCodec(
        axes={},
        encode=lambda identity: {},
        decode=lambda tensors, made_for: Identity(made_for=made_for),
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
