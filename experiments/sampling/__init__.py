"""Client sampling: cohorts that keep a participation schema, planned before training.

The plan is NumPy alone, so that a population that cannot fill the cohorts is refused at once;
`MinSepDataSource`, which hands the data of a plan's cohorts to a training program, needs TFF and is
imported when it is first asked for.
"""

from typing import TYPE_CHECKING

from tff_mf.problem.cohort_secret import CohortSecret as CohortSecret

from ._plan import CohortPlan as CohortPlan
from ._plan import ObservedParticipation as ObservedParticipation
from ._plan import keep_secret as keep_secret
from ._plan import plan_cohorts as plan_cohorts
from ._plan import secret_cohorts as secret_cohorts
from .settings import SamplingSettings as SamplingSettings

if TYPE_CHECKING:
    from .data_source import MinSepDataSource as MinSepDataSource


def __getattr__(name: str) -> object:
    if name == "MinSepDataSource":
        from .data_source import MinSepDataSource

        return MinSepDataSource
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
