"""Files that are written whole or not at all, and checks before work begins that they can be written.

`write_atomically`, `atomic_file` and `sync_folder` come from `tff_mf.files`.
"""

import hashlib
import os
import pathlib
import tempfile

from tff_mf.errors import InputValueError
from tff_mf.files import atomic_file as atomic_file
from tff_mf.files import sync_folder as sync_folder
from tff_mf.files import write_atomically as write_atomically


def made_folder(path: pathlib.Path) -> pathlib.Path:
    """Makes a folder unless it exists, and returns it.

    Raises:
        InputValueError: If it cannot be made or written to.
    """
    make_writable(path)
    return path


def check_file(path: str | os.PathLike[str], name: str = "out") -> None:
    """Raises unless a file can be written, so that no work is wasted; nothing is left there.

    Args:
        path: The file.
        name: Name of the argument, for the message.

    Raises:
        InputValueError: If it cannot be written.
    """
    path = pathlib.Path(path)
    if path.is_dir():
        raise InputValueError(f"{name}={str(path)!r} is a folder: name a file in it.")
    if not path.parent.is_dir():
        raise InputValueError(f"{name}={str(path)!r} cannot be written: there is no folder {str(path.parent)!r}.")
    if path.exists() and not os.access(path, os.W_OK):
        raise InputValueError(f"{name}={str(path)!r} cannot be written: it is read-only.")
    try:
        with tempfile.TemporaryFile(dir=path.parent):
            pass
    except OSError as error:
        raise InputValueError(f"{name}={str(path)!r} cannot be written: {error.strerror or error}.") from error


def move_into_place(whole: str | os.PathLike[str], path: str | os.PathLike[str]) -> None:
    """Gives a file that another program has finished its name, and returns when it would survive a power cut.

    Args:
        whole: The file, in the file system of `path`.
        path: Its name from now on; a file of that name is replaced.

    Raises:
        OSError: If it cannot be moved.
    """
    with open(whole, "rb") as file:
        os.fsync(file.fileno())
    os.replace(whole, path)
    sync_folder(pathlib.Path(path).parent)


def make_writable(path: pathlib.Path) -> None:
    """Makes a folder unless it exists, and raises unless files can be written to it.

    Raises:
        InputValueError: If it cannot be made or written to.
    """
    try:
        path.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=path):
            pass
    except OSError as error:
        raise InputValueError(f"out={str(path)!r} cannot be written: {error.strerror or error}.") from error


def file_hash(path: pathlib.Path) -> str:
    """Returns the SHA-256 of a file."""
    return hashlib.sha256(path.read_bytes()).hexdigest()
