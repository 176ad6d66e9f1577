"""`run.json`: everything that the guarantee of a run follows from, written before its first round."""

import json
import pathlib
import sys
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

import tff_mf
from tff_mf.base import strict_json, validation
from tff_mf.base.errors import InputValueError
from tff_mf.planning import as_run

from ..output import files, typed
from ..output.files import file_hash
from ..output.typed import Count, NonNegative, OpenUnit, Positive, Record
from ..sampling.settings import SamplingSettings
from .folders import readable_folder
from .initial_model import InitialModel, given
from .ledger import cohort_digest
from .names import MECHANISM, RUN_JSON
from .rules import Rules, Schema, check_same
from .settings import RunSettings

_VERSION = 1
_GRID = ("grid_bits", "grid_max_clients", "dimension")
# A pipeline may set these itself if its plan does not.
_IF_PLANNED = ("restart_every", "adaptive_count_stddev")
# Fields that a privacy plan has under the same name, and others that follow from it.
_FROM_PLAN = ("rounds", "noise_multiplier", "delta", "clients_per_round", "cohort", "insecure_seed", "clip_norm")
_FOLLOW = ("participation", "min_sep", "max_participations", "divisor", "mechanism_sha256")
# Fields that may change when a run is resumed.
_FREE = ("about", "command", "versions")
# Fields that follow from others which a user gives, those that say most first.
_DERIVED = (
    *("dimension", "participation", "min_sep", "max_participations", "noise_multiplier", "mechanism_sha256", "divisor"),
    *("cohorts", "amplified_epsilon", "server_learning_rate", "grid_bits", "grid_max_clients", "training_clients"),
)
_SCHEMAS = {"MinSep": tff_mf.MinSep, "FixedEpoch": tff_mf.FixedEpoch}
_LARGEST_SEED = 2**64 - 1


