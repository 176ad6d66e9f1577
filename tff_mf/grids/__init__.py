"""Sums and noise in integers: the grid, the recursion of each mechanism on it, and what it costs in the guarantee."""

from tff_mf.grids._charge import GridCharge as GridCharge
from tff_mf.grids._charge import charge as charge
from tff_mf.grids._charge import recursion as recursion
from tff_mf.grids._closeness import delta_of_chain as delta_of_chain
from tff_mf.grids._closeness import epsilon_of_chain as epsilon_of_chain
from tff_mf.grids._cohorts import charge_of_secret_cohorts as charge_of_secret_cohorts
from tff_mf.grids._cohorts import overflow as overflow
from tff_mf.grids._grid import FEWEST_BITS as FEWEST_BITS
from tff_mf.grids._grid import LARGEST_NORMAL as LARGEST_NORMAL
from tff_mf.grids._grid import MOST_BITS as MOST_BITS
from tff_mf.grids._grid import Grid as Grid
from tff_mf.grids._grid import check as check
from tff_mf.grids._grid import description as description
from tff_mf.grids._grid import sampler as sampler
from tff_mf.mechanisms.grid_recursion import GridRecursion as GridRecursion
from tff_mf.mechanisms.grid_recursion import check_rows as check_rows
