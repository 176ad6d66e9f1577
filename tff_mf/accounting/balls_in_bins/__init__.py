"""Privacy amplification by balls-in-bins sampling: for every mechanism."""

from tff_mf.accounting.balls_in_bins._estimate import BallsInBinsEstimator as BallsInBinsEstimator
from tff_mf.accounting.balls_in_bins._estimate import EstimatedEpsilon as EstimatedEpsilon
from tff_mf.accounting.balls_in_bins._pair import balls_in_bins_gram as balls_in_bins_gram
from tff_mf.accounting.balls_in_bins._sampling import BallsInBins as BallsInBins
