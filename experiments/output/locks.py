"""Locks between processes; a lock ends with the process that holds it, even if that is killed."""

import contextlib
import fcntl
import os
import pathlib
from collections.abc import Callable, Iterator

from tff_mf import files
from tff_mf.errors import InputValueError

FOLDER_LOCK = ".lock"


@contextlib.contextmanager
def held(path: pathlib.Path, on_wait: Callable[[], None] = lambda: None) -> Iterator[None]:
    """Holds the lock of a file while the block runs; waits as long as another process has it.

    Args:
        path: The file, made if it does not exist; it is never removed, since two processes could then hold the lock.
        on_wait: Called before waiting.
    """
    with path.open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            on_wait()
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


@contextlib.contextmanager
def alone(folder: pathlib.Path) -> Iterator[None]:
    """Keeps every other process out of the folder of a run, and deletes the unfinished files of killed ones there.

    Raises:
        InputValueError: If another process is using it.
    """
    path = folder / FOLDER_LOCK

    def refuse() -> None:
        raise InputValueError(
            f"out={str(folder)!r} is in use by process {path.read_text().strip() or 'unknown'}: two at once would "
            "release rounds twice. Wait for it to end, or name another folder."
        )

    with held(path, refuse):
        path.write_text(f"{os.getpid()}\n")
        # Unfinished checkpoints have keys.
        files.remove_unfinished(folder, subfolders=True)
        yield


def is_lock(path: pathlib.Path) -> bool:
    """Returns whether a file is the lock of its folder."""
    return path.name == FOLDER_LOCK
