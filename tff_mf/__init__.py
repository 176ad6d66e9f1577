"""Matrix-factorization noise for differentially private federated learning."""

from importlib.metadata import version as _version
from typing import Any as _Any

from tff_mf import _builtin as _builtin
from tff_mf import _renamed
from tff_mf._sensitivity import SensitivityResult as SensitivityResult
from tff_mf._sensitivity import explain_sensitivity as explain_sensitivity
from tff_mf._sensitivity import sensitivity as sensitivity
from tff_mf.accounting import BallsInBins as BallsInBins
from tff_mf.accounting import BallsInBinsEstimator as BallsInBinsEstimator
from tff_mf.accounting import BMinSep as BMinSep
from tff_mf.accounting import CyclicPoisson as CyclicPoisson
from tff_mf.accounting import EstimatedEpsilon as EstimatedEpsilon
from tff_mf.accounting import Guarantee as Guarantee
from tff_mf.accounting import Level as Level
from tff_mf.accounting import Poisson as Poisson
from tff_mf.accounting import RandomAllocation as RandomAllocation
from tff_mf.accounting import ShuffledEpochs as ShuffledEpochs
from tff_mf.accounting import adaptive_clipping_guarantee as adaptive_clipping_guarantee
from tff_mf.accounting import balls_in_bins_gram as balls_in_bins_gram
from tff_mf.accounting import calibrate_noise_multiplier as calibrate_noise_multiplier
from tff_mf.accounting import compose_guarantees as compose_guarantees
from tff_mf.accounting import dp_event as dp_event
from tff_mf.accounting import effective_noise_multiplier as effective_noise_multiplier
from tff_mf.accounting import epsilon as epsilon
from tff_mf.accounting import guarantee as guarantee
from tff_mf.accounting import zcdp_rho as zcdp_rho
from tff_mf.artifacts import load as load
from tff_mf.artifacts import save as save
from tff_mf.bands import AmplifiedBands as AmplifiedBands
from tff_mf.bands import amplified_bands as amplified_bands
from tff_mf.errors import ArtifactError as ArtifactError
from tff_mf.errors import InputError as InputError
from tff_mf.grids import Grid as Grid
from tff_mf.losses import max_error as max_error
from tff_mf.losses import max_loss as max_loss
from tff_mf.losses import rms_error as rms_error
from tff_mf.losses import rms_loss as rms_loss
from tff_mf.mechanisms import BLT as BLT
from tff_mf.mechanisms import Banded as Banded
from tff_mf.mechanisms import BandedInverse as BandedInverse
from tff_mf.mechanisms import BandedPlusLowRank as BandedPlusLowRank
from tff_mf.mechanisms import BandedToeplitz as BandedToeplitz
from tff_mf.mechanisms import Dense as Dense
from tff_mf.mechanisms import Identity as Identity
from tff_mf.mechanisms import Mechanism as Mechanism
from tff_mf.mechanisms import OptimizedFor as OptimizedFor
from tff_mf.mechanisms import SearchStatus as SearchStatus
from tff_mf.mechanisms import Tree as Tree
from tff_mf.optimize import AmplifiedOptimum as AmplifiedOptimum
from tff_mf.optimize import former_results
from tff_mf.optimize import optimize_amplified_banded_toeplitz as optimize_amplified_banded_toeplitz
from tff_mf.optimize import optimize_amplified_blt as optimize_amplified_blt
from tff_mf.optimize import optimize_banded as optimize_banded
from tff_mf.optimize import optimize_banded_inverse as optimize_banded_inverse
from tff_mf.optimize import optimize_banded_plus_low_rank as optimize_banded_plus_low_rank
from tff_mf.optimize import optimize_banded_toeplitz as optimize_banded_toeplitz
from tff_mf.optimize import optimize_blt as optimize_blt
from tff_mf.optimize import optimize_dense as optimize_dense
from tff_mf.participation import FixedEpoch as FixedEpoch
from tff_mf.participation import MinSep as MinSep
from tff_mf.participation import Participation as Participation
from tff_mf.participation import Sampling as Sampling
from tff_mf.participation import SingleParticipation as SingleParticipation
from tff_mf.patterns import pattern_sensitivity as pattern_sensitivity
from tff_mf.registry import register_mechanism as register_mechanism
from tff_mf.restarts import restart_sensitivity as restart_sensitivity
from tff_mf.workloads import LearningRates as LearningRates
from tff_mf.workloads import LinearSchedule as LinearSchedule
from tff_mf.workloads import Momentum as Momentum
from tff_mf.workloads import MomentumWithRates as MomentumWithRates
from tff_mf.workloads import PrefixSum as PrefixSum
from tff_mf.workloads import Workload as Workload

__version__ = _version("tff-mf")

_RENAMED = {
    "MadeFor": "OptimizedFor",
    "Structured": "BandedPlusLowRank",
    "optimize_structured": "optimize_banded_plus_low_rank",
}


def __getattr__(name: str) -> _Any:
    """Returns what a former name stands for."""
    if name in former_results.NAMES:
        return former_results.found(__name__, name)
    return _renamed.found(__name__, name, _RENAMED)
