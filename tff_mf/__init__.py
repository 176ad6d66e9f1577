"""Matrix-factorization noise for differentially private federated learning."""

from importlib.metadata import version as _version

from tff_mf import _builtin as _builtin
from tff_mf.accounting import calibrate_noise_multiplier as calibrate_noise_multiplier
from tff_mf.accounting import dp_event as dp_event
from tff_mf.accounting import effective_noise_multiplier as effective_noise_multiplier
from tff_mf.accounting import epsilon as epsilon
from tff_mf.accounting import zcdp_rho as zcdp_rho
from tff_mf.amplification import amplified_dp_event as amplified_dp_event
from tff_mf.amplification import amplified_epsilon as amplified_epsilon
from tff_mf.amplification import calibrate_amplified_noise_multiplier as calibrate_amplified_noise_multiplier
from tff_mf.artifacts import load as load
from tff_mf.artifacts import save as save
from tff_mf.balls_in_bins import BallsInBinsEstimator as BallsInBinsEstimator
from tff_mf.balls_in_bins import BallsInBinsGuarantee as BallsInBinsGuarantee
from tff_mf.balls_in_bins import DirectionBound as DirectionBound
from tff_mf.balls_in_bins import EstimatedEpsilon as EstimatedEpsilon
from tff_mf.balls_in_bins import balls_in_bins_delta as balls_in_bins_delta
from tff_mf.balls_in_bins import balls_in_bins_epsilon as balls_in_bins_epsilon
from tff_mf.balls_in_bins import balls_in_bins_gram as balls_in_bins_gram
from tff_mf.balls_in_bins import calibrate_balls_in_bins as calibrate_balls_in_bins
from tff_mf.bands import AmplifiedBands as AmplifiedBands
from tff_mf.bands import amplified_bands as amplified_bands
from tff_mf.errors import ArtifactError as ArtifactError
from tff_mf.errors import InputError as InputError
from tff_mf.grids import Grid as Grid
from tff_mf.guarantees import Guarantee as Guarantee
from tff_mf.guarantees import adaptive_clipping_guarantee as adaptive_clipping_guarantee
from tff_mf.guarantees import compose_guarantees as compose_guarantees
from tff_mf.guarantees import guarantee as guarantee
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
from tff_mf.min_sep_poisson import MinSepPoissonGuarantee as MinSepPoissonGuarantee
from tff_mf.min_sep_poisson import min_sep_poisson_epsilon as min_sep_poisson_epsilon
from tff_mf.min_sep_poisson import min_sep_poisson_probability as min_sep_poisson_probability
from tff_mf.optimize import AmplifiedOptimum as AmplifiedOptimum
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
from tff_mf.participation import SingleParticipation as SingleParticipation
from tff_mf.random_allocation import (
    calibrate_random_allocation_noise_multiplier as calibrate_random_allocation_noise_multiplier,
)
from tff_mf.random_allocation import random_allocation_epsilon as random_allocation_epsilon
from tff_mf.registry import register_mechanism as register_mechanism
from tff_mf.restarts import restart_sensitivity as restart_sensitivity
from tff_mf.sensitivities import SensitivityResult as SensitivityResult
from tff_mf.sensitivities import check_mechanism as check_mechanism
from tff_mf.sensitivities import explain_sensitivity as explain_sensitivity
from tff_mf.sensitivities import pattern_sensitivity as pattern_sensitivity
from tff_mf.sensitivities import sensitivity as sensitivity
from tff_mf.sensitivities.losses import max_error as max_error
from tff_mf.sensitivities.losses import max_loss as max_loss
from tff_mf.sensitivities.losses import rms_error as rms_error
from tff_mf.sensitivities.losses import rms_loss as rms_loss
from tff_mf.shuffling import shuffled_epsilon as shuffled_epsilon
from tff_mf.workloads import LearningRates as LearningRates
from tff_mf.workloads import LinearSchedule as LinearSchedule
from tff_mf.workloads import Momentum as Momentum
from tff_mf.workloads import MomentumWithRates as MomentumWithRates
from tff_mf.workloads import PrefixSum as PrefixSum
from tff_mf.workloads import Workload as Workload

__version__ = _version("tff-mf")
