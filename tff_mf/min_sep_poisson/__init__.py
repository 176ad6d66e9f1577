"""Privacy amplification by b-min-sep sampling, of mechanisms with at most b bands."""

from tff_mf.min_sep_poisson._account import min_sep_poisson_epsilon as min_sep_poisson_epsilon
from tff_mf.min_sep_poisson._account import min_sep_poisson_probability as min_sep_poisson_probability
from tff_mf.min_sep_poisson._result import MinSepPoissonGuarantee as MinSepPoissonGuarantee
