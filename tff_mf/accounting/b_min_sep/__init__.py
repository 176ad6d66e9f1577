"""Privacy amplification by b-min-sep sampling, of mechanisms with at most b bands."""

from tff_mf.accounting.b_min_sep._sampling import BMinSep as BMinSep
