"""How C is found: one mechanism a file."""

from tff_mf.optimize._result import OptimizationResult as OptimizationResult
from tff_mf.optimize.blt import optimize_blt as optimize_blt
from tff_mf.optimize.blt import optimize_blt_result as optimize_blt_result
