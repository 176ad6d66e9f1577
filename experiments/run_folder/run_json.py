"""What a run was set to do, in one file that is written before it starts."""

import dataclasses
import json
import os
import pathlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import tff_mf
from tff_mf import _validate
from tff_mf.errors import InputValueError

from ..output import files, strict_json
from ..output.files import file_hash
from . import field_types
from .names import MECHANISM, RUN_JSON

_VERSION = 1
# What a run that goes on must still be set to.
_SET = (
    *("rounds", "participation", "min_sep", "max_participations", "noise_multiplier", "delta", "clients_per_round"),
    *("cohort", "clip_norm", "mechanism_sha256", "restart_every", "adaptive_count_stddev", "divisor", "insecure_seed"),
    *("adjacency", "cohorts", "sampler", "simulation", "population", "released_without_noise", "evaluation_columns"),
)
# What a plan leaves open; all else follows from it.
_OPEN = (
    *("restart_every", "adaptive_count_stddev", "adjacency", "cohorts", "sampler", "simulation", "population"),
    *("released_without_noise", "evaluation_columns", "settings", "command", "versions"),
)
_SCHEMAS = {"MinSep": tff_mf.MinSep, "FixedEpoch": tff_mf.FixedEpoch}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Configuration:
    """Everything that the guarantee of a run follows from. Pipelines other than `tff-mf train` can write it too.

    Attributes:
        rounds: Number of rounds n.
        participation: Name of the schema: MinSep, FixedEpoch or SingleParticipation.
        min_sep: b of the schema.
        max_participations: k of the schema.
        noise_multiplier: σ of the cohort.
        delta: δ.
        clients_per_round: Clients that train in a round.
        cohort: Clients that a round stands for.
        clip_norm: Clip norm ζ; the first one, if it adapts.
        mechanism_sha256: Hash of the mechanism's artifact, which lies beside this file.
        restart_every: Rounds after which noise starts anew, or `None`.
        adaptive_count_stddev: Standard deviation of the noised counts of adaptive clipping; `None` if ζ is fixed.
        divisor: What noised sums are divided by; a constant.
        insecure_seed: Seed of repeatable noise: TEST ONLY; or `None`.
        adjacency: "zero-out" or "replace-one".
        cohorts: Hash of each round's planned cohort; empty if nobody planned them.
        sampler: What draws cohorts.
        simulation: Whether clients are simulated.
        population: Number of clients, if known.
        released_without_noise: What is released without noise, each with whose data it is computed on.
        evaluation_columns: Columns of metrics.csv, all computed on clients that do not train.
        settings: Everything else, for the record.
        command: The command line.
        versions: Of the packages that the run depends on.
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

    def __post_init__(self) -> None:
        for name in ("rounds", "min_sep", "max_participations", "clients_per_round", "cohort"):
            _validate.whole(name, getattr(self, name))
        _validate.open_unit("delta", self.delta)
        _validate.nonnegative("noise_multiplier", self.noise_multiplier)
        _validate.positive("clip_norm", self.clip_norm)
        for name in ("restart_every", "population"):
            if getattr(self, name) is not None:
                _validate.whole(name, getattr(self, name))
        for name in ("adaptive_count_stddev", "divisor"):
            if getattr(self, name) is not None:
                _validate.positive(name, getattr(self, name))
        _validate.one_of("participation", self.participation, (*_SCHEMAS, "SingleParticipation"))
        _validate.one_of("adjacency", self.adjacency, ("zero-out", "replace-one"))
        schema = self.schema
        for name, value in (("min_sep", schema.min_sep), ("max_participations", schema.max_participations)):
            if getattr(self, name) != value:
                raise InputValueError(f"{name}={getattr(self, name)!r} is not that of {self.participation}: {value}.")
        schema.check(self.rounds)

    @property
    def schema(self) -> tff_mf.Participation:
        """The participation schema that is claimed."""
        if self.participation == "SingleParticipation":
            return tff_mf.SingleParticipation()
        return _SCHEMAS[self.participation](min_sep=self.min_sep, max_participations=self.max_participations)

    def restarts_in(self, round_number: int) -> bool:
        """Returns whether noise starts anew in a round, counted from 1."""
        return self.restart_every is not None and round_number > 1 and (round_number - 1) % self.restart_every == 0


def check_fields(names: Iterable[str]) -> None:
    """Raises if a field is not for a pipeline to name: the plan determines it, or there is none.

    Raises:
        InputValueError: If there is such a field.
    """
    for name in names:
        if name not in _OPEN:
            raise InputValueError(
                f"{name}= cannot be given: what the guarantee follows from is the plan's. Make another plan; what it "
                f"leaves open is {', '.join(_OPEN)}."
            )


def begin(folder: pathlib.Path, mechanism: tff_mf.Mechanism, fields: Mapping[str, Any]) -> Configuration:
    """Writes `run.json` and the mechanism's artifact to a run's folder, and returns the content of `run.json`.

    A run that is resumed finds both there. They are left as they are, so that cohorts, noise and command are those it
    was started with.

    Args:
        folder: The run's folder.
        mechanism: The mechanism.
        fields: Fields of `Configuration` but the hash of the artifact.

    Raises:
        InputValueError: If the folder holds a run with another mechanism or other settings.
    """
    if not (folder / MECHANISM).exists():
        tff_mf.save(mechanism, folder / MECHANISM)
    elif tff_mf.load(folder / MECHANISM) != mechanism:
        raise InputValueError(f"out={str(folder)!r} holds a run with another mechanism: name another folder.")
    given: dict[str, Any] = {**fields, "mechanism_sha256": file_hash(folder / MECHANISM)}
    configuration = Configuration(**given)
    if (folder / RUN_JSON).exists():
        begun = read_configuration(folder)
        for name in _SET:
            # Tuples that were written come back as lists.
            if _plain(getattr(begun, name)) != _plain(getattr(configuration, name)):
                raise InputValueError(
                    f"{name}={getattr(configuration, name)!r} is not that of the run in out={str(folder)!r}, "
                    f"{getattr(begun, name)!r}: go on with what it was started with, or name another folder."
                )
        return begun
    text = json.dumps({"version": _VERSION, **dataclasses.asdict(configuration)}, indent=1)
    files.write_atomically(folder / RUN_JSON, text + "\n")
    return configuration


def run_folder(path: pathlib.Path) -> pathlib.Path:
    """Returns a path that is the folder of something.

    Raises:
        InputValueError: If it is none, or cannot be read.
    """
    try:
        if path.is_dir():
            os.listdir(path)
            return path
        there = os.path.lexists(path)
    except OSError as error:
        raise InputValueError(f"run={str(path)!r} cannot be read: {error.strerror or error}.") from error
    what = f"is a file: name the folder of the run, which holds {RUN_JSON}" if there else "does not exist"
    raise InputValueError(f"run={str(path)!r} {what}{'' if there else ': name the folder of a run'}.")


def read_configuration(folder: pathlib.Path) -> Configuration:
    """Returns what a run was set to do.

    Raises:
        InputValueError: If the folder has no such file, or the file says something else.
    """
    path = run_folder(folder) / RUN_JSON
    try:
        given = strict_json.loads(path.read_text(encoding="utf-8"))
        if given.pop("version") != _VERSION:
            raise InputValueError(f"run={str(path)!r} is of another version of this package.")
        field_types.check(given)
        return Configuration(**given)
    except FileNotFoundError as error:
        raise InputValueError(f"run={str(folder)!r} has no {RUN_JSON}: it is no folder of a run.") from error
    except KeyError as error:
        raise InputValueError(f"run={str(path)!r} is damaged: it has no {error}.") from error
    except OSError as error:
        raise InputValueError(f"run={str(path)!r} cannot be read: {error.strerror or error}.") from error
    except (ValueError, TypeError, AttributeError, RecursionError) as error:
        raise InputValueError(f"run={str(path)!r} is damaged: {error}.") from error


def _plain(value: Any) -> Any:
    return json.loads(json.dumps(value))
