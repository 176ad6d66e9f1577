"""`run.json`: everything that the guarantee of a run follows from, written before its first round."""

import dataclasses
import json
import pathlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import tff_mf
from tff_mf import validation
from tff_mf.errors import InputValueError

from ..output import files, strict_json
from ..output.files import file_hash
from . import field_types, same_settings
from .folders import readable_folder
from .names import MECHANISM, RUN_JSON

_VERSION = 1
# Left out of the file where there is no grid, as in runs of earlier releases.
_GRID = ("grid_bits", "grid_max_clients", "dimension")
# A resumed run must have the same.
_SETTINGS = (
    *("rounds", "participation", "min_sep", "max_participations", "noise_multiplier", "delta", "clients_per_round"),
    *("cohort", "clip_norm", "mechanism_sha256", "restart_every", "adaptive_count_stddev", "divisor", "insecure_seed"),
    *("adjacency", "cohorts", "sampler", "simulation", "population", "released_without_noise", "evaluation_columns"),
    *_GRID,
)
# Fields that a privacy plan does not determine.
_OPEN = (
    *("restart_every", "adaptive_count_stddev", "adjacency", "cohorts", "sampler", "simulation", "population"),
    *("released_without_noise", "evaluation_columns", "settings", "command", "versions"),
    *_GRID,
)
_SCHEMAS = {"MinSep": tff_mf.MinSep, "FixedEpoch": tff_mf.FixedEpoch}


@dataclasses.dataclass(frozen=True, kw_only=True)
class RunRecord:
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
        clip_norm: Clip norm ζ; if it adapts, that of the first round.
        mechanism_sha256: Hash of the mechanism's artifact, which is in the same folder.
        restart_every: Rounds after which noise starts anew, or `None`.
        adaptive_count_stddev: Standard deviation of the noised counts of adaptive clipping; `None` if ζ is fixed.
        divisor: The constant by which noised sums are divided.
        insecure_seed: Seed of repeatable noise: TEST ONLY; or `None`.
        adjacency: "zero-out" or "replace-one".
        cohorts: Hash of each round's planned cohort; empty if cohorts are not planned.
        sampler: Name of what draws the cohorts.
        simulation: Whether clients are simulated.
        population: Number of clients that can take part, if known.
        released_without_noise: Each release without noise, with the clients on whose data it is computed.
        evaluation_columns: Columns of metrics.csv, all computed on clients that do not train.
        settings: All other settings of the run.
        command: The command line.
        versions: Versions of the packages that the run depends on.
        grid_bits: log₂ of the clip norm in units of the grid; `None` for floating point.
        grid_max_clients: Largest number of clients in a sum, with a grid.
        dimension: The most parameters that the model may have, with a grid.
    """

    rounds: int
    participation: str
    min_sep: int
    max_participations: int
    noise_multiplier: float
    delta: float
    clients_per_round: int
    cohort: int
    clip_norm: float
    mechanism_sha256: str
    restart_every: int | None = None
    adaptive_count_stddev: float | None = None
    divisor: float | None = None
    insecure_seed: int | None = None
    adjacency: str = "zero-out"
    cohorts: Sequence[str] = ()
    sampler: str = "unknown"
    simulation: bool = False
    population: int | None = None
    released_without_noise: Sequence[dict[str, str]] = ()
    evaluation_columns: Sequence[str] = ()
    settings: dict[str, Any] = dataclasses.field(default_factory=dict)
    command: Sequence[str] = ()
    versions: dict[str, str] = dataclasses.field(default_factory=dict)
    grid_bits: int | None = None
    grid_max_clients: int | None = None
    dimension: int | None = None

    def __post_init__(self) -> None:
        for name in ("rounds", "min_sep", "max_participations", "clients_per_round", "cohort"):
            validation.whole(name, getattr(self, name))
        validation.open_unit("delta", self.delta)
        validation.nonnegative("noise_multiplier", self.noise_multiplier)
        validation.positive("clip_norm", self.clip_norm)
        for name in ("restart_every", "population"):
            if getattr(self, name) is not None:
                validation.whole(name, getattr(self, name))
        for name in ("adaptive_count_stddev", "divisor"):
            if getattr(self, name) is not None:
                validation.positive(name, getattr(self, name))
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
        # Built once, so that a wrong one is refused here.
        _ = self.grid

    @property
    def grid(self) -> tff_mf.Grid | None:
        """The grid on which updates are summed and noised; `None` for floating point."""
        if self.grid_bits is None or self.grid_max_clients is None:
            return None
        return tff_mf.Grid(bits=self.grid_bits, max_clients=self.grid_max_clients)

    @property
    def schema(self) -> tff_mf.Participation:
        """The participation schema of the claim."""
        if self.participation == "SingleParticipation":
            return tff_mf.SingleParticipation()
        return _SCHEMAS[self.participation](min_sep=self.min_sep, max_participations=self.max_participations)

    @property
    def divisor_or_default(self) -> float:
        """The divisor of noised sums; `clients_per_round` if none is named."""
        return self.divisor or self.clients_per_round

    @property
    def measured_earlier(self) -> bool:
        """Whether the metrics of a run of `tff-mf train` are of test clients, as in releases up to 0.1.0.dev424."""
        return "validation_split" not in self.settings

    @property
    def has_reference_model(self) -> bool:
        """Whether clients of a run of `tff-mf train` compute with TFF's own model, as they did up to 0.1.0.dev424."""
        return "reference_model" not in self.settings

    def restarts_in(self, round_number: int) -> bool:
        """Returns whether the noise starts anew in a round, counted from 1."""
        return self.restart_every is not None and round_number > 1 and (round_number - 1) % self.restart_every == 0


