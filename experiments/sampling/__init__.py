"""Client sampling: cohorts that keep a participation schema, planned before training.

The plan is NumPy alone, so that a population that cannot fill the cohorts is refused at once;
`MinSepDataSource`, which hands the data of a plan's cohorts to a training program, needs TFF and is
imported when it is first asked for.
"""

from typing import TYPE_CHECKING

from ._balls_in_bins import plan_balls_in_bins as plan_balls_in_bins
from ._dropout import without_dropped as without_dropped
from ._epochs import plan_fixed_epochs as plan_fixed_epochs
from ._epochs import plan_shuffled_epochs as plan_shuffled_epochs
from ._kinds import plan as plan
from ._kinds import planner_name as planner_name
from ._min_sep import plan_cohorts as plan_cohorts
from ._min_sep_poisson import plan_min_sep_poisson as plan_min_sep_poisson
from ._plan import CohortPlan as CohortPlan
from ._plan import ObservedParticipation as ObservedParticipation
from ._poisson import plan_cyclic_poisson as plan_cyclic_poisson
from ._poisson import plan_poisson as plan_poisson
from ._random_allocation import plan_random_allocation as plan_random_allocation
from ._secret_groups import SecretGroups as SecretGroups
from ._timer import plan_timer as plan_timer

if TYPE_CHECKING:
    from .data_source import MinSepDataSource as MinSepDataSource


def __getattr__(name: str) -> object:
    if name == "MinSepDataSource":
        from .data_source import MinSepDataSource

        return MinSepDataSource
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
