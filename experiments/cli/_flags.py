"""The meaning of the shared flags; meaningless combinations are refused."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import click
import msgspec

import tff_mf
from tff_mf.base import validation
from tff_mf.base.errors import InputValueError
from tff_mf.planning import MechanismSetting, by_name

from ..output import progress
from ..runs.derived import AUTO, NONE, grid_of
from ..runs.settings import RunSettings
from ..sampling.settings import DEFAULT, PARAMETERS, SECRET, SamplingSettings

_WITH_RATES = ("learning-rates", "momentum-with-rates")
# The workloads that each of them goes with.
_RAMP = {
    "server_momentum": ("momentum", "momentum-with-rates"),
    "server_warmup": _WITH_RATES,
    "server_cooldown": _WITH_RATES,
}
_DEFAULTS = {field.name: field.default for field in msgspec.structs.fields(RunSettings) if field.name in _RAMP}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Flags:
    """Values of the shared flags; those that were not given, or that the command lacks, are None.

    Attributes:
        sampling: The word of --sampling.
        parameters: The parameters of --sampling that were given.
        ramp: The server's momentum, warmup and cooldown, as far as they were given for --workload.
        diagonals: Of a structured mechanism, as `rank` and `approximates`.
    """

    rounds: int | None = None
    restart_every: int | None = None
    adjacency: str = "zero-out"
    workload: str | None = None
    ramp: Mapping[str, float] = dataclasses.field(default_factory=dict)
    objective: str | None = None
    bands: int | None = None
    buffers: int | None = None
    unit_norms: bool | None = None
    diagonals: int | None = None
    rank: int | None = None
    approximates: str | None = None
    sampling: str | None = None
    parameters: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    population: int | None = None
    clients_per_round: int | None = None
    grid: int | str | None = None
    dimension: int | None = None

    def __post_init__(self) -> None:
        for name in ("population", "clients_per_round", "dimension"):
            value = getattr(self, name)
            if value is not None:
                validation.whole(name, value)

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> "Flags":
        """Returns the flags from the values of options, by name."""
        kept = {name: value for name, value in given.items() if value is not None}
        parameters, ramp = ({name: kept.pop(name) for name in names if name in kept} for names in (PARAMETERS, _RAMP))
        return cls(**kept, parameters=parameters, ramp=ramp)

    @property
    def says_participation(self) -> bool:
        """Whether --sampling or a parameter of it was given."""
        return self.sampling is not None or bool(self.parameters)

    @property
    def cohorts(self) -> dict[str, Any]:
        """Population and clients per round, as far as they were given."""
        return {"population": self.population, "clients_per_round": self.clients_per_round}

    def drawn(self, **more: Any) -> SamplingSettings:
        """Returns how cohorts are drawn; `more` are parameters that may follow from others where they are not given.

        There is no default for them in general: single participation, the obvious one, would give the smallest ε.
        """
        return SamplingSettings(sampling=self.sampling or DEFAULT, **{**more, **self.parameters})

    def participation(self, rounds: int | None = None) -> tff_mf.Participation:
        """Returns the schema of the flags, for rounds in place of --rounds if that was not given."""
        return self.drawn().schema(self.rounds_for() if rounds is None else rounds)

    def rounds_for(self, mechanism: tff_mf.Mechanism | None = None) -> int:
        """Returns the rounds of the flags or, if they were not given, those that a mechanism was optimized for."""
        optimized_for = None if mechanism is None else mechanism.optimized_for
        if self.rounds is not None:
            return self.rounds
        if optimized_for is None:
            raise click.UsageError(
                "--rounds is missing, and the artifact does not say how many rounds it was optimized for."
            )
        return optimized_for.rounds

    def participation_for(self, mechanism: tff_mf.Mechanism | None) -> tff_mf.Participation:
        """Returns the schema of the flags or, if none was given, that a mechanism was optimized for."""
        optimized_for = None if mechanism is None else mechanism.optimized_for
        if optimized_for is None or self.says_participation:
            return self.participation(self.rounds_for(mechanism))
        return optimized_for.participation

    def refuse_sampling(self, command: str, *taken: str) -> None:
        """Raises if --sampling is none of those that a command makes or compares mechanisms for."""
        if self.sampling is not None and self.sampling not in taken:
            raise click.UsageError(
                f"--sampling {self.sampling} does not go with `{command}`, which takes {', '.join(taken)}; account "
                "accepts it."
            )

    def check_amplified(self) -> None:
        """Refuses what no theorem here amplifies, where cohorts are drawn in secret."""
        restarts = self.restart_every is not None
        for name, given in (("adjacency", self.adjacency != "zero-out"), ("restart_every", restarts)):
            if given and self.sampling in SECRET:
                raise click.UsageError(
                    f"--sampling {self.sampling} does not go with --set {name}={getattr(self, name)}: no theorem here "
                    "covers both; leave one out."
                )

    def chosen_workload(self, rounds: int) -> tff_mf.Workload | None:
        """Returns the workload of the flags, or None if none was named; what was not given is as in a run."""
        for name, value in self.ramp.items():
            kinds = _RAMP[name]
            if self.workload not in kinds:
                raise InputValueError(f"{name}={value!r} goes with workload {' or '.join(map(repr, kinds))} only.")
            if not validation.nonnegative(name, value) < 1:
                raise InputValueError(f"{name}={value!r} must lie in [0, 1).")
        if self.workload is None:
            return None
        values = {name: self.ramp.get(name, default) for name, default in _DEFAULTS.items()}
        short = {name.removeprefix("server_"): value for name, value in values.items()}
        return by_name.workload(self.workload, rounds=validation.whole("rounds", rounds), **short)

    def setting(
        self, mechanism: tff_mf.Mechanism | None = None, *, participation: tff_mf.Participation | None = None
    ) -> MechanismSetting:
        """Returns the setting of the flags; what they leave open is as a mechanism was optimized for."""
        # Refused before a search.
        grid = self.chosen_grid()
        rounds = self.rounds_for(mechanism)
        optimized_for = None if mechanism is None else mechanism.optimized_for
        return MechanismSetting(
            rounds=rounds,
            participation=participation or self.participation_for(mechanism),
            restart_every=self.restart_every,
            adjacency=self.adjacency,
            workload=self.chosen_workload(rounds) or (None if optimized_for is None else optimized_for.workload),
            grid=grid,
            dimension=None if grid is None else self.dimension,
        )

    def chosen_grid(self) -> tff_mf.Grid | None:
        """Returns the grid of the flags; refuses one whose cost no --dimension tells."""
        if self.grid in (None, NONE) and (self.dimension is None or self.grid == NONE):
            return None
        if self.dimension is None:
            raise click.UsageError(
                f"--dimension is missing: what --grid {self.grid} costs depends on the number of model parameters."
            )
        grid = AUTO if self.grid is None else self.grid
        return grid_of(grid, dimension=self.dimension, cohort=self.clients_per_round or 1)

    def named(self, file: str, setting: MechanismSetting) -> tff_mf.Mechanism:
        """Returns the mechanism called FILE, optimized for the setting if it names a kind."""
        with progress.search() as report:
            return setting.named(
                file,
                buffers=self.buffers,
                bands=self.bands,
                unit_norms=self.unit_norms,
                objective=self.objective,
                progress=report,
            )
