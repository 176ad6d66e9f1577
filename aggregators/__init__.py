"""Mechanisms of `tff_mf` as aggregators of TensorFlow Federated.

Lowest first: `resident`, `metrics`, `dp_ftrl`; `record_sums`; `factory`; `checkpoints`, `process_check` and `export`.
Users import the names below, and `private_fed_avg` and `private_fed_sgd`, which are of a higher layer.
"""

import importlib

from tff_mf.base import required_packages

required_packages.packages("An aggregator", "tensorflow", "tensorflow_privacy", "tensorflow_federated")

from .checkpoints import CheckpointManager as CheckpointManager  # noqa: E402
from .checkpoints import SavedStates as SavedStates  # noqa: E402
from .checkpoints import WriteAheadReleaseManager as WriteAheadReleaseManager  # noqa: E402
from .checkpoints import without_noise as without_noise  # noqa: E402
from .dp_ftrl import build_dp_ftrl as build_dp_ftrl  # noqa: E402
from .export import LiteModel as LiteModel  # noqa: E402
from .export import convert_to_lite as convert_to_lite  # noqa: E402
from .export import export_computation as export_computation  # noqa: E402
from .export import export_process as export_process  # noqa: E402
from .factory import MFAggregationFactory as MFAggregationFactory  # noqa: E402
from .factory import WeakGuaranteeWarning as WeakGuaranteeWarning  # noqa: E402
from .factory import build_mf_aggregator as build_mf_aggregator  # noqa: E402
from .metrics import rounds_drawn as rounds_drawn  # noqa: E402
from .metrics import withhold_measurements as withhold_measurements  # noqa: E402
from .metrics import withhold_metrics as withhold_metrics  # noqa: E402
from .process_check import check_process as check_process  # noqa: E402
from .resident.context import ResidentContext as ResidentContext  # noqa: E402
from .resident.context import resident_context as resident_context  # noqa: E402
from .resident.session import LargeStateWarning as LargeStateWarning  # noqa: E402
from .resident.session import tff_session as tff_session  # noqa: E402
from .resident.values import ResidentValue as ResidentValue  # noqa: E402
from .resident.worker import NoRoundsLeftError as NoRoundsLeftError  # noqa: E402
from .resident.worker import WorkerLostError as WorkerLostError  # noqa: E402

# Where a user looks for them. They need the guard and the report, which are above this layer: nothing of it is imported
# until one is asked for, and this layer is complete without.
_OF_EXPERIMENTS = ("PrivateTraining", "private_fed_avg", "private_fed_sgd")


def __getattr__(name: str) -> object:
    if name in _OF_EXPERIMENTS:
        return getattr(importlib.import_module("tff_mf.experiments.guard.fed_avg"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
