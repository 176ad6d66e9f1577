"""Moved to `tff_mf.gaussian`."""

from tff_mf.gaussian import delta_from_epsilon as delta_from_epsilon
from tff_mf.gaussian import epsilon_from_delta as epsilon_from_delta
from tff_mf.gaussian import log_delta as log_delta
from tff_mf.gaussian import mu_from as mu_from
from tff_mf.gaussian import mu_of as mu_of
from tff_mf.gaussian import rho_of as rho_of
