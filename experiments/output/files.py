"""Files and folders that a command writes: locked, never half written, never over another's."""

import contextlib
import fcntl
import hashlib
import os
import pathlib
import secrets
import shutil
import tempfile
from collections.abc import Callable, Iterator

from ...base import files
from ...base.errors import InputValueError
from ...base.files import atomic_file as atomic_file
from ...base.files import sync_folder as sync_folder
from ...base.files import write_atomically as write_atomically

FOLDER_LOCK = ".lock"


@contextlib.contextmanager
def held(path: pathlib.Path, on_wait: Callable[[], None] = lambda: None) -> Iterator[int]:
    """Holds the lock of a file while the block runs; calls `on_wait`, and waits, if another process has it.

    The file is made if it does not exist, and never removed, since two processes could then hold the lock. Yields its
    descriptor: a process that inherits it holds the lock too, until it ends.
    """
    with path.open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            on_wait()
            fcntl.flock(file, fcntl.LOCK_EX)
        yield file.fileno()


@contextlib.contextmanager
def alone(folder: pathlib.Path) -> Iterator[None]:
    """Keeps every other process out of the folder of a run, and deletes the unfinished files of killed ones there."""
    path = folder / FOLDER_LOCK

    def refuse() -> None:
        raise InputValueError(
            f"out={str(folder)!r} is in use by process {path.read_text().strip() or 'unknown'}: two at once would "
            "release rounds twice. Wait for it to end, or name another folder."
        )

    with held(path, refuse), _held_folder(folder, refuse):
        path.write_text(f"{os.getpid()}\n")
        # Unfinished checkpoints have keys.
        files.remove_unfinished(folder, subfolders=True)
        yield


@contextlib.contextmanager
def _held_folder(folder: pathlib.Path, refuse: Callable[[], None]) -> Iterator[None]:
    """Holds the lock of a folder itself, which nobody can delete as they can delete a file that looks left over."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        # Some file systems, such as NFS, lock no folders: there the lock file has to do.
        with contextlib.suppress(OSError):
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                refuse()
        yield
    finally:
        os.close(descriptor)


def check_file(path: str | os.PathLike[str], name: str = "out") -> None:
    """Refuses a file that cannot be written, so that no work is wasted; nothing is left there."""
    path = pathlib.Path(path)
    if path.is_dir():
        raise InputValueError(f"{name}={str(path)!r} is a folder: name a file in it.")
    if not path.parent.is_dir():
        raise InputValueError(f"{name}={str(path)!r} cannot be written: there is no folder {str(path.parent)!r}.")
    if path.exists() and not os.access(path, os.W_OK):
        raise InputValueError(f"{name}={str(path)!r} cannot be written: it is read-only.")
    with writing(path, name), tempfile.TemporaryFile(dir=path.parent):
        pass


@contextlib.contextmanager
def writing(path: pathlib.Path, name: str = "out") -> Iterator[None]:
    """Turns a system error in the block into an `InputValueError`, which names the argument that cannot be written."""
    try:
        yield
    except OSError as error:
        reason = error.strerror or error
        raise InputValueError(f"{name}={str(path)!r} cannot be written: {reason}; name another.") from error


def move_into_place(whole: str | os.PathLike[str], path: str | os.PathLike[str]) -> None:
    """Gives a file that another program has finished its name, and returns when it would survive a power cut."""
    with open(whole, "rb") as file:
        os.fsync(file.fileno())
    os.replace(whole, path)
    sync_folder(pathlib.Path(path).parent)


def make_writable(path: pathlib.Path) -> None:
    """Makes a folder unless it exists, and refuses one to which no files can be written."""
    with writing(path):
        path.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=path):
            pass


def file_hash(path: pathlib.Path) -> str:
    """Returns the SHA-256 of a file."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


@contextlib.contextmanager
def new_folder(out: pathlib.Path) -> Iterator[pathlib.Path]:
    """Yields a folder to write to, which gets the name `out`, new or empty, when the block ends without an error.

    Its files are on disk before it gets the name.
    """
    check_new_folder(out)
    place = out.absolute()
    aside = place.with_name(f".{place.name}.{secrets.token_hex(8)}.partial")
    with writing(out):
        try:
            aside.mkdir(parents=True)
            yield aside
            for path in (*aside.rglob("*"), aside):
                # Of a file, the same call writes its content.
                sync_folder(path)
            # Replaces an empty folder, and nothing else.
            aside.rename(place)
            sync_folder(place.parent)
        finally:
            shutil.rmtree(aside, ignore_errors=True)


def check_new_folder(out: pathlib.Path) -> None:
    """Refuses a folder that is not empty, or cannot be made; nothing is made."""
    with writing(out):
        if out.exists() and (not out.is_dir() or any(out.iterdir())):
            raise InputValueError(f"out={str(out)!r} is not an empty folder: name another one, or remove it.")
        above = out.absolute().parent
        while not os.path.lexists(above):
            above = above.parent
        with tempfile.TemporaryFile(dir=above):
            pass
