"""Folders of runs, and where a run's data comes from."""

import os
import pathlib
import tempfile

import tff_mf
from tff_mf import _validate
from tff_mf.errors import InputValueError

from . import _locks
from .datasets import _cache

_SUMMARY = "summary.json"
_WRITTEN_LAST = (_SUMMARY, "report.json", "report.md")
_MECHANISM = "mechanism.safetensors"
_SQLITE = "sqlite:"
_EMBEDDED = ("pydoc", "stackoverflow")
_COMPARISON = ".comparison"


def made_folder(path: pathlib.Path) -> pathlib.Path:
    """Makes a folder, if need be, and returns it.

    Raises:
        InputValueError: If it cannot be made, or not be written to.
    """
    _make_writable(path)
    return path


def check_new(path: pathlib.Path) -> pathlib.Path:
    """Returns a folder that no run has written to: an earlier run's files are never overwritten.

    Raises:
        InputValueError: If it holds something already.
    """
    if not all(map(_locks.is_lock, path.iterdir())):
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
    _make_writable(path)
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
    _make_writable(path)
    return path


def continued_folder(path: pathlib.Path) -> pathlib.Path:
    """Makes the folder of a comparison and returns it, also if a comparison was begun there.

    Raises:
        InputValueError: If it cannot be made, or holds anything that no comparison wrote.
    """
    begun = path / _COMPARISON
    if path.is_dir() and any(path.iterdir()) and not begun.is_file():
        raise InputValueError(f"out={str(path)!r} holds something else than a comparison: name another folder.")
    _make_writable(path)
    begun.touch()
    return path


def data_file(dataset: str) -> pathlib.Path:
    """Returns the file of a data set.

    Args:
        dataset: `pydoc`, written on first use; `stackoverflow`, downloaded on first use; `sqlite:FILE`, or a path.

    Raises:
        InputValueError: If there is no such file, or it cannot be had.
    """
    if dataset == "pydoc":
        from .datasets import pydoc

        return pydoc.cached_pydoc()
    if dataset == "stackoverflow":
        from .datasets import stackoverflow

        return stackoverflow.cached_stackoverflow()
    check_dataset(dataset)
    return _file_of(dataset)


def check_dataset(dataset: str) -> None:
    """Raises unless a data set is a file, or one that is kept in the cache; it is not made here.

    Raises:
        InputValueError: If it is none of them, or the cache cannot be written.
    """
    if dataset in _EMBEDDED:
        _cache.folder()
    elif not os.path.isfile(_file_of(dataset)):
        raise InputValueError(
            f"dataset={dataset!r} is neither `pydoc` nor `stackoverflow`, nor an existing file in StackOverflow's "
            f"format{_validate.did_you_mean(dataset, _EMBEDDED)}"
        )


def _file_of(dataset: str) -> pathlib.Path:
    return pathlib.Path(dataset.removeprefix(_SQLITE))


def check_file(path: str | os.PathLike[str], name: str = "out") -> None:
    """Raises unless a file can be written, so that no work is done in vain; nothing is left there.

    Args:
        path: The file.
        name: Of the argument, for the message.

    Raises:
        InputValueError: If it cannot be written.
    """
    path = pathlib.Path(path)
    if path.is_dir():
        raise InputValueError(f"{name}={str(path)!r} is a folder: name a file in it.")
    if not path.parent.is_dir():
        raise InputValueError(f"{name}={str(path)!r} cannot be written: there is no folder {str(path.parent)!r}.")
    if path.exists() and not os.access(path, os.W_OK):
        raise InputValueError(f"{name}={str(path)!r} cannot be written: it may only be read.")
    try:
        with tempfile.TemporaryFile(dir=path.parent):
            pass
    except OSError as error:
        raise InputValueError(f"{name}={str(path)!r} cannot be written: {error.strerror or error}.") from error


def write_atomically(path: pathlib.Path, content: str | bytes) -> None:
    """Writes a file that is there whole or not at all, whenever the program is ended; a text in UTF-8."""
    partial = path.with_name(f".{path.name}.partial")
    with partial.open("wb") as file:
        file.write(content.encode() if isinstance(content, str) else content)
        file.flush()
        os.fsync(file.fileno())
    partial.replace(path)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def _make_writable(path: pathlib.Path) -> None:
    try:
        path.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=path):
            pass
    except OSError as error:
        raise InputValueError(f"out={str(path)!r} cannot be written: {error.strerror or error}.") from error
