"""What every planner of cohorts is asked for, checked once."""

import dataclasses
from collections.abc import Sequence

import numpy as np

import tff_mf
from tff_mf import validation

from . import _checks
from ._plan import CohortPlan


@dataclasses.dataclass(frozen=True, kw_only=True)
class CohortRequest:
    """The arguments of a planner.

    Attributes:
        client_ids: The population, no id twice.
        clients_per_round: Size m of a cohort.
        rounds: Number n of rounds.
        participation: The schema to keep.
        seed: The same request gives the same plan.
        schemas: Classes of schemas that the planner keeps.

    Raises:
        InputTypeError: If a field is of the wrong type.
        InputValueError: If a field is out of range.
    """

    client_ids: Sequence[str]
    clients_per_round: int
    rounds: int
    participation: tff_mf.Participation
    seed: int
    schemas: tuple[type[tff_mf.Participation], ...] = _checks.COUNTED

    def __post_init__(self) -> None:
        object.__setattr__(self, "client_ids", _checks.population(self.client_ids))
        for name in ("clients_per_round", "rounds"):
            object.__setattr__(self, name, validation.whole(name, getattr(self, name)))
        _checks.check_participation(self.participation, self.schemas)
        _checks.generator(self.seed)

    @property
    def population(self) -> int:
        """Number of clients."""
        return len(self.client_ids)

    def generator(self) -> np.random.Generator:
        """Returns a new generator for the cohorts."""
        return _checks.generator(self.seed)

    def planned(self, indices: np.ndarray, participation: tff_mf.Participation | None = None) -> CohortPlan:
        """Returns the plan of such cohorts, for a schema other than the one asked for if one is given.

        Raises:
            InputValueError: If the cohorts break the schema.
        """
        kept = self.participation if participation is None else participation
        return CohortPlan(client_ids=tuple(self.client_ids), participation=kept, indices=indices)