class RunRecord(Record):
    """The content of `run.json`. Pipelines other than `tff-mf train` can write it too.

    Attributes:
        rounds: Number of rounds n.
        participation: Name of the schema: MinSep, FixedEpoch or SingleParticipation.
        min_sep: b of the schema.
        max_participations: k of the schema.
        noise_multiplier: σ of the cohort.
        delta: δ.
        clients_per_round: Clients that train in a round.
        cohort: Clients that a round stands for.
        clip_norm: Clip norm ζ; if it adapts, the first round's.
        mechanism_sha256: Hash of the mechanism's artifact, which is in the same folder.
        restart_every: Rounds after which noise starts anew, or `None`.
        adaptive_count_stddev: Standard deviation of the noised counts of adaptive clipping; `None` if ζ is fixed.
        divisor: The constant by which noised sums are divided; `None` for `clients_per_round`.
        insecure_seed: Seed of repeatable noise: TEST ONLY; or `None`.
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
        initial_model: The model that training starts from, if it was given: the settings name its file.
        training_clients: Number of clients that cohorts are drawn from, if known; of a bundle, nothing is trained.
        sampling: How another pipeline draws its cohorts, if it says so; the settings of `tff-mf train` have it.
        secret_cohorts: Whether another pipeline draws them from the system's randomness, and logs nobody.
        about: Facts of another pipeline, which a report repeats, and which nothing checks.
        command: The command line.
        versions: Versions of the packages that the run depends on.
        grid_bits: log₂ of the clip norm in units of the grid; `None` for floating point.
        grid_max_clients: Largest number of clients in a sum, with a grid.
        dimension: The most parameters that the model may have, with a grid.
        amplified_epsilon: ε of a run of `tff-mf train` whose cohorts are secret, so that no log has them; else `None`.
    """

    rounds: Count
    participation: str
    min_sep: Count
    max_participations: Count
    noise_multiplier: NonNegative
    delta: OpenUnit
    clients_per_round: Count
    cohort: Count
    clip_norm: Positive
    mechanism_sha256: str
    restart_every: Count | None = None
    adaptive_count_stddev: Positive | None = None
    divisor: Positive | None = None
    insecure_seed: int | None = None
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
    initial_model: InitialModel | None = None
    training_clients: Count | None = None
    sampling: SamplingSettings | None = None
    secret_cohorts: bool = False
    about: dict[str, Any] = msgspec.field(default_factory=dict)
    command: Sequence[str] = ()
    versions: dict[str, str] = msgspec.field(default_factory=dict)
    grid_bits: Count | None = None
    grid_max_clients: Count | None = None
    dimension: Count | None = None
    amplified_epsilon: Positive | None = None

    def __post_init__(self) -> None:
        if self.insecure_seed is not None and not 0 <= self.insecure_seed <= _LARGEST_SEED:
            raise InputValueError(f"insecure_seed={typed.shown(self.insecure_seed)} must be a whole number of 64 bits.")
        validation.one_of("participation", self.participation, (*_SCHEMAS, "SingleParticipation"))
        validation.one_of("adjacency", self.adjacency, ("zero-out", "replace-one"))
        schema = self.schema
        for name, value in (("min_sep", schema.min_sep), ("max_participations", schema.max_participations)):
            if getattr(self, name) != value:
                raise InputValueError(f"{name}={getattr(self, name)!r} must be {value} for {self.participation}.")
        schema.check(self.rounds)
        given = [name for name in _GRID if getattr(self, name) is not None]
        if given and len(given) < len(_GRID):
            raise InputValueError(f"{', '.join(given)} must be given with {', '.join(set(_GRID) - set(given))}.")
        if self.settings is not None and self.server_learning_rate is None:
            raise InputValueError(
                "server_learning_rate=None must be the rate that the settings came to: put run.json back."
            )
        if self.settings is not None and (self.sampling is not None or self.secret_cohorts):
            raise InputValueError("sampling and secret_cohorts are in settings of `tff-mf train`; put run.json back.")
        if self.is_secret and (self.cohorts or self.adjacency != "zero-out" or self.population is None):
            raise InputValueError(
                f"amplified_epsilon={self.amplified_epsilon!r} is of secret cohorts: it needs a population and "
                "adjacency='zero-out', and cohorts must be empty."
            )
        # Built once, so that a wrong one is refused here.
        _ = self.grid

    @property
    def grid(self) -> tff_mf.Grid | None:
        """The grid on which updates are summed and noised; `None` for floating point."""
        if self.grid_bits is None or self.grid_max_clients is None:
            return None
        return tff_mf.Grid(bits=self.grid_bits, max_clients=self.grid_max_clients)

    @property
    def noise_multiplier_as_run(self) -> float:
        """The noise multiplier of the clients that train."""
        return as_run(self.noise_multiplier, self.clients_per_round, self.cohort)

    @property
    def stddev(self) -> float:
        """Standard deviation of the noise in a sum, before it is correlated."""
        return self.noise_multiplier_as_run * self.clip_norm

    @property
    def is_secret(self) -> bool:
        """Whether cohorts are secret, so that no log has them."""
        return self.amplified_epsilon is not None

    @property
    def schema(self) -> tff_mf.Participation:
        """The participation schema of the claim."""
        if self.participation == "SingleParticipation":
            return tff_mf.SingleParticipation()
        return _SCHEMAS[self.participation](min_sep=self.min_sep, max_participations=self.max_participations)

    @property
    def drawn(self) -> SamplingSettings | None:
        """How cohorts are drawn, if the run says so."""
        return self.sampling if self.settings is None else self.settings.sampling_settings()

    @property
    def draws_in_secret(self) -> bool:
        """Whether the run says that its cohorts are secret; `is_secret` is whether its claim counts on it."""
        return self.secret_cohorts if self.settings is None else self.settings.secret_cohorts

    @property
    def training(self) -> RunSettings:
        """The settings with the numbers that they came to: those that train."""
        if self.settings is None or self.server_learning_rate is None:
            raise InputValueError("settings=None in run.json: take a run of `tff-mf train`, which has settings.")
        return self.settings.resolved(self, self.server_learning_rate)

    def plan(self, mechanism: tff_mf.Mechanism) -> tff_mf.Plan:
        """Returns the privacy plan of the record, for whoever knows the cohorts: its sampling is the schema.

        Args:
            mechanism: The mechanism of the artifact in the same folder.
        """
        same = {name: getattr(self, name) for name in (*_FROM_PLAN, *_IF_PLANNED, "grid", "dimension")}
        return tff_mf.plan(mechanism=mechanism, sampling=self.schema, **same)

    @property
    def rules(self) -> Rules:
        """The rules of the run's rounds."""
        return Rules.of(msgspec.structs.asdict(self))


def check_fields(names: Iterable[str]) -> None:
    """Raises if a field is given that follows from the privacy plan, or that does not exist."""
    given = [name for name in RunRecord.__struct_fields__ if name not in (*_FROM_PLAN, *_FOLLOW)]
    for name in names:
        if name not in given:
            raise InputValueError(
                f"{name}= cannot be given: it follows from the privacy plan, or does not exist. Change the plan, or "
                f"give one of {', '.join(given)}."
            )


