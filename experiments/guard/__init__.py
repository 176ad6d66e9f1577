"""Private training with a participation guard, for pipelines other than `tff-mf train`: parts of a TFF program."""

from .run_guard import RefusedCohortError as RefusedCohortError
from .run_guard import RunGuard as RunGuard
from .run_guard import begun_plan as begun_plan
from .run_guard import checked_clients as checked_clients
from .run_guard import open_guard as open_guard
