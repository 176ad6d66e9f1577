"""The setting of a run that a mechanism is optimized for: rounds, participation, restarts, adjacency and workload."""

import dataclasses

import tff_mf
from tff_mf import grids, validation
from tff_mf.accounting import ADJACENCIES
from tff_mf.errors import InputValueError
from tff_mf.sensitivities.losses import Errors, restart_errors

from ..privacy import statements
from . import mechanism_names


@dataclasses.dataclass(frozen=True, kw_only=True)
class MechanismSetting:
    """The setting of a whole run, in which any mechanism has a sensitivity, losses and a guarantee.

    Attributes:
        rounds: Number of rounds n.
        participation: The participation schema Π of the whole run.
        restart_every: Rounds after which noise starts anew with fresh z, or `None`.
        adjacency: "zero-out" or "replace-one".
        workload: The workload A that losses are for; `None` is the prefix sum.
        grid: The grid on which updates are summed and noised, or `None` for real numbers.
        dimension: The most parameters that the model may have, with a grid.

    Example:
        >>> schema = tff_mf.MinSep(min_sep=4, max_participations=3)
        >>> setting = MechanismSetting(rounds=12, participation=schema, restart_every=6)
        >>> setting.searched_participation
        MinSep(min_sep=4, max_participations=2)
        >>> setting.in_words
        'min-sep b≥4, k≤3, noise restarted every 6 rounds'

    Raises:
        InputTypeError: If a field is of the wrong type.
        InputValueError: If a field is out of range, or the participations do not fit in `rounds`.
    """

    rounds: int
    participation: tff_mf.Participation
    restart_every: int | None = None
    adjacency: str = "zero-out"
    workload: tff_mf.Workload | None = None
    grid: tff_mf.Grid | None = None
    dimension: int | None = None

    def __post_init__(self) -> None:
        self.participation.check(self.rounds)
        if self.restart_every is not None:
            validation.whole("restart_every", self.restart_every)
        validation.one_of("adjacency", self.adjacency, ADJACENCIES)
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
    def searched_participation(self) -> tff_mf.Participation:
        """The schema of one restart: as many of a client's participations as fit in it."""
        schema = self.participation
        fits = -(-self.searched_rounds // schema.min_sep)
        if isinstance(schema, tff_mf.SingleParticipation) or schema.max_participations <= fits:
            return schema
        kind = tff_mf.FixedEpoch if isinstance(schema, tff_mf.FixedEpoch) else tff_mf.MinSep
        return kind(min_sep=schema.min_sep, max_participations=fits)

    @property
    def searched_workload(self) -> tff_mf.Workload | None:
        """The workload of one restart, to optimize for.

        Raises:
            InputValueError: If it has learning rates, which differ from restart to restart.
        """
        if self.is_restarted and isinstance(self.workload, tff_mf.LearningRates):
            raise InputValueError(
                f"workload={self.workload.kind!r} with restart_every={self.restart_every}: no mechanism is optimized "
                "for learning rates that differ from restart to restart; leave one of the two out."
            )
        return self.workload

    @property
    def in_words(self) -> str:
        """The schema and the restarts that the guarantee is for, in words."""
        every = self.restart_every if self.is_restarted else None
        return statements.run_bound_to(self.participation, restart_every=every, adaptive=False)

    def named(
        self,
        name: str,
        *,
        buffers: int | None = None,
        bands: int | None = None,
        unit_norms: bool | None = None,
        objective: str | None = None,
    ) -> tff_mf.Mechanism:
        """Returns the mechanism of a name: read, or optimized for this setting; see `mechanism_names.build`."""
        workload = self.searched_workload if name in mechanism_names.searched() else None
        return mechanism_names.build(
            name,
            rounds=self.searched_rounds,
            participation=self.searched_participation,
            buffers=buffers,
            bands=bands,
            unit_norms=unit_norms,
            objective=objective,
            optimized_for=workload,
        )

    def sensitivity(self, mechanism: tff_mf.Mechanism) -> tff_mf.SensitivityResult:
        """Returns sens_Π of the whole run, for zero-out: `tff_mf.restart_sensitivity` of C as it is given.

        Formal guarantee: as for `tff_mf.restart_sensitivity`. Noise runs with the C of `mechanism.cast_to_float32()`.
        """
        every = self.searched_rounds
        return tff_mf.restart_sensitivity(mechanism, self.rounds, self.participation, restart_every=every)

    def guarantee(self, mechanism: tff_mf.Mechanism, noise_multiplier: float) -> tff_mf.Guarantee:
        """Returns the guarantee of the whole run.

        Formal guarantee: as for `tff_mf.guarantee`.
        """
        return tff_mf.guarantee(
            mechanism,
            self.rounds,
            self.participation,
            noise_multiplier=noise_multiplier,
            restart_every=self.restart_every,
            adjacency=self.adjacency,
            grid=self.grid,
            dimension=self.dimension,
        )

    def charge(self, mechanism: tff_mf.Mechanism, noise_multiplier: float) -> grids.GridCharge | None:
        """Returns what the integers of the grid cost; `None` without one, or without noise.

        Formal guarantee: as for `tff_mf.grids.charge`; it is part of `guarantee`.
        """
        if self.grid is None or self.dimension is None or noise_multiplier == 0:
            return None
        return grids.charge(
            mechanism,
            self.rounds,
            self.participation.max_participations,
            noise_multiplier=noise_multiplier,
            grid=self.grid,
            dimension=self.dimension,
            restart_every=self.restart_every,
        )

    def noise_multiplier(self, mechanism: tff_mf.Mechanism, *, epsilon: float, delta: float) -> float:
        """Returns the smallest σ for which the whole run is (ε, δ)-DP.

        Formal guarantee: as for `tff_mf.calibrate_noise_multiplier`.
        """
        return tff_mf.calibrate_noise_multiplier(
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

    def errors(self, mechanism: tff_mf.Mechanism) -> Errors:
        """Returns RmsError and MaxError of the whole run; times sensitivity they are losses."""
        return restart_errors(mechanism, self.rounds, restart_every=self.searched_rounds, workload=self.workload)

    def claim(self, guarantee: tff_mf.Guarantee, *, delta: float, population: int | None) -> statements.Claim:
        """Returns the content of the one-line statement of a guarantee."""
        return statements.Claim(
            guarantee=guarantee,
            delta=delta,
            rounds=self.rounds,
            participation=self.in_words,
            population=population,
        )
