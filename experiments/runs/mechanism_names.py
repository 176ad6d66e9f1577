"""The mechanism of a run by its name: optimized for the run's setting, or read from a file."""

import dataclasses
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import tff_mf
from tff_mf import grids, registry
from tff_mf.accounting import ADJACENCIES
from tff_mf.base import validation
from tff_mf.base.errors import InputValueError
from tff_mf.problem.workloads import ToeplitzWorkload
from tff_mf.sensitivities.losses import Errors, restart_errors

from ..output import progress
from . import statements
from .words import Bound


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
        >>> str(setting.bound)
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
    def bound(self) -> Bound:
        """The schema and the restarts that the guarantee is for."""
        return statements.bound_to(self.participation, restart_every=self.restart_every if self.is_restarted else None)

    def named(
        self,
        name: str,
        *,
        buffers: int | None = None,
        bands: int | None = None,
        unit_norms: bool | None = None,
        objective: str | None = None,
    ) -> tff_mf.Mechanism:
        """Returns the mechanism of a name: read, or optimized for this setting; see `build`."""
        workload = self.searched_workload if name in searched() else None
        return build(
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
            participation=self.bound,
            population=population,
        )


# Where a server's warmup starts and its cooldown ends, as a part of its rate: banded MF paper, appendix H.
RAMP_FLOOR = 0.05

WORKLOADS = ("prefix_sum", "momentum", "learning_rates", "momentum_with_rates")
_PREFIX = "production:"


def searched() -> Mapping[str, registry.Search]:
    """Returns the kinds that are optimized for a setting, by the names of the command line, with their searches.

    Example:
        >>> list(searched())[:2]
        ['blt', 'banded']
    """
    return {record.command_name: record.search for record in registry.kinds() if record.search is not None}


def names() -> tuple[str, ...]:
    """Returns the names that stand for a mechanism: the kinds that are optimized, and those that need no search.

    Example:
        >>> names()[-3:]
        ('tree-online', 'tree-vanilla', 'identity')
    """
    return (*searched(), *(name for name in _named() if not name.startswith(_PREFIX)))


def production() -> tuple[str, ...]:
    """Returns the names of the production mechanisms of McMahan et al. (2024).

    Example:
        >>> production()[0]
        'production:b100'
    """
    return tuple(name for name in _named() if name.startswith(_PREFIX))


def _named() -> dict[str, Callable[[int | None], tff_mf.Mechanism]]:
    return {name: build for record in registry.kinds() for name, build in record.named.items()}


def load(name: str, rounds: int | None = None) -> tff_mf.Mechanism:
    """Returns the mechanism of an artifact, of `identity`, of `production:NAME`, or a tree.

    Args:
        name: The name, or the path of an artifact.
        rounds: Rounds of a tree, which its name does not give.

    Example:
        >>> load("tree-full", 8)
        Tree(optimized_for=None, rounds=8, variant='full')

    Raises:
        ArtifactError: If a file does not hold an intact artifact.
        InputValueError: If there is no such file or production mechanism (the message names the nearest), or a tree has
            no rounds.
    """
    named = _named()
    if name in named:
        return named[name](rounds)
    if name.startswith(_PREFIX):
        validation.one_of("mechanism", name, production())
    _check_exists(name, (*names(), *production()))
    return tff_mf.load(name)


def check(name: str, *, rounds: int, **options: Any) -> None:
    """Raises unless there is a mechanism of a name and it takes the options; nothing is optimized.

    Args:
        name: As for `build`.
        rounds: Rounds of a tree.
        options: As for `search`.

    Raises:
        InputError: If there is none, or an option does not go with it.
    """
    _own_objective(name, options)
    refuse_options(name, **options)
    if name in searched():
        return
    try:
        load(name, rounds)
    except InputValueError as error:
        raise type(error)(str(error).replace("path=", "mechanism=", 1)) from error


def _check_exists(name: str, known: Sequence[str]) -> None:
    if "\0" not in name and not os.path.lexists(name):
        meant = validation.did_you_mean(name, known)
        raise InputValueError(f"mechanism={name!r} is not a file, and none of {', '.join(known)}{meant}")


def workload(
    name: str, *, rounds: int, momentum: float = 0.0, warmup: float = 0.0, cooldown: float = 0.0
) -> tff_mf.Workload:
    """Returns the workload A of a server's SGD.

    Args:
        name: `prefix_sum`, `momentum`, `learning_rates` or `momentum_with_rates`.
        rounds: Number of rounds n.
        momentum: The server's momentum.
        warmup: Part of the rounds over which its rate rises.
        cooldown: Part of the rounds over which it falls.

    Example:
        >>> workload("momentum", rounds=8, momentum=0.9)
        Momentum(momentum=0.9)

    Raises:
        InputValueError: If there is no workload of that name.
    """
    validation.one_of("workload", name, WORKLOADS)
    rates = tff_mf.LinearSchedule(
        warmup_rounds=round(warmup * rounds),
        warmup_from=RAMP_FLOOR,
        cooldown_rounds=round(cooldown * rounds),
        cooldown_to=RAMP_FLOOR,
    )
    match name:
        case "momentum":
            return tff_mf.Momentum(momentum=momentum)
        case "learning_rates":
            return tff_mf.LearningRates(rates=rates)
        case "momentum_with_rates":
            return tff_mf.MomentumWithRates(rates=rates, momentum=momentum)
        case _:
            return tff_mf.PrefixSum()


