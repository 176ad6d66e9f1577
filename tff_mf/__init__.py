"""Matrix-factorization noise for differentially private federated learning.

Public functions and classes raise `InputTypeError` for an argument of the wrong type and `InputValueError` for one out
of range, both an `InputError`. Their docstrings do not repeat this: "Raises" names what else is refused.
"""

from importlib.metadata import version as _version

from tff_mf.accounting import BallsInBins as BallsInBins
from tff_mf.accounting import BMinSep as BMinSep
from tff_mf.accounting import CyclicPoisson as CyclicPoisson
from tff_mf.accounting import Guarantee as Guarantee
from tff_mf.accounting import Level as Level
from tff_mf.accounting import Poisson as Poisson
from tff_mf.accounting import Search as Search
from tff_mf.accounting import adaptive_clipping_guarantee as adaptive_clipping_guarantee
from tff_mf.accounting import calibrate_noise_multiplier as calibrate_noise_multiplier
from tff_mf.accounting import compose_guarantees as compose_guarantees
from tff_mf.accounting import epsilon as epsilon
from tff_mf.accounting import guarantee as guarantee
from tff_mf.accounting import zcdp_rho as zcdp_rho
from tff_mf.artifacts import load as load
from tff_mf.artifacts import save as save
from tff_mf.base.errors import ArtifactError as ArtifactError
from tff_mf.base.errors import InputError as InputError
from tff_mf.frameworks.order import Order as Order
from tff_mf.mechanisms import BLT as BLT
from tff_mf.mechanisms import Banded as Banded
from tff_mf.mechanisms import BandedPlusLowRank as BandedPlusLowRank
from tff_mf.mechanisms import BandedToeplitz as BandedToeplitz
from tff_mf.mechanisms import Dense as Dense
from tff_mf.mechanisms import Identity as Identity
from tff_mf.mechanisms import Mechanism as Mechanism
from tff_mf.mechanisms import OptimizedFor as OptimizedFor
from tff_mf.mechanisms import ScaledBLT as ScaledBLT
from tff_mf.mechanisms import SearchStatus as SearchStatus
from tff_mf.mechanisms import Tree as Tree
from tff_mf.optimize import optimize_banded as optimize_banded
from tff_mf.optimize import optimize_banded_plus_low_rank as optimize_banded_plus_low_rank
from tff_mf.optimize import optimize_banded_toeplitz as optimize_banded_toeplitz
from tff_mf.optimize import optimize_blt as optimize_blt
from tff_mf.optimize import optimize_dense as optimize_dense
from tff_mf.optimize import optimize_scaled_blt as optimize_scaled_blt
from tff_mf.optimize.bands import AmplifiedBands as AmplifiedBands
from tff_mf.optimize.bands import amplified_bands as amplified_bands
from tff_mf.optimize.least_loss import least_loss as least_loss
from tff_mf.planning import Plan as Plan
from tff_mf.planning import plan as plan
from tff_mf.problem.cohort_secret import CohortSecret as CohortSecret
from tff_mf.problem.grids import Grid as Grid
from tff_mf.problem.participation import FixedEpoch as FixedEpoch
from tff_mf.problem.participation import MinSep as MinSep
from tff_mf.problem.participation import Participation as Participation
from tff_mf.problem.participation import Sampling as Sampling
from tff_mf.problem.participation import SingleParticipation as SingleParticipation
from tff_mf.problem.workloads import LearningRates as LearningRates
from tff_mf.problem.workloads import LinearSchedule as LinearSchedule
from tff_mf.problem.workloads import Momentum as Momentum
from tff_mf.problem.workloads import MomentumWithRates as MomentumWithRates
from tff_mf.problem.workloads import PrefixSum as PrefixSum
from tff_mf.problem.workloads import Workload as Workload
from tff_mf.sensitivities import SensitivityResult as SensitivityResult
from tff_mf.sensitivities import explain_sensitivity as explain_sensitivity
from tff_mf.sensitivities import pattern_sensitivity as pattern_sensitivity
from tff_mf.sensitivities import sensitivity as sensitivity
from tff_mf.sensitivities.losses import max_error as max_error
from tff_mf.sensitivities.losses import max_loss as max_loss
from tff_mf.sensitivities.losses import rms_error as rms_error
from tff_mf.sensitivities.losses import rms_loss as rms_loss
from tff_mf.sensitivities.restarts import restart_sensitivity as restart_sensitivity

__version__ = _version("tff-mf")
