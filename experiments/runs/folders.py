"""The folder of a run: what may be in it, its checkpoints, and what the run is, which goes on as it began.

`run.json` says what a run is beside its plan, which is in `plan.json`; both are written before the first round.
"""

import dataclasses
import importlib.metadata
import json
import os
import pathlib
import platform
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, Protocol

import msgspec
import numpy as np

import tff_mf
from tff_mf.base import checkpoint_files, validation
from tff_mf.base.errors import InputValueError
from tff_mf.base.files import unfinished

from ..output import files, typed
from ..output.files import file_hash
from ..output.typed import Count, Positive, Record, check_same
from ..sampling import SamplingSettings
from . import names
from .ledger import cohort_digest, read_ledger
from .settings import RunSettings

_PACKAGES = ("tensorflow", "tensorflow-federated", "tensorflow-privacy", "dp-accounting", "numpy", "scipy")
_COMPARISON = ".comparison"
_MOST_AT_ONCE = 1024
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
_NOT_GIVEN = ("version", "plan_sha256", "mechanism_sha256", "amplified_epsilon")


def versions() -> dict[str, str]:
    """Returns the versions of Python and of the packages that a run depends on."""
    found = {"python": platform.python_version(), "tff-mf": tff_mf.__version__}
    for name in _PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def readable_folder(path: pathlib.Path) -> pathlib.Path:
    """Returns a path if it is a folder that can be read."""
    try:
        if path.is_dir():
            return path
        there = os.path.lexists(path)
    except OSError as error:
        raise InputValueError(f"run={str(path)!r} cannot be read: {error.strerror or error}.") from error
    what = f"is a file: name the folder of the run, which holds {names.RUN_JSON}" if there else "does not exist"
    raise InputValueError(f"run={str(path)!r} {what}{'' if there else ': name the folder of a run'}.")


def check_new(path: pathlib.Path) -> None:
    """Raises unless a folder is empty, or can be made; nothing is left there."""
    made = [each for each in (path, *path.parents) if not each.exists()]
    files.make_writable(path)
    check_empty(path)
    for each in made:
        each.rmdir()


def has_files(path: pathlib.Path) -> bool:
    """Returns whether a folder has a whole file; a killed process may have left one unfinished, which does not count.

    A run that was stopped before its first file has nothing to resume, and is begun.
    """
    return path.is_dir() and bool(set(path.iterdir()) - {path / files.FOLDER_LOCK, *unfinished(path)})


def check_empty(path: pathlib.Path) -> None:
    """Raises if a folder has a file, which is never overwritten."""
    if (path / names.RUN_JSON).is_file() or (path / names.SETTINGS_TOML).is_file():
        raise InputValueError(
            f"out={str(path)!r} holds a run: name another folder; or go on with it, if it was stopped, by --resume "
            "(resume=True)."
        )
    if has_files(path):
        raise InputValueError(f"out={str(path)!r} is not empty: name another folder, or remove it.")


def resumable_folder(path: pathlib.Path) -> pathlib.Path:
    """Returns the folder of a run that was interrupted."""
    if not path.is_dir():
        raise InputValueError(f"out={str(path)!r} has no run to resume: start the run without --resume.")
    saved = checkpoint_files.saved_rounds(path / names.CHECKPOINTS)
    book = read_ledger(path / names.LEDGER) if (path / names.LEDGER).is_file() else None
    ended = (path / names.SUMMARY).is_file() or (book is not None and book.ended)
    keys = saved or (path / names.CHECKPOINTS / names.COHORTS).exists()
    # A run may have been stopped after its last round, before its keys were deleted and its report was written.
    if ended and not keys and all((path / name).is_file() for name in (names.REPORT, names.REPORT_TEXT)):
        raise InputValueError(f"out={str(path)!r} holds a run that has ended: there is nothing to resume.")
    files.make_writable(path)
    return path


def delete_keys(folder: pathlib.Path) -> None:
    """Deletes all states of a run, which have the keys of its noise, and what secret cohorts follow from."""
    checkpoint_files.remove_all(folder / names.CHECKPOINTS)
    (folder / names.CHECKPOINTS / names.COHORTS).unlink(missing_ok=True)


