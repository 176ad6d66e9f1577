"""The setting of a whole run, in which any mechanism has a sensitivity, losses and a guarantee."""

import dataclasses
from typing import Unpack

import numpy as np

from tff_mf import accounting
from tff_mf.accounting import grid_charge
from tff_mf.base import validation
from tff_mf.base.errors import InputValueError
from tff_mf.mechanisms import Mechanism, on_grid
from tff_mf.planning import mechanism_names
from tff_mf.problem import grids
from tff_mf.problem.grids import Grid
from tff_mf.problem.participation import FixedEpoch, MinSep, Participation, SingleParticipation
from tff_mf.problem.workloads import LearningRates, Workload
from tff_mf.sensitivities import SensitivityResult
from tff_mf.sensitivities.losses import Errors, restart_errors
from tff_mf.sensitivities.restarts import restart_sensitivity

# Bytes of a parameter of the model.
_FLOAT = 4


@dataclasses.dataclass(frozen=True, kw_only=True)
class MechanismSetting:
    """The setting of a whole run, in which any mechanism has a sensitivity, losses and a guarantee.

    Attributes:
        rounds: Number of rounds n.
        participation: The participation schema Π of the whole run.
        restart_every: Rounds after which noise starts anew with fresh z, or `None`.
        adjacency: "zero-out" or "replace-one".
        workload: The workload A that losses are for; `None` is the prefix sum.
        grid: The grid whose cost is part of every guarantee, or `None` for real numbers.
        dimension: Number d of model parameters, with a grid.

    Example:
        >>> import tff_mf
        >>> schema = tff_mf.MinSep(min_sep=4, max_participations=3)
        >>> setting = MechanismSetting(rounds=12, participation=schema, restart_every=6)
        >>> setting.searched_participation
        MinSep(min_sep=4, max_participations=2)

    Raises:
        InputTypeError: If a field is of the wrong type.
        InputValueError: If a field is out of range, or the participations do not fit in `rounds`.
    """

    rounds: int
    participation: Participation
    restart_every: int | None = None
    adjacency: str = "zero-out"
    workload: Workload | None = None
    grid: Grid | None = None
    dimension: int | None = None

    def __post_init__(self) -> None:
        self.participation.check(self.rounds)
        if self.restart_every is not None:
            validation.whole("restart_every", self.restart_every)
        validation.one_of("adjacency", self.adjacency, accounting.ADJACENCIES)
        if self.workload is not None:
            self.workload.check(self.rounds)

    @property
    def searched_rounds(self) -> int:
        """Rounds of the longest restart, for which a mechanism must be defined."""
        return self.rounds if self.restart_every is None else min(self.rounds, self.restart_every)

    @property
    def is_restarted(self) -> bool:
        """Whether noise starts anew within the run."""
        return self.searched_rounds < self.rounds

    @property
    def separation(self) -> int:
        """Rounds from one participation of a client to its next, or more: b, and n for a client that comes once."""
        schema = self.participation
        return self.rounds if schema.max_participations == 1 else min(schema.min_sep, self.rounds)

    @property
    def searched_participation(self) -> Participation:
        """The schema of one restart: as many of a client's participations as fit in it."""
        schema = self.participation
        fits = -(-self.searched_rounds // schema.min_sep)
        if isinstance(schema, SingleParticipation) or schema.max_participations <= fits:
            return schema
        kind = FixedEpoch if isinstance(schema, FixedEpoch) else MinSep
        return kind(min_sep=schema.min_sep, max_participations=fits)

    @property
    def searched_workload(self) -> Workload | None:
        """The workload of one restart, to optimize for.

        Raises:
            InputValueError: If it has learning rates, which differ from restart to restart.
        """
        if self.is_restarted and isinstance(self.workload, LearningRates):
            raise InputValueError(
                f"workload={self.workload.kind!r} with restart_every={self.restart_every}: no mechanism is optimized "
                "for learning rates that differ from restart to restart; leave one of the two out."
            )
        return self.workload

    def named(
        self,
        name: str,
        *,
        progress: mechanism_names.Progress | None = None,
        **options: Unpack[mechanism_names.SearchOptions],
    ) -> Mechanism:
        """Returns the mechanism of a name: read, or optimized for this setting; see `mechanism_names.build`."""
        if name in mechanism_names.searched():
            options["workload"] = self.searched_workload
        return mechanism_names.build(
            name,
            rounds=self.searched_rounds,
            participation=self.searched_participation,
            progress=progress,
            **options,
        )

    def sensitivity(self, mechanism: Mechanism) -> SensitivityResult:
        """Returns sens_Π of the whole run, for zero-out: `tff_mf.restart_sensitivity` of C as it is given.

        Formal guarantee: as for `tff_mf.restart_sensitivity`. Noise runs with the C of `mechanism.cast_to_float32()`.
        """
        every = self.searched_rounds
        return restart_sensitivity(mechanism, self.rounds, self.participation, restart_every=every)

    def guarantee(
        self, mechanism: Mechanism, noise_multiplier: float, sensitivity: SensitivityResult | None = None
    ) -> accounting.Guarantee:
        """Returns the guarantee of the whole run, for real numbers or with what the integers of the grid cost.

        Formal guarantee: as for `tff_mf.guarantee`; a `sensitivity` that is given must be the one of
        `mechanism.cast_to_float32()`, which can take a second to compute.
        """
        sigma = validation.nonnegative("noise_multiplier", noise_multiplier)
        return self._question(mechanism).answered(sigma, sensitivity)

    def charge(self, mechanism: Mechanism, noise_multiplier: float) -> grid_charge.GridCharge | None:
        """Returns what the integers of the grid cost; `None` without one, or without noise.

        Formal guarantee: as for `tff_mf.accounting.grid_charge.charge`; it is part of `guarantee`.
        """
        return self._question(mechanism).charge(noise_multiplier)

    def copies(self, mechanism: Mechanism, noise_multiplier: float) -> int:
        """Returns how many copies of the model, in float32, are the rows of noise that a stream in TensorFlow keeps.

        A row of float64 on a grid counts as two.

        Raises:
            InputError: If the noise does not fit the grid.
        """
        if self.grid is None:
            return mechanism.cast_to_float32().recursion().rows
        deviation = noise_multiplier * 2**self.grid.bits
        found = on_grid(mechanism, deviation=deviation, largest_normal=grids.LARGEST_NORMAL)
        return sum(np.dtype(each).itemsize for each in found.recursion.types(0)) // _FLOAT

    def _question(self, mechanism: Mechanism) -> accounting.Question:
        return accounting.Question(
            mechanism=mechanism,
            rounds=self.rounds,
            sampling=self.participation,
            restart_every=self.restart_every,
            adjacency=self.adjacency,
            grid=self.grid,
            dimension=self.dimension,
        )

    def noise_multiplier(self, mechanism: Mechanism, *, epsilon: float, delta: float) -> float:
        """Returns the smallest σ for which the whole run is (ε, δ)-DP.

        Formal guarantee: as for `tff_mf.calibrate_noise_multiplier`.
        """
        return accounting.calibrate_noise_multiplier(
            mechanism,
            self.rounds,
            self.participation,
            epsilon=epsilon,
            delta=delta,
            restart_every=self.restart_every,
            adjacency=self.adjacency,
            grid=self.grid,
            dimension=self.dimension,
        )

    def errors(self, mechanism: Mechanism) -> Errors:
        """Returns RmsError and MaxError of the whole run; times sensitivity they are losses."""
        return restart_errors(mechanism, self.rounds, restart_every=self.searched_rounds, workload=self.workload)
