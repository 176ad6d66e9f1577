"""The plan of a run: everything that its guarantee depends on, in one object."""

from tff_mf.planning._making import plan as plan
from tff_mf.planning._noise import as_run as as_run
from tff_mf.planning._noise import check_level as check_level
from tff_mf.planning._noise import check_restarts as check_restarts
from tff_mf.planning._noise import checked_cohort as checked_cohort
from tff_mf.planning._noise import run_guarantee as run_guarantee
from tff_mf.planning._plan import Plan as Plan
from tff_mf.planning._plan import deployed_population as deployed_population
from tff_mf.planning._words import Alternative as Alternative
