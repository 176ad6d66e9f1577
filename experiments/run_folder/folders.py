"""Folders of runs, demos and comparisons: which may be begun, resumed or replaced."""

import pathlib

import tff_mf
from tff_mf.errors import InputValueError

from ..output import files, locks

_SUMMARY = "summary.json"
_WRITTEN_LAST = (_SUMMARY, "report.json", "report.md")
_MECHANISM = "mechanism.safetensors"
_COMPARISON = ".comparison"


def check_new(path: pathlib.Path) -> pathlib.Path:
    """Returns a folder that no run has written to: an earlier run's files are never overwritten.

    Raises:
        InputValueError: If it holds something already.
    """
    if not all(map(locks.is_lock, path.iterdir())):
        raise InputValueError(f"out={str(path)!r} is not empty: name another folder, or remove it.")
    return path


def resumable_folder(path: pathlib.Path) -> pathlib.Path:
    """Returns the folder of a run that was stopped.

    Raises:
        InputValueError: If there is none, or its run has ended.
    """
    if not path.is_dir():
        raise InputValueError(f"out={str(path)!r} has no run to resume: start it without --resume.")
    # A run may have been stopped after its last round, and before all was written and its keys were deleted.
    if all((path / name).is_file() for name in _WRITTEN_LAST) and not any(path.glob("checkpoints/checkpoint_*")):
        raise InputValueError(f"out={str(path)!r} holds a run that has ended: there is nothing to resume.")
    if (path / "participation.csv").is_file() and not (path / "checkpoints" / "run.json").is_file():
        raise InputValueError(
            f"out={str(path)!r} holds a run without checkpoints, which cannot go on: start another one."
        )
    files.make_writable(path)
    return path


def keep_mechanism(folder: pathlib.Path, mechanism: tff_mf.Mechanism) -> None:
    """Saves the mechanism that was found for a run in its folder."""
    tff_mf.save(mechanism, folder / _MECHANISM)


def begun_mechanism(folder: pathlib.Path) -> tff_mf.Mechanism | None:
    """Returns the mechanism that was found for the run of a folder, or `None` if it was stopped before that."""
    path = folder / _MECHANISM
    return tff_mf.load(path) if path.is_file() else None


def replaceable_folder(path: pathlib.Path) -> pathlib.Path:
    """Makes the folder of a demo and returns it; what an earlier demo left may stay.

    Raises:
        InputValueError: If it cannot be made, or holds anything that no demo wrote.
    """
    if path.is_dir() and any(path.iterdir()) and not (path / _SUMMARY).is_file():
        raise InputValueError(f"out={str(path)!r} holds something else than a demo: name another folder, or remove it.")
    files.make_writable(path)
    return path


def continued_folder(path: pathlib.Path) -> pathlib.Path:
    """Makes the folder of a comparison and returns it, also if a comparison was begun there.

    Raises:
        InputValueError: If it cannot be made, or holds anything that no comparison wrote.
    """
    begun = path / _COMPARISON
    if path.is_dir() and any(path.iterdir()) and not begun.is_file():
        raise InputValueError(f"out={str(path)!r} holds something else than a comparison: name another folder.")
    files.make_writable(path)
    begun.touch()
    return path
