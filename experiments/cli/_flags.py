"""What the options of `account`, `show`, `optimize` and `plan` say: a mechanism's setting, noise and cohorts."""

from collections.abc import Mapping
from typing import Any, Literal

import click
import msgspec

import tff_mf
from tff_mf.base.errors import InputValueError
from tff_mf.planning import MechanismSetting, by_name

from ..output import progress, typed
from ..output.typed import NonNegative, OpenUnit, Part, Positive, Record, Size
from ..runs.settings import AUTO, NONE, RunSettings, grid_of
from ..sampling.settings import DEFAULT, PARAMETERS, SECRET, SamplingSettings

_WITH_RATES = ("learning-rates", "momentum-with-rates")
# The workloads that each of them goes with.
_RAMP = {
    "server_momentum": ("momentum", "momentum-with-rates"),
    "server_warmup": _WITH_RATES,
    "server_cooldown": _WITH_RATES,
}
_DEFAULTS = {field.name: field.default for field in msgspec.structs.fields(RunSettings) if field.name in _RAMP}


class Flags(Record, kw_only=True):
    """What was given; of fields that a run has too, the text is the one there.

    Attributes:
        population: Number of clients that can take part; no guarantee is stated unless δ is below 1 / population.
        dimension: Number of model parameters: what a grid costs depends on it.
        adjacency: zero-out, or replace-one, which doubles the sensitivity.
        diagonals: Number h of diagonals of the decoder that a structured mechanism keeps exactly.
        rank: Rank r of its rest: noise needs h + r rows of memory.
        approximates: A file, or any name of a mechanism.
    """

    rounds: Size | None = None
    restart_every: Size | None = None
    adjacency: Literal["zero-out", "replace-one"] = "zero-out"
    workload: str | None = None
    server_momentum: Part | None = None
    server_warmup: Part | None = None
    server_cooldown: Part | None = None
    objective: Literal["rms", "max"] | None = None
    bands: Size | None = None
    buffers: Size | None = None
    unit_norms: bool | None = None
    diagonals: Size | None = None
    rank: Size | None = None
    approximates: str | None = None
    sampling: str | None = None
    min_sep: int | None = None
    max_participations: int | None = None
    groups: int | None = None
    population: Size | None = None
    clients_per_round: Size | None = None
    grid: int | str | None = None
    dimension: Size | None = None
    epsilon: Positive | None = None
    noise_multiplier: NonNegative | None = None
    delta: OpenUnit | None = None

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> "Flags":
        """Returns the values of options by name; refuses those of another type, or out of range."""
        return typed.convert({name: value for name, value in given.items() if value is not None}, cls)

    @property
    def parameters(self) -> dict[str, Any]:
        """The parameters of a sampling that were given."""
        return {name: getattr(self, name) for name in PARAMETERS if getattr(self, name) is not None}

    @property
    def says_participation(self) -> bool:
        """Whether a sampling or a parameter of one was given."""
        return self.sampling is not None or bool(self.parameters)

    @property
    def cohorts(self) -> dict[str, Any]:
        """Population and clients per round, as far as they were given."""
        return {"population": self.population, "clients_per_round": self.clients_per_round}

    @property
    def loss(self) -> str:
        """The loss to compare by."""
        return self.objective or "rms"

    def drawn(self, **more: Any) -> SamplingSettings:
        """Returns how cohorts are drawn; `more` are parameters that may follow from others where they are not given.

        There is no default for them in general: single participation, the obvious one, would give the smallest ε.
        """
        return SamplingSettings(sampling=self.sampling or DEFAULT, **{**more, **self.parameters})

    def setting(self, made_for: tff_mf.OptimizedFor | None = None) -> MechanismSetting:
        """Returns the setting; what was not given is as a mechanism was made for."""
        # Refused before a search.
        grid = self.chosen_grid()
        rounds = self.rounds if self.rounds is not None or made_for is None else made_for.rounds
        if rounds is None:
            raise click.UsageError(
                "--rounds is missing, and the artifact does not say how many rounds it was optimized for."
            )
        own = made_for is not None and not self.says_participation
        return MechanismSetting(
            rounds=rounds,
            participation=made_for.participation if own and made_for else self.drawn().schema(rounds),
            restart_every=self.restart_every,
            adjacency=self.adjacency,
            workload=self.chosen_workload(rounds) or (None if made_for is None else made_for.workload),
            grid=grid,
            dimension=None if grid is None else self.dimension,
        )

    def chosen_workload(self, rounds: int) -> tff_mf.Workload | None:
        """Returns the workload, or None if none was named; what else was not given is as in a run."""
        values = {name: getattr(self, name) for name in _RAMP}
        for name, value in values.items():
            if value is not None and self.workload not in _RAMP[name]:
                raise InputValueError(
                    f"{name}={value!r} goes with workload {' or '.join(map(repr, _RAMP[name]))} only."
                )
        if self.workload is None:
            return None
        shaped = {
            name.removeprefix("server_"): _DEFAULTS[name] if value is None else value for name, value in values.items()
        }
        return by_name.workload(self.workload, rounds=rounds, **shaped)

    def chosen_grid(self) -> tff_mf.Grid | None:
        """Returns the grid; refuses one whose cost no `dimension` tells."""
        if self.grid in (None, NONE) and (self.dimension is None or self.grid == NONE):
            return None
        if self.dimension is None:
            raise click.UsageError(
                f"--dimension is missing: what --grid {self.grid} costs depends on the number of model parameters."
            )
        grid = AUTO if self.grid is None else self.grid
        return grid_of(grid, dimension=self.dimension, cohort=self.clients_per_round or 1)

    def check_amplified(self) -> None:
        """Refuses what no theorem here amplifies, where cohorts are drawn in secret."""
        for name, usual in (("adjacency", "zero-out"), ("restart_every", None)):
            if self.sampling in SECRET and getattr(self, name) != usual:
                raise InputValueError(
                    f"sampling={self.sampling!r} does not go with {name}={getattr(self, name)!r}: no theorem here "
                    "covers both; leave one out."
                )

    def check_prefix_sums(self) -> None:
        """Refuses a workload and an objective where a mechanism is chosen by its error with amplification."""
        for name, usual in (("workload", "prefix-sum"), ("objective", "rms"), ("unit_norms", True)):
            if getattr(self, name) not in (None, usual):
                raise InputValueError(
                    f"{name}={getattr(self, name)!r} does not go with sampling={self.sampling!r}: mechanisms are "
                    f"compared by the RMS error of prefix sums; leave {name} out."
                )

    def named(self, file: str, setting: MechanismSetting) -> tff_mf.Mechanism:
        """Returns the mechanism called FILE, optimized for the setting if it names a kind."""
        options = {name: getattr(self, name) for name in ("buffers", "bands", "unit_norms", "objective")}
        with progress.search() as report:
            return setting.named(file, **options, progress=report)
