"""Files and folders: reading without following links, writing that survives a power cut, and a lock."""

import contextlib
import fcntl
import os
import pathlib
import secrets
import shutil
import stat
from collections.abc import Iterator

from ._errors import RefusedError, RefusedUpdateError
from ._names import LOCK

_PARTIAL = ".partial"
_MOST_BYTES = 2**40


def read_regular(path: pathlib.Path, most_bytes: int = _MOST_BYTES) -> bytes:
    """Returns the content of a regular file up to a size; anything else is not opened, or not read.

    Raises:
        RefusedUpdateError: If it is a link, a folder, a pipe or a device, or larger.
    """
    try:
        if not stat.S_ISREG(os.lstat(path).st_mode):
            raise RefusedUpdateError("no regular file")
        # It may have been replaced since: without O_NONBLOCK, opening a pipe waits for a writer.
        with open(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK), "rb") as file:
            about = os.fstat(file.fileno())
            if not stat.S_ISREG(about.st_mode):
                raise RefusedUpdateError("no regular file")
            if about.st_size > most_bytes:
                raise RefusedUpdateError("too large")
            return file.read(about.st_size)
    except OSError as error:
        raise RefusedUpdateError("no regular file") from error


def write_lasting(path: pathlib.Path, content: bytes, *, mode: int = 0o600, replaces: bool = True) -> None:
    """Writes a whole file or none, and returns once it would survive a power cut.

    Raises:
        FileExistsError: If the file exists and `replaces` is False.
    """
    aside = path.with_name(f".{secrets.token_hex(8)}{_PARTIAL}")
    try:
        with open(os.open(aside, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600), "wb") as file:
            file.write(content)
            os.fchmod(file.fileno(), mode)
            file.flush()
            os.fsync(file.fileno())
        # Unlike a rename, a link never replaces an existing file.
        (aside.replace if replaces else lambda target: os.link(aside, target))(path)
    finally:
        aside.unlink(missing_ok=True)
    sync(path.parent)


def remove_partial(folder: pathlib.Path) -> None:
    """Deletes the unfinished files that a killed process left: they may hold secrets."""
    for path in folder.glob(f".*{_PARTIAL}"):
        path.unlink(missing_ok=True)


def remove(path: pathlib.Path) -> None:
    """Deletes a file, or a folder with everything in it; does nothing if there is none."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def sync(folder: pathlib.Path) -> None:
    """Writes a folder's list of names to disk."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def alone(folder: pathlib.Path) -> Iterator[None]:
    """Keeps every other process out of a deployment.

    Raises:
        RefusedError: If another process has it open.
    """
    with open(os.open(folder / LOCK, os.O_CREAT | os.O_RDWR, 0o600), "rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise RefusedError(
                f"deployment={str(folder)!r} is run by another process: a state must be stepped once. Wait for it."
            ) from None
        yield