def begun_mechanism(folder: pathlib.Path) -> tff_mf.Mechanism | None:
    """Returns the mechanism of the run in a folder, `None` if the run was stopped before it was saved."""
    path = folder / names.MECHANISM
    return tff_mf.load(path) if path.is_file() else None


def read_evaluated(folder: pathlib.Path) -> frozenset[str]:
    """Returns the clients that the run in a folder was evaluated on, where its guard writes them down."""
    path = folder / names.EVALUATED
    try:
        return frozenset(typed.read(path, list[str], "evaluated")) if path.exists() else frozenset()
    except InputValueError as error:
        raise InputValueError(f"{error} It has the clients that may not train: put a copy of it back.") from error


def keep_evaluated(folder: pathlib.Path, clients: Iterable[str]) -> None:
    """Writes down all clients that the run in a folder was evaluated on."""
    files.write_atomically(folder / names.EVALUATED, json.dumps(sorted(clients)) + "\n")


def continued_folder(path: pathlib.Path) -> pathlib.Path:
    """Makes the folder of a comparison and returns it; it may hold a comparison that was begun."""
    begun = path / _COMPARISON
    if path.is_dir() and any(path.iterdir()) and not begun.is_file():
        raise InputValueError(
            f"out={str(path)!r} holds files of something else than a comparison: name another folder."
        )
    files.make_writable(path)
    begun.touch()
    return path


@dataclasses.dataclass(frozen=True, kw_only=True)
class ExecutionSettings:
    """Where a run computes, and how it is saved and resumed. None of these settings changes the model.

    Attributes:
        checkpoint_every: Rounds between checkpoints, which are also saved before each evaluation is released.
        resume: Whether to resume the run that is in the folder, from its last checkpoint.
        clients_at_once: Number of clients that the worker runs at the same time; as many as this machine has cores if
            `None`. Their updates are added in the same order.
    """

    checkpoint_every: int = 25
    resume: bool = False
    clients_at_once: int | None = None

    def __post_init__(self) -> None:
        validation.whole("checkpoint_every", self.checkpoint_every)
        given = self.clients_at_once
        if given is not None and validation.whole("clients_at_once", given, at_least=1) > _MOST_AT_ONCE:
            raise InputValueError(f"clients_at_once={given} must be at most {_MOST_AT_ONCE:,}.")


class Storage(Protocol):
    """Where the states of a run are kept, one for each of the newest rounds."""

    def rounds(self) -> Sequence[int]:
        """Returns the rounds after which a state was saved and is there, in order."""

    def save(self, round_number: int, state: Any, about: Mapping[str, Any]) -> None:
        """Saves the state after a round with facts about it, and returns when both would survive a power cut."""

    def about(self, round_number: int) -> Mapping[str, Any]:
        """Returns the facts that were saved with a state."""

    def drawn(self, state: Any = None) -> Mapping[str, int] | None:
        """Returns for how many rounds each noise in a state was drawn, by fingerprint; `None` if that is not known.

        Args:
            state: The state; the newest that was saved, or that a run begins with, if not given.
        """


