"""Folders of runs, demos and comparisons: whether they can be begun, resumed or replaced."""

import os
import pathlib

import tff_mf
from tff_mf.errors import InputValueError

from ..output import files, locks
from .ledger import read_ledger
from .names import (
    CHECKPOINTED_RUN,
    CHECKPOINTS,
    LEDGER,
    MECHANISM,
    PARTICIPATION,
    REPORT,
    REPORT_TEXT,
    RUN_JSON,
    SUMMARY,
)

_WRITTEN_LAST = (SUMMARY, REPORT, REPORT_TEXT)
_COMPARISON = ".comparison"


def readable_folder(path: pathlib.Path) -> pathlib.Path:
    """Returns a path if it is a folder that can be read.

    Raises:
        InputValueError: If it is not.
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


def check_new(path: pathlib.Path) -> pathlib.Path:
    """Returns a folder if it is empty: the files of an earlier run are never overwritten.

    Raises:
        InputValueError: If it is not empty.
    """
    if not all(map(locks.is_lock, path.iterdir())):
        raise InputValueError(f"out={str(path)!r} is not empty: name another folder, or remove it.")
    return path


def resumable_folder(path: pathlib.Path) -> pathlib.Path:
    """Returns the folder of a run that was interrupted.

    Raises:
        InputValueError: If the folder does not exist, or its run has ended or has no checkpoints.
    """
    if not path.is_dir():
        raise InputValueError(f"out={str(path)!r} has no run to resume: start the run without --resume.")
    # A run may have been stopped after its last round, before all files were written and its keys were deleted.
    if _has_ended(path) and not any(path.glob(f"{CHECKPOINTS}/checkpoint_*")):
        raise InputValueError(f"out={str(path)!r} holds a run that has ended: there is nothing to resume.")
    if (path / PARTICIPATION).is_file() and not (path / CHECKPOINTED_RUN).is_file():
        raise InputValueError(
            f"out={str(path)!r} holds a run without checkpoints, which cannot be resumed: start another run."
        )
    files.make_writable(path)
    return path


def _has_ended(path: pathlib.Path) -> bool:
    """Returns whether a run has ended, by its last files or, where one was removed since, by its ledger."""
    if all((path / name).is_file() for name in _WRITTEN_LAST):
        return True
    return (path / LEDGER).is_file() and read_ledger(path / LEDGER).ended


def keep_mechanism(folder: pathlib.Path, mechanism: tff_mf.Mechanism) -> None:
    """Saves the mechanism of a run in its folder."""
    tff_mf.save(mechanism, folder / MECHANISM)


def begun_mechanism(folder: pathlib.Path) -> tff_mf.Mechanism | None:
    """Returns the mechanism of the run in a folder, `None` if the run was stopped before it was saved."""
    path = folder / MECHANISM
    return tff_mf.load(path) if path.is_file() else None


def replaceable_folder(path: pathlib.Path) -> pathlib.Path:
    """Makes the folder of a demo and returns it; it may hold an earlier demo.

    Raises:
        InputValueError: If it cannot be made, or holds anything but a demo.
    """
    if path.is_dir() and any(path.iterdir()) and not (path / SUMMARY).is_file():
        raise InputValueError(f"out={str(path)!r} holds files of something else than a demo: name another folder.")
    files.make_writable(path)
    return path


def continued_folder(path: pathlib.Path) -> pathlib.Path:
    """Makes the folder of a comparison and returns it; it may hold a comparison that was begun.

    Raises:
        InputValueError: If it cannot be made, or holds anything but a comparison.
    """
    begun = path / _COMPARISON
    if path.is_dir() and any(path.iterdir()) and not begun.is_file():
        raise InputValueError(
            f"out={str(path)!r} holds files of something else than a comparison: name another folder."
        )
    files.make_writable(path)
    begun.touch()
    return path
