"""The plan of a run: everything that its guarantee depends on, in one object."""

from tff_mf.planning.compare import MechanismSetting as MechanismSetting
from tff_mf.planning.compare import check_level as check_level
from tff_mf.planning.plan import Plan as Plan
from tff_mf.planning.plan import check_restarts as check_restarts
from tff_mf.planning.plan import checked_cohort as checked_cohort
from tff_mf.planning.plan import deployed_population as deployed_population
from tff_mf.planning.plan import plan as plan
