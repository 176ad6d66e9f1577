"""Likelihood ratios of random allocation, on grids that bound δ from above."""

from tff_mf.accounting.allocation._atoms import Atoms as Atoms
from tff_mf.accounting.allocation._one_of_many import one_of_many as one_of_many
