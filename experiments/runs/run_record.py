"""`run.json`: what a run is beside its plan, written before its first round, and the plan in `plan.json` beside it."""

import json
import pathlib
import sys
from collections.abc import Iterable, Sequence
from typing import Any, Literal

import msgspec

import tff_mf
from tff_mf.base import validation
from tff_mf.base.errors import InputValueError

from ..output import files, typed
from ..output.files import file_hash
from ..output.typed import Count, Positive, Record
from ..sampling import SamplingSettings
from .folders import begun_mechanism, check_same, readable_folder
from .ledger import cohort_digest
from .names import MECHANISM, PLAN, RUN_JSON
from .settings import RunSettings

# Fields that may change when a run is resumed, and one that follows from all fields of the plan.
_FREE = ("about", "command", "versions", "plan_sha256")
# Fields that follow from others which a user gives, those that say most first.
_DERIVED = (
    *("dimension", "participation", "min_sep", "max_participations", "noise_multiplier", "mechanism_sha256"),
    *("cohorts", "amplified_epsilon", "server_learning_rate", "grid_bits", "grid_max_clients", "training_clients"),
)
_OF_PLAN = (
    *("rounds", "noise_multiplier", "delta", "clients_per_round", "cohort", "clip_norm", "insecure_seed"),
    *("restart_every", "adaptive_count_stddev", "secret_cohorts", "grid_bits", "grid_max_clients", "dimension"),
)
_NOT_GIVEN = ("version", "plan_sha256", "mechanism_sha256")


class RunFacts(Record, kw_only=True):
    """The content of `run.json`. Pipelines other than `tff-mf train` can write it too.

    Attributes:
        version: The format.
        plan_sha256: Hash of `plan.json`, which is in the same folder.
        mechanism_sha256: Hash of the mechanism's artifact, likewise.
        adjacency: "zero-out" or "replace-one".
        cohorts: Hash of each round's planned cohort; empty if cohorts are not planned.
        sampler: Name of what draws the cohorts.
        simulation: Whether clients are simulated.
        population: Number of clients that can take part, if known.
        clients_per_person: The most clients that one person can have.
        released_without_noise: Each release without noise, with the clients on whose data it is computed.
        evaluation_columns: Columns of metrics.csv, all computed on clients that do not train.
        settings: The settings of `tff-mf train`, as they were asked for; `None` of other pipelines.
        server_learning_rate: The server's rate, which the settings came to; `None` if a pipeline does not say it.
        training_clients: Number of clients that cohorts are drawn from, if known; of a bundle, nothing is trained.
        about: Facts of another pipeline, which a report repeats, and which nothing checks.
        command: The command line.
        versions: Versions of the packages that the run depends on.
        amplified_epsilon: ε of a run whose cohorts are secret, so that no log has them; else `None`.
    """

    version: Literal[1] = 1
    plan_sha256: str
    mechanism_sha256: str
    adjacency: str = "zero-out"
    cohorts: Sequence[str] = ()
    sampler: str = "unknown"
    simulation: bool = False
    population: Count | None = None
    clients_per_person: Count = 1
    released_without_noise: Sequence[dict[str, str]] = ()
    evaluation_columns: Sequence[str] = ()
    settings: RunSettings | None = None
    server_learning_rate: Positive | None = None
    training_clients: Count | None = None
    about: dict[str, Any] = msgspec.field(default_factory=dict)
    command: Sequence[str] = ()
    versions: dict[str, str] = msgspec.field(default_factory=dict)
    amplified_epsilon: Positive | None = None

    def __post_init__(self) -> None:
        validation.one_of("adjacency", self.adjacency, ("zero-out", "replace-one"))
        if self.settings is not None and self.server_learning_rate is None:
            raise InputValueError(
                "server_learning_rate=None must be the rate that the settings came to: put run.json back."
            )
        if self.is_secret and (self.cohorts or self.adjacency != "zero-out" or self.population is None):
            raise InputValueError(
                f"amplified_epsilon={self.amplified_epsilon!r} is of secret cohorts: it needs a population and "
                "adjacency='zero-out', and cohorts must be empty."
            )

    @property
    def is_secret(self) -> bool:
        """Whether cohorts are secret, so that no log has them."""
        return self.amplified_epsilon is not None


class RunRecord(RunFacts, kw_only=True):
    """A run as it began: the content of `run.json`, and the plan.

    Attributes:
        plan: The content of `plan.json`, and the mechanism.
    """

    plan: tff_mf.Plan

    @property
    def drawn(self) -> SamplingSettings | None:
        """How cohorts are drawn: by the settings, or by the plan's sampling if that draws them; `None` otherwise."""
        if self.settings is not None:
            return self.settings.sampling_settings()
        if self.sampler != f"tff_mf.{type(self.plan.sampling).__name__}":
            return None
        try:
            return SamplingSettings.of(self.plan.sampling)
        except InputValueError:
            return None

    @property
    def draws_in_secret(self) -> bool:
        """Whether the run says that its cohorts are secret; `is_secret` is whether its claim counts on it."""
        return self.plan.secret_cohorts if self.settings is None else self.settings.secret_cohorts

    @property
    def training(self) -> RunSettings:
        """The settings with the numbers that they came to: those that train."""
        if self.settings is None or self.server_learning_rate is None:
            raise InputValueError("settings=None in run.json: take a run of `tff-mf train`, which has settings.")
        return self.settings.resolved(self.plan, self.server_learning_rate)


