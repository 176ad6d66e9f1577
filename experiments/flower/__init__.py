"""Training on Flower: a strategy with correlated noise, on the guard, ledger and reports of every other run.

Needs `flwr`, and no TensorFlow. Public modules: `clipping`, `cohorts` and `mods`.
"""

from tff_mf.base import required_packages

required_packages.packages("Training on Flower", "flwr")

from .strategy import FlowerSettings as FlowerSettings  # noqa: E402
from .strategy import MFStrategy as MFStrategy  # noqa: E402
from .strategy import ServerOptimizer as ServerOptimizer  # noqa: E402
from .strategy import Waiting as Waiting  # noqa: E402
from .strategy import open_strategy as open_strategy  # noqa: E402
from .strategy import sampling_of as sampling_of  # noqa: E402
