"""Optimizers: how C is found, one mechanism per file."""

from tff_mf.optimize.banded import optimize_banded as optimize_banded
from tff_mf.optimize.banded_plus_low_rank import optimize_banded_plus_low_rank as optimize_banded_plus_low_rank
from tff_mf.optimize.banded_toeplitz import optimize_banded_toeplitz as optimize_banded_toeplitz
from tff_mf.optimize.blt import optimize_blt as optimize_blt
from tff_mf.optimize.dense import optimize_dense as optimize_dense
from tff_mf.optimize.scaled_blt import optimize_scaled_blt as optimize_scaled_blt
