"""Central training: a Keras model trained on one data set, each of whose examples is protected.

Examples take the place of clients. An order says which of them are in the batch of each round: the cohorts of a
sampling, such as the one of a plan.
"""

from tff_mf.base import required_packages

required_packages.packages("Central training", "tensorflow", "tensorflow_privacy")

from tff_mf.frameworks.keras._clipped_sum import ClippedSum as ClippedSum  # noqa: E402
from tff_mf.frameworks.keras._training import Training as Training  # noqa: E402