def check_fields(names: Iterable[str]) -> None:
    """Raises if a field is given that follows from the privacy plan, or that does not exist.

    Raises:
        InputValueError: If there is such a field.
    """
    for name in names:
        if name not in _OPEN:
            raise InputValueError(
                f"{name}= cannot be given: it follows from the privacy plan, or does not exist. Change the plan, or "
                f"give one of {', '.join(_OPEN)}."
            )


def begin(folder: pathlib.Path, mechanism: tff_mf.Mechanism, fields: Mapping[str, Any]) -> RunRecord:
    """Writes `run.json` and the mechanism's artifact to a run's folder, and returns the content of `run.json`.

    If the run is resumed, both files exist and stay as they are, so that the run keeps the cohorts, noise and command
    that it began with.

    Args:
        folder: The run's folder.
        mechanism: The mechanism.
        fields: Fields of `RunRecord` but the hash of the artifact.

    Raises:
        InputValueError: If the folder holds a run with another mechanism or other settings.
    """
    if not (folder / MECHANISM).exists():
        tff_mf.save(mechanism, folder / MECHANISM)
    elif tff_mf.load(folder / MECHANISM) != mechanism:
        raise InputValueError(f"out={str(folder)!r} holds a run with another mechanism: name another folder.")
    record = RunRecord(**fields, mechanism_sha256=file_hash(folder / MECHANISM))
    if (folder / RUN_JSON).exists():
        begun = read_record(folder)
        same_settings.check_same(_settings(record), _settings(begun), run=str(folder))
        return begun
    values = {name: value for name, value in dataclasses.asdict(record).items() if record.grid or name not in _GRID}
    text = json.dumps({"version": _VERSION, **values}, indent=1)
    files.write_atomically(folder / RUN_JSON, text + "\n")
    return record


def read_record(folder: pathlib.Path) -> RunRecord:
    """Returns the content of `run.json`.

    Raises:
        InputValueError: If the folder has no such file, or the file is damaged or of another version.
    """
    path = readable_folder(folder) / RUN_JSON
    try:
        given = strict_json.loads(path.read_text(encoding="utf-8"))
        version = given.pop("version")
        if version == _VERSION:
            field_types.check(given)
            return RunRecord(**given)
    except FileNotFoundError as error:
        raise InputValueError(f"run={str(folder)!r} is not a run folder: {RUN_JSON} is missing.") from error
    except KeyError as error:
        raise InputValueError(f"run={str(path)!r} is damaged: it has no {error}.") from error
    except OSError as error:
        raise InputValueError(f"run={str(path)!r} cannot be read: {error.strerror or error}.") from error
    except (ValueError, TypeError, AttributeError, RecursionError) as error:
        raise InputValueError(f"run={str(path)!r} is damaged: {error}.") from error
    raise InputValueError(
        f"run={str(path)!r} has version {version!r:.80}, and this release reads version {_VERSION}: read it with the "
        "release of tff-mf that wrote it."
    )


def _settings(record: RunRecord) -> dict[str, Any]:
    """Returns the settings that a resumed run must share, as JSON has them."""
    return json.loads(json.dumps({name: getattr(record, name) for name in _SETTINGS}))
