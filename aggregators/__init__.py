"""Floor 2: the mechanisms of `tff_mf` as aggregators of TensorFlow Federated."""

from tff_mf import _requires

_requires.packages("An aggregator", "tensorflow", "tensorflow_privacy", "tensorflow_federated")

from .dp_ftrl import build_dp_ftrl as build_dp_ftrl  # noqa: E402
from .factory import MFAggregationFactory as MFAggregationFactory  # noqa: E402
from .factory import build_mf_aggregator as build_mf_aggregator  # noqa: E402
from .session import tff_session as tff_session  # noqa: E402