def build(
    name: str,
    *,
    rounds: int,
    participation: tff_mf.Participation,
    buffers: int | None = None,
    bands: int | None = None,
    unit_norms: bool | None = None,
    objective: str | None = None,
    optimized_for: tff_mf.Workload | None = None,
) -> tff_mf.Mechanism:
    """Returns the mechanism called `name`, optimized for the run where it can be.

    Args:
        name: One of `names()`, `production:NAME`, or the path of an artifact.
        rounds: Number of rounds n.
        participation: What each client is bound to.
        buffers: Buffers of a `blt`; None lets the optimizer choose.
        bands: Bands of the banded kinds; None takes the min-sep of `participation`.
        unit_norms: Whether the columns of a `banded` have norm 1; None takes the kind's default.
        objective: Loss to minimize, "rms" or "max"; None takes the kind's default.
        optimized_for: The workload; None is the prefix sum.

    Example:
        >>> schema = tff_mf.MinSep(min_sep=4, max_participations=2)
        >>> build("banded", rounds=8, participation=schema).bands
        4

    Raises:
        InputError: If an option does not go with the mechanism, or the optimizer refuses it.
    """
    options: dict[str, Any] = {"buffers": buffers, "bands": bands, "unit_norms": unit_norms, "objective": objective}
    options["workload"] = optimized_for
    if name in searched():
        if bands is None and "bands" in searched()[name].options:
            options["bands"] = min(participation.min_sep, rounds)
        return search(name, rounds=rounds, participation=participation, **options)
    refuse_options(name, **options)
    return load(name, rounds)


def search(name: str, *, rounds: int, participation: tff_mf.Participation | None, **options: Any) -> tff_mf.Mechanism:
    """Returns the best mechanism of a kind, whose `optimized_for` says how the search for it ended.

    Args:
        name: A key of `searched()`.
        rounds: Number of rounds n.
        participation: What each client is bound to; None, for `banded` alone, is participations as far apart as it has
            bands.
        options: `bands`, `buffers`, `objective`, `workload`, `unit_norms`: what is None is not given.

    Example:
        >>> found = search("dense", rounds=4, participation=tff_mf.SingleParticipation(), objective="rms")
        >>> found.optimized_for.converged
        True

    Raises:
        InputError: If an option does not go with the kind, or the optimizer refuses it.
    """
    kind = searched()[name]
    given = {option: value for option, value in options.items() if value is not None}
    if isinstance(given.get("workload"), tff_mf.PrefixSum):
        del given["workload"]
    _own_objective(name, given)
    refuse_options(name, **given)
    if kind.toeplitz and not isinstance(given.get("workload", tff_mf.PrefixSum()), ToeplitzWorkload):
        raise InputValueError(
            f"workload={given['workload'].kind!r} does not go with mechanism={name!r}, which is constant along "
            "diagonals: take workload='momentum', or banded or dense."
        )
    with progress.search() as report:
        if "progress" in kind.options:
            given["progress"] = report
        return kind.optimizer(rounds=rounds, participation=participation, **given)


def _own_objective(name: str, options: dict[str, Any]) -> None:
    """Checks the objective of a search, and takes it out where the kind has no other.

    Raises:
        InputError: If there is no such objective.
    """
    given, kind = options.get("objective"), searched().get(name)
    if given is None:
        return
    validation.one_of("objective", given, ("rms", "max"))
    if kind is not None and "objective" not in kind.options and given == kind.objective:
        del options["objective"]


def refuse_options(name: str, **options: Any) -> None:
    """Raises if an option of `search` is given that the mechanism called `name` does not take.

    Raises:
        InputValueError: If one is.
    """
    kinds = searched()
    known = kinds[name].options if name in kinds else ()
    for option, value in options.items():
        if value is None or option in known or isinstance(value, tff_mf.PrefixSum):
            continue
        shown = repr(value.kind if isinstance(value, tff_mf.Workload) else value)
        goes_with = ", ".join(each for each, kind in kinds.items() if option in kind.options)
        remedy = "; take workload='prefix_sum'" if option == "workload" else ""
        if option == "objective" and name in kinds:
            remedy = f"; {name} minimizes {'MaxLoss' if kinds[name].objective == 'max' else 'RmsLoss'}"
        raise InputValueError(f"{option}={shown} does not go with mechanism={name!r}, only with {goes_with}{remedy}.")
