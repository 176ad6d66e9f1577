"""Participation schemas and workloads that artifacts hold, by the names they have there."""

from tff_mf.participation import FixedEpoch, MinSep, Participation, SingleParticipation
from tff_mf.workloads import LearningRates, Momentum, MomentumWithRates, PrefixSum, Workload

PARTICIPATIONS: dict[str, type[Participation]] = {
    "fixed_epoch": FixedEpoch,
    "min_sep": MinSep,
    "single": SingleParticipation,
}

WORKLOADS: dict[str, type[Workload]] = {
    workload.kind: workload for workload in (LearningRates, Momentum, MomentumWithRates, PrefixSum)
}
