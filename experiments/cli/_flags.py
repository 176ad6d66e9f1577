"""The meaning of the shared flags; meaningless combinations are refused."""

import dataclasses
from typing import Any

import click

import tff_mf
from tff_mf.base import validation

from ..configuration import mechanism_names
from ..configuration.mechanism_names import MechanismSetting
from ..configuration.settings import AUTO, NONE, grid_of
from ..privacy import amplification

_WITH_MOMENTUM = ("momentum", "momentum_with_rates")
_WITH_RATES = ("learning_rates", "momentum_with_rates")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Flags:
    """Values of the shared flags; those that were not given, or that the command lacks, are None or False."""

    rounds: int | None = None
    min_sep: int | None = None
    max_participations: int | None = None
    fixed_epochs: bool = False
    restart_every: int | None = None
    adjacency: str = "zero-out"
    workload: str | None = None
    momentum: float | None = None
    warmup: float | None = None
    cooldown: float | None = None
    objective: str | None = None
    bands: int | None = None
    buffers: int | None = None
    sampling: str | None = None
    population: int | None = None
    clients_per_round: int | None = None
    grid: int | str | None = None
    dimension: int | None = None

    @property
    def says_participation(self) -> bool:
        """Whether any flag of participation was given."""
        return self.min_sep is not None or self.max_participations is not None or self.fixed_epochs

    def participation(self) -> tff_mf.Participation:
        """Returns the schema of the flags.

        There is no default: single participation, the obvious one, would give the smallest ε.
        """
        if self.max_participations == 1 and self.min_sep is None and not self.fixed_epochs:
            return tff_mf.SingleParticipation()
        missing = [
            flag
            for flag, value in (("--min-sep", self.min_sep), ("--max-participations", self.max_participations))
            if value is None
        ]
        if missing or self.min_sep is None or self.max_participations is None:
            raise click.UsageError(
                f"{' and '.join(missing)} missing: say how often a client may take part "
                "(--max-participations 1 for single participation)."
            )
        schema = tff_mf.FixedEpoch if self.fixed_epochs else tff_mf.MinSep
        return schema(min_sep=self.min_sep, max_participations=self.max_participations)

    def chosen_workload(self, rounds: int) -> tff_mf.Workload | None:
        """Returns the workload of the flags, or None if none was named."""
        given = {name: getattr(self, name) for name in ("momentum", "warmup", "cooldown")}
        if self.workload is not None:
            validation.one_of("workload", self.workload, mechanism_names.WORKLOADS)
        for name, kinds in (("momentum", _WITH_MOMENTUM), ("warmup", _WITH_RATES), ("cooldown", _WITH_RATES)):
            if given[name] is not None and self.workload not in kinds:
                raise click.UsageError(f"--{name} goes with --workload {' or '.join(kinds)} only.")
            if given[name] is not None and not validation.nonnegative(name, given[name]) < 1:
                raise click.UsageError(f"--{name} {given[name]} must be below 1.")
        if self.workload in _WITH_MOMENTUM and self.momentum is None:
            raise click.UsageError(f"--momentum is missing: --workload {self.workload} needs it.")
        if self.workload in _WITH_RATES and not (self.warmup or self.cooldown):
            raise click.UsageError(
                f"--warmup and --cooldown are missing: --workload {self.workload} needs one of them, above 0."
            )
        if self.workload is None:
            return None
        numbers = {name: value or 0.0 for name, value in given.items()}
        return mechanism_names.workload(self.workload, rounds=validation.whole("rounds", rounds), **numbers)

    def setting(
        self,
        participation: tff_mf.Participation | None = None,
        *,
        rounds: int | None = None,
        workload: tff_mf.Workload | None = None,
    ) -> MechanismSetting:
        """Returns the setting of the flags; the arguments replace flags that were not given."""
        rounds = self.rounds if rounds is None else rounds
        assert rounds is not None
        return MechanismSetting(
            rounds=rounds,
            participation=participation or self.participation(),
            restart_every=self.restart_every,
            adjacency=self.adjacency,
            workload=self.chosen_workload(rounds) or workload,
            grid=self.chosen_grid(),
            dimension=None if self.chosen_grid() is None else self.dimension,
        )

    def chosen_grid(self) -> tff_mf.Grid | None:
        """Returns the grid of the flags; refuses one whose cost no --dimension tells."""
        if self.dimension is not None:
            validation.whole("dimension", self.dimension)
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
        return setting.named(file, buffers=self.buffers, bands=self.bands, objective=self.objective)

    def sampled(self) -> dict[str, Any] | None:
        """Returns population and cohort of --sampling, or None without it; refuses contradictory flags."""
        if self.population is not None:
            validation.whole("population", self.population)
        if self.sampling is None:
            if self.clients_per_round is not None:
                raise click.UsageError(
                    f"--clients-per-round goes with --sampling {' or '.join(amplification.KINDS)} only."
                )
            return None
        self.check_sampling()
        for flag, value in (("--population", self.population), ("--clients-per-round", self.clients_per_round)):
            if value is None:
                raise click.UsageError(f"{flag} is missing: --sampling {self.sampling} needs it.")
        validation.whole("clients_per_round", self.clients_per_round)
        return {"kind": self.sampling, "population": self.population, "clients_per_round": self.clients_per_round}

    def check_sampling(self) -> None:
        """Refuses a sampling that no implemented theorem covers."""
        validation.one_of("sampling", self.sampling, amplification.ACCOUNTED)
        if self.adjacency != "zero-out":
            raise click.UsageError(
                f"--sampling {self.sampling} does not go with --adjacency {self.adjacency}: amplification is "
                "proven for zero-out only."
            )
        if self.restart_every is not None:
            raise click.UsageError(
                f"--sampling {self.sampling} does not go with --restart-every: no theorem here covers both; leave one "
                "out."
            )

    def refuse_b_min_sep(self, command: str) -> None:
        """Refuses a sampling for which no mechanism is made."""
        if self.sampling == "b_min_sep":
            raise click.UsageError(
                f"--sampling b_min_sep does not go with `{command}`: account and calibrate accept it, for a mechanism "
                "of at most --min-sep bands."
            )

    @property
    def in_bins(self) -> bool:
        """Whether --sampling is balls in bins, of which `plan` and `optimize` know more than other commands."""
        return self.sampling == amplification.BALLS_IN_BINS

    def groups(self, file: str) -> int:
        """Returns the number of groups into which --sampling splits clients: 1, --min-sep, or the mechanism's bands."""
        if self.sampling == "poisson":
            return 1
        known = self.min_sep if self.min_sep is not None else self.bands
        if known is not None:
            return validation.whole("min_sep" if self.min_sep is not None else "bands", known)
        if file in mechanism_names.searched():
            raise click.UsageError(f"--min-sep is missing: --sampling {self.sampling} has as many groups of clients.")
        assert self.rounds is not None
        return amplification.bands_of(mechanism_names.load(file, self.rounds), self.rounds)

    def bins(self) -> int:
        """Returns the number of groups of balls in bins: --min-sep, or as many as the population has cohorts for."""
        assert self.rounds is not None
        sampled = self.sampled()
        assert sampled is not None
        population, cohort = sampled["population"], sampled["clients_per_round"]
        bins = population // cohort if self.min_sep is None else validation.whole("min_sep", self.min_sep)
        if max(bins, 1) * cohort > population:
            raise click.UsageError(
                f"--population {population} has too few clients for {bins} bins of --clients-per-round {cohort}: take "
                "a smaller --min-sep."
            )
        return min(bins, validation.whole("rounds", self.rounds))

    def bins_participation(self, bins: int) -> tff_mf.Participation:
        """Returns the participation schema of balls in bins; refuses flags that contradict it."""
        assert self.rounds is not None
        turns = -(-self.rounds // bins)
        if self.max_participations not in (None, turns):
            raise click.UsageError(
                f"--sampling {self.sampling} with {bins} bins implies --max-participations {turns}: leave it out."
            )
        return tff_mf.FixedEpoch(min_sep=bins, max_participations=turns)

    def sampled_participation(self, groups: int) -> tff_mf.Participation:
        """Returns the participation schema of the sampling; refuses flags that contradict it."""
        assert self.rounds is not None
        assert self.sampling is not None
        sampled = self.sampled()
        assert sampled is not None
        schema = amplification.deployed(**sampled, groups=groups).schema(self.rounds)
        b, k = schema.min_sep, schema.max_participations
        if self.min_sep not in (None, b) or self.max_participations not in (None, k):
            raise click.UsageError(
                f"--sampling {self.sampling} implies --min-sep {b} and --max-participations {k}: leave both "
                "out, or give these."
            )
        if self.fixed_epochs and self.sampling == "poisson":
            raise click.UsageError(
                "--sampling poisson does not go with --fixed-epochs: a client may take part in any round."
            )
        return schema
