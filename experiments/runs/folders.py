"""The folder of a run, the versions that write it, where the run computes, and how it is saved and resumed."""

import dataclasses
import importlib.metadata
import json
import os
import pathlib
import platform
from collections.abc import Iterable

import tff_mf
from tff_mf.base import checkpoint_files, validation
from tff_mf.base.errors import InputValueError
from tff_mf.base.files import unfinished

from ..output import files, typed
from .ledger import read_ledger
from .names import (
    CHECKPOINTS,
    COHORTS,
    EVALUATED,
    LEDGER,
    MECHANISM,
    REPORT,
    REPORT_TEXT,
    RUN_JSON,
    SETTINGS_TOML,
    SUMMARY,
)

_PACKAGES = (
    "tensorflow",
    "tensorflow-federated",
    "tensorflow-privacy",
    "dp-accounting",
    "numpy",
    "scipy",
)
_WRITTEN_LAST = (SUMMARY, REPORT, REPORT_TEXT)
_COMPARISON = ".comparison"
_MOST_AT_ONCE = 1024


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
            _check_entries(path)
            return path
        there = os.path.lexists(path)
    except OSError as error:
        raise InputValueError(f"run={str(path)!r} cannot be read: {error.strerror or error}.") from error
    what = f"is a file: name the folder of the run, which holds {RUN_JSON}" if there else "does not exist"
    raise InputValueError(f"run={str(path)!r} {what}{'' if there else ': name the folder of a run'}.")


def _check_entries(path: pathlib.Path) -> None:
    """Raises if a folder holds a pipe or a device: to read one may never end."""
    for each in path.iterdir():
        if each.exists() and not each.is_file() and not each.is_dir():
            raise InputValueError(f"run={str(path)!r} holds {each.name!r}, which is no file and no folder: remove it.")


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
    if (path / RUN_JSON).is_file() or (path / SETTINGS_TOML).is_file():
        raise InputValueError(f"out={str(path)!r} holds a run: go on with it by resume=True, or name another folder.")
    if has_files(path):
        raise InputValueError(f"out={str(path)!r} is not empty: name another folder, or remove it.")


def resumable_folder(path: pathlib.Path) -> pathlib.Path:
    """Returns the folder of a run that was interrupted; of one that has ended, the secret of its cohorts is deleted."""
    if not path.is_dir():
        raise InputValueError(f"out={str(path)!r} has no run to resume: start the run without --resume.")
    saved = checkpoint_files.saved_rounds(path / CHECKPOINTS)
    book = read_ledger(path / LEDGER) if (path / LEDGER).is_file() else None
    # By its last files or, where one was removed since, by its ledger.
    ended = all((path / name).is_file() for name in _WRITTEN_LAST) or (book is not None and book.ended)
    # A run may have been stopped after its last round, before all files were written and its keys were deleted.
    if ended and not saved:
        secret = path / CHECKPOINTS / COHORTS
        if secret.exists():
            # It is deleted after the checkpoints, which cannot be continued without it.
            with files.alone(path):
                secret.unlink(missing_ok=True)
        raise InputValueError(f"out={str(path)!r} holds a run that has ended: there is nothing to resume.")
    files.make_writable(path)
    return path


def delete_keys(folder: pathlib.Path) -> None:
    """Deletes all states of a run, which have the keys of its noise, and what secret cohorts follow from."""
    checkpoint_files.remove_all(folder / CHECKPOINTS)
    (folder / CHECKPOINTS / COHORTS).unlink(missing_ok=True)


def keep_mechanism(folder: pathlib.Path, mechanism: tff_mf.Mechanism) -> None:
    """Saves the mechanism of a run in its folder."""
    tff_mf.save(mechanism, folder / MECHANISM)


def begun_mechanism(folder: pathlib.Path) -> tff_mf.Mechanism | None:
    """Returns the mechanism of the run in a folder, `None` if the run was stopped before it was saved."""
    path = folder / MECHANISM
    return tff_mf.load(path) if path.is_file() else None


def read_evaluated(folder: pathlib.Path) -> frozenset[str]:
    """Returns the clients that the run in a folder was evaluated on, where its guard writes them down."""
    path = folder / EVALUATED
    try:
        return frozenset(typed.read(path, list[str], "evaluated")) if path.exists() else frozenset()
    except InputValueError as error:
        raise InputValueError(f"{error} It has the clients that may not train: put a copy of it back.") from error


def keep_evaluated(folder: pathlib.Path, clients: Iterable[str]) -> None:
    """Writes down all clients that the run in a folder was evaluated on."""
    files.write_atomically(folder / EVALUATED, json.dumps(sorted(clients)) + "\n")


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
