"""The folder of a run: what may be in it, its checkpoints, where the run computes, and that it goes on as it began."""

import dataclasses
import importlib.metadata
import json
import os
import pathlib
import platform
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np

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


class Storage(Protocol):
    """Where the states of a run are kept, one for each of the newest rounds."""

    def rounds(self) -> Sequence[int]:
        """Returns the rounds after which a state was saved and is there, in order."""
        ...

    def save(self, round_number: int, state: Any, about: Mapping[str, Any]) -> None:
        """Saves the state after a round with facts about it, and returns when both would survive a power cut."""
        ...

    def about(self, round_number: int) -> Mapping[str, Any]:
        """Returns the facts that were saved with a state."""
        ...

    def drawn(self, state: Any = None) -> Mapping[str, int] | None:
        """Returns for how many rounds each noise in a state was drawn, by fingerprint; `None` if that is not known.

        Args:
            state: The state; the newest that was saved, or that a run begins with, if not given.
        """
        ...


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
        checkpoint_files.write(self._path(round_number), state, {"settings": self._settings, "about": about})
        for old in self.rounds()[:-1]:
            self._path(old).unlink()

    def load(self, round_number: int) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        """Returns the state after a round, whose arrays cannot be written to, and the facts about it."""
        state, kept = checkpoint_files.read(self._path(round_number))
        check_same(self._settings, kept["settings"], run=str(self._folder.parent))
        return state, kept["about"]

    def about(self, round_number: int) -> dict[str, Any]:
        """Returns the facts about the state after a round; raises as `load` does."""
        return self.load(round_number)[1]

    def drawn(self, state: Any = None) -> None:
        """Returns nothing: states have keys, and nothing that tells whose noise they are of."""

    def _path(self, round_number: int) -> pathlib.Path:
        return checkpoint_files.path_of(self._folder, round_number)


def check_same(given: Mapping[str, Any], begun: Mapping[str, Any], *, run: str, derived: Sequence[str] = ()) -> None:
    """Raises unless the settings of a run are those that it began with, and names all that differ.

    `run.json`, `configuration.toml` and the settings in the states of other engines are compared by this function.

    Args:
        given: The settings now, by name.
        begun: The settings that the run began with, by name, as read from its folder.
        run: The run's folder, or the file with `begun`, for the message.
        derived: Settings that follow from others: they are named only if nothing else differs.

    Example:
        >>> check_same({"rounds": 8}, {"rounds": 8}, run="out")
        >>> check_same({}, {"rounds": 8}, run="out")  # doctest: +ELLIPSIS
        Traceback (most recent call last):
        tff_mf.base.errors.InputValueError: rounds=none is not the setting that the run in 'out' began with, 8: ...
        >>> check_same({"rounds": 9, "delta": 0.1}, {"rounds": 8, "delta": 0.2}, run="out")  # doctest: +ELLIPSIS
        Traceback (most recent call last):
        tff_mf.base.errors.InputValueError: rounds=9 is not the setting that the run in 'out' began with, 8; nor is \
delta=0.1, where it has 0.2: ...
    """
    now, then = _flat(given), _flat(begun)
    changed = [name for name in {**now, **then} if now.get(name) != then.get(name)]
    # The one that comes first in the message is what the user changed.
    named = [name for name in changed if name not in derived] or sorted(changed, key=derived.index)
    if not named:
        return

    def of(settings: Mapping[str, Any], name: str) -> str:
        return repr(settings[name]) if name in settings else "none"

    name, *others = named
    more = "".join(f"; nor is {other}={of(now, other)}, where it has {of(then, other)}" for other in others)
    raise InputValueError(
        f"{name}={of(now, name)} is not the setting that the run in {run!r} began with, {of(then, name)}{more}: resume "
        "it with the same settings, or start another run in another folder."
    )


def _flat(settings: Mapping[str, Any], inside: str = "") -> dict[str, Any]:
    """Returns settings by name, those in a table by the names of both."""
    flat: dict[str, Any] = {}
    for name, value in settings.items():
        flat |= _flat(value, f"{inside}{name}.") if isinstance(value, Mapping) else {inside + name: value}
    return flat