class Checkpoints:
    """The states of one run, of which only the newest is kept. A `Storage`.

    Formal guarantee: `save` returns when the state would survive a power cut, and never replaces the state of a round:
    of two processes that step one state, the second fails. A file in which a bit has changed, or that is of a run with
    other settings, is refused. Folder and files are accessible to their owner only (0700 and 0600).
    """

    def __init__(self, folder: pathlib.Path, settings: Mapping[str, Any]) -> None:
        self._folder, self._settings = folder, json.loads(json.dumps(settings))
        checkpoint_files.make_private(folder)

    def rounds(self) -> list[int]:
        """Returns the rounds after which a state was saved and is there, in order."""
        return checkpoint_files.saved_rounds(self._folder)

    def save(self, round_number: int, state: Mapping[str, Any], about: Mapping[str, Any]) -> None:
        """Saves the state after a round, and deletes the earlier ones."""
        checkpoint_files.write(self.path(round_number), state, {"settings": self._settings, "about": about})
        self.keep_newest()

    def keep_newest(self) -> None:
        """Deletes all states but the newest."""
        for old in self.rounds()[:-1]:
            self.path(old).unlink()

    def load(self, round_number: int) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        """Returns the state after a round, whose arrays cannot be written to, and the facts about it."""
        state, kept = checkpoint_files.read(self.path(round_number))
        check_same(self._settings, kept["settings"], run=str(self._folder.parent))
        return state, kept["about"]

    def about(self, round_number: int) -> dict[str, Any]:
        """Returns the facts about the state after a round; raises as `load` does."""
        return self.load(round_number)[1]

    def drawn(self, state: Any = None) -> None:
        """Returns nothing: states have keys, and nothing that tells whose noise they are of."""

    def path(self, round_number: int) -> pathlib.Path:
        """Returns the file of the state after a round."""
        return checkpoint_files.path_of(self._folder, round_number)


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
    def training(self) -> RunSettings:
        """The settings with the numbers that they came to: those that train."""
        if self.settings is None or self.server_learning_rate is None:
            raise InputValueError("settings=None in run.json: take a run of `tff-mf train`, which has settings.")
        return self.settings.resolved(self.plan, self.server_learning_rate)


def check_fields(given: Iterable[str]) -> None:
    """Raises if a field is given that follows from the privacy plan, or that does not exist."""
    of_pipeline = [name for name in RunFacts.__struct_fields__ if name not in _NOT_GIVEN]
    for name in given:
        if name not in of_pipeline:
            raise InputValueError(
                f"{name}= cannot be given: it follows from the privacy plan, or does not exist. Change the plan, or "
                f"give one of {', '.join(of_pipeline)}."
            )


def write_record(
    folder: pathlib.Path,
    plan: tff_mf.Plan,
    *,
    cohorts: Sequence[Sequence[str]] = (),
    amplified_epsilon: float | None = None,
    **more: Any,
) -> RunRecord:
    """Writes the plan, its mechanism and `run.json` to a run's folder, and returns what they hold.

    If the run is resumed, the files exist and stay as they are, so that the run keeps the cohorts, noise and command
    that it began with.

    Args:
        folder: The run's folder.
        plan: Mechanism, noise and participation.
        cohorts: The planned clients of each round.
        amplified_epsilon: ε of secret cohorts, which `open_guard` computes.
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
        "plan_sha256": file_hash(folder / names.PLAN),
        "mechanism_sha256": file_hash(folder / names.MECHANISM),
        "cohorts": [cohort_digest(clients) for clients in cohorts],
        "amplified_epsilon": amplified_epsilon,
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
        files.write_atomically(folder / names.RUN_JSON, json.dumps(msgspec.to_builtins(facts), indent=1) + "\n")
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
    if file_hash(folder / names.PLAN) != begun.plan_sha256:
        raise InputValueError(
            f"plan={str(folder / names.PLAN)!r} was changed since the run began: put it back as it was, or start "
            "another run in another folder."
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
    path = readable_folder(folder) / names.RUN_JSON
    if not path.exists():
        raise InputValueError(
            f"run={str(folder)!r} is not a run folder: {names.RUN_JSON} is missing; put it back, or name another. What "
            f"train-central guarantees is in its {names.SUMMARY}."
        )
    facts = typed.read(path, RunFacts, "run")
    return RunRecord(**msgspec.structs.asdict(facts), plan=tff_mf.Plan.load(folder))


def begun_record(folder: pathlib.Path) -> RunRecord | None:
    """Returns what `read_record` does; `None` if the folder has no `run.json`: its run was stopped before that."""
    return read_record(folder) if (folder / names.RUN_JSON).is_file() else None


def named(schema: tff_mf.Participation) -> dict[str, Any]:
    """Returns a participation schema by its name and numbers, as files have it."""
    return {
        "participation": type(schema).__name__,
        "min_sep": schema.min_sep,
        "max_participations": schema.max_participations,
    }