def write_record(
    folder: pathlib.Path, plan: tff_mf.Plan, *, cohorts: Sequence[Sequence[str]] = (), **more: Any
) -> RunRecord:
    """Writes `run.json` and the mechanism's artifact to a run's folder, and returns the content of `run.json`.

    If the run is resumed, both files exist and stay as they are, so that the run keeps the cohorts, noise and command
    that it began with.

    Args:
        folder: The run's folder.
        plan: Mechanism, noise and participation.
        cohorts: The planned clients of each round.
        more: Fields of `RunRecord` that the plan does not determine: `adjacency`, `sampler`, `simulation`,
            `population`, `released_without_noise`, `evaluation_columns`, `about`, `command` and `versions`;
            `restart_every`, `adaptive_count_stddev`, and the fields of the grid, if the plan has none.

    Raises:
        InputValueError: If another field is given, or the folder holds a run with another mechanism or other settings.
    """
    check_fields(more)
    for name in (*_IF_PLANNED, *_GRID):
        planned = getattr(plan, name)
        if planned is not None and more.get(name, planned) != planned:
            raise InputValueError(f"{name}={more[name]!r} differs from the plan, which has {planned!r}: leave it out.")
    kept = tff_mf.load(folder / MECHANISM) if (folder / MECHANISM).exists() else None
    if kept is None:
        tff_mf.save(plan.mechanism, folder / MECHANISM)
    fields = {
        **{name: getattr(plan, name) for name in (*_FROM_PLAN, *_IF_PLANNED, *_GRID)},
        **vars(Schema.of(plan.participation)),
        "divisor": plan.clients_per_round,
        "cohorts": [cohort_digest(clients) for clients in cohorts],
        "command": [pathlib.Path(sys.argv[0]).name, *sys.argv[1:]],
        "mechanism_sha256": file_hash(folder / MECHANISM),
        **more,
    }
    record = typed.convert(json.loads(json.dumps(msgspec.to_builtins(fields))), RunRecord)
    begun = begun_record(folder)
    if begun is not None:
        now, then = _settings(record), _settings(begun)
        if kept is not None and plan.target_epsilon is not None and now != then:
            # Who asks for an ε does not know σ.
            now["epsilon"], then["epsilon"] = plan.target_epsilon, _shown_epsilon(begun, kept)
        if kept not in (None, plan.mechanism):
            # It may differ as it was made for other settings, and σ as it is another mechanism's.
            now, then = ({name: each[name] for name in each if name not in _DERIVED} for each in (now, then))
        check_same(now, then, run=str(folder), derived=_DERIVED)
    if kept not in (None, plan.mechanism):
        raise InputValueError(
            f"out={str(folder)!r} holds a run with another mechanism: resume it with the same, or name another folder."
        )
    if begun is not None:
        return begun
    text = json.dumps({"version": _VERSION, **msgspec.to_builtins(record)}, indent=1)
    files.write_atomically(folder / RUN_JSON, text + "\n")
    return record


def read_record(folder: pathlib.Path) -> RunRecord:
    """Returns the content of `run.json`.

    Raises:
        InputValueError: If the folder has no such file, or the file is damaged or of another version.
    """
    path = readable_folder(folder) / RUN_JSON
    if not path.exists():
        raise InputValueError(f"run={str(folder)!r} is not a run folder: {RUN_JSON} is missing.")
    stored = strict_json.read(path, "run")
    version = stored.pop("version", None) if isinstance(stored, dict) else None
    if version != _VERSION:
        raise InputValueError(
            f"run={str(path)!r} has version {typed.shown(version)}, and this release reads version {_VERSION}: read it "
            "with the release of tff-mf that wrote it."
        )
    return typed.convert(stored, RunRecord, f"run={str(path)!r} is damaged")


def begun_record(folder: pathlib.Path) -> RunRecord | None:
    """Returns the content of `run.json`; `None` if the folder has none: its run was stopped before it was written."""
    return read_record(folder) if (folder / RUN_JSON).is_file() else None


def initial_model_of(settings: RunSettings, begun: RunRecord | None) -> InitialModel | None:
    """Returns the model that training starts from, if one is given.

    Args:
        settings: The settings of the run.
        begun: The record of a run that is resumed, which has a copy of the model: the file is not read then.
    """
    if begun is not None and begun.settings is not None:
        return begun.initial_model
    return None if settings.initial_model is None else given(settings.initial_model, dataset=settings.dataset)


def _shown_epsilon(begun: RunRecord, mechanism: tff_mf.Mechanism) -> float:
    """Returns the ε that a run began with, as it may have been asked for."""
    epsilon = begun.amplified_epsilon or begun.plan(mechanism).epsilon
    return float(f"{epsilon:.4g}")


def _settings(record: RunRecord) -> dict[str, Any]:
    """Returns the settings that a resumed run must share, as JSON has them."""
    as_json = msgspec.json.decode(msgspec.json.encode(record))
    return {name: value for name, value in as_json.items() if name not in _FREE}
