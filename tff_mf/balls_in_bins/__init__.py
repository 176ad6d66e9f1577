"""Privacy amplification by balls-in-bins sampling: for every mechanism whose C has no entry below 0."""

from tff_mf.balls_in_bins._account import balls_in_bins_delta as balls_in_bins_delta
from tff_mf.balls_in_bins._account import balls_in_bins_epsilon as balls_in_bins_epsilon
from tff_mf.balls_in_bins._account import calibrate_balls_in_bins as calibrate_balls_in_bins
from tff_mf.balls_in_bins._estimate import BallsInBinsEstimator as BallsInBinsEstimator
from tff_mf.balls_in_bins._estimate import EstimatedEpsilon as EstimatedEpsilon
from tff_mf.balls_in_bins._gram import balls_in_bins_gram as balls_in_bins_gram
from tff_mf.balls_in_bins._result import BallsInBinsGuarantee as BallsInBinsGuarantee
from tff_mf.balls_in_bins._result import DirectionBound as DirectionBound