def check_fields(names: Iterable[str]) -> None:
    """Raises if a field is given that follows from the privacy plan, or that does not exist."""
    of_pipeline = [name for name in RunFacts.__struct_fields__ if name not in _NOT_GIVEN]
    for name in names:
        if name not in of_pipeline:
            raise InputValueError(
                f"{name}= cannot be given: it follows from the privacy plan, or does not exist. Change the plan, or "
                f"give one of {', '.join(of_pipeline)}."
            )


def write_record(
    folder: pathlib.Path, plan: tff_mf.Plan, *, cohorts: Sequence[Sequence[str]] = (), **more: Any
) -> RunRecord:
    """Writes the plan, its mechanism and `run.json` to a run's folder, and returns what they hold.

    If the run is resumed, the files exist and stay as they are, so that the run keeps the cohorts, noise and command
    that it began with.

    Args:
        folder: The run's folder.
        plan: Mechanism, noise and participation.
        cohorts: The planned clients of each round.
        more: Fields of `RunFacts`: `adjacency`, `sampler`, `simulation`, `population`, `released_without_noise`,
            `evaluation_columns`, `about`, `command`, `versions` and others.

    Raises:
        InputValueError: If another field is given, or the folder holds a run with another mechanism or other settings.
    """
    check_fields(more)
    begun, mechanism = begun_record(folder), begun_mechanism(folder)
    if begun is None and mechanism in (None, plan.mechanism):
        plan.save(folder)
    fields = {
        "plan_sha256": file_hash(folder / PLAN),
        "mechanism_sha256": file_hash(folder / MECHANISM),
        "cohorts": [cohort_digest(clients) for clients in cohorts],
        "command": [pathlib.Path(sys.argv[0]).name, *sys.argv[1:]],
        **more,
    }
    facts = typed.convert(json.loads(json.dumps(msgspec.to_builtins(fields))), RunFacts)
    if begun is not None:
        _check_resumed(folder, begun, plan, facts)
    if mechanism not in (None, plan.mechanism):
        raise InputValueError(
            f"out={str(folder)!r} holds a run with another mechanism: resume it with the same, or name another folder."
        )
    if begun is None:
        files.write_atomically(folder / RUN_JSON, json.dumps(msgspec.to_builtins(facts), indent=1) + "\n")
    return begun or RunRecord(**msgspec.structs.asdict(facts), plan=plan)


def _check_resumed(folder: pathlib.Path, begun: RunRecord, plan: tff_mf.Plan, facts: RunFacts) -> None:
    """Raises unless a run goes on with the plan and the facts that it began with, and its plan was not edited."""
    now, then = _settings(plan, facts), _settings(begun.plan, begun)
    if plan.target_epsilon is not None and now != then:
        # Who asks for an ε does not know σ.
        now["epsilon"], then["epsilon"] = plan.target_epsilon, begun.plan.target_epsilon
    if begun.plan.mechanism != plan.mechanism:
        # It may differ as it was made for other settings, and σ as it is another mechanism's.
        now, then = ({name: each[name] for name in each if name not in _DERIVED} for each in (now, then))
    check_same(now, then, run=str(folder), derived=_DERIVED)
    if file_hash(folder / PLAN) != begun.plan_sha256:
        raise InputValueError(
            f"plan={str(folder / PLAN)!r} was changed since the run began: put it back as it was, or start another "
            "run in another folder."
        )


def _settings(plan: tff_mf.Plan, facts: RunFacts) -> dict[str, Any]:
    """Returns the settings that a resumed run must share, as JSON has them."""
    own = {name: getattr(facts, name) for name in RunFacts.__struct_fields__ if name not in _FREE}
    as_json = json.loads(msgspec.json.encode(own))
    return {**{name: getattr(plan, name) for name in _OF_PLAN}, **named(plan.participation), **as_json}


def read_record(folder: pathlib.Path) -> RunRecord:
    """Returns what `run.json` and `plan.json` in the folder of a run hold.

    Raises:
        InputValueError: If the folder lacks one of them or the artifact, or one is damaged.
    """
    path = readable_folder(folder) / RUN_JSON
    if not path.exists():
        raise InputValueError(f"run={str(folder)!r} is not a run folder: {RUN_JSON} is missing.")
    facts = typed.read(path, RunFacts, "run")
    return RunRecord(**msgspec.structs.asdict(facts), plan=tff_mf.Plan.load(folder))


def begun_record(folder: pathlib.Path) -> RunRecord | None:
    """Returns what `read_record` does; `None` if the folder has no `run.json`: its run was stopped before that."""
    return read_record(folder) if (folder / RUN_JSON).is_file() else None


def named(schema: tff_mf.Participation) -> dict[str, Any]:
    """Returns a participation schema by its name and numbers, as files have it."""
    return {
        "participation": type(schema).__name__,
        "min_sep": schema.min_sep,
        "max_participations": schema.max_participations,
    }
