"""The guarantee of (mechanism, sampling, σ, grid): one question, one calibration, and one file for each sampling."""

from tff_mf.accounting.b_min_sep import BMinSep as BMinSep
from tff_mf.accounting.balls_in_bins import BallsInBins as BallsInBins
from tff_mf.accounting.entries import bands_and_norm as bands_and_norm
from tff_mf.accounting.epsilon import calibrate_noise_multiplier as calibrate_noise_multiplier
from tff_mf.accounting.epsilon import epsilon as epsilon
from tff_mf.accounting.epsilon import guarantee as guarantee
from tff_mf.accounting.epsilon import zcdp_rho as zcdp_rho
from tff_mf.accounting.guarantee import Guarantee as Guarantee
from tff_mf.accounting.guarantee import Level as Level
from tff_mf.accounting.guarantee import compose_guarantees as compose_guarantees
from tff_mf.accounting.poisson import CyclicPoisson as CyclicPoisson
from tff_mf.accounting.poisson import Poisson as Poisson
from tff_mf.accounting.question import Question as Question
from tff_mf.accounting.question import SecretSampling as SecretSampling
from tff_mf.accounting.question import adaptive_clipping_guarantee as adaptive_clipping_guarantee
from tff_mf.accounting.question import check_sampling as check_sampling
from tff_mf.accounting.search import Search as Search
