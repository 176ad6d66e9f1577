"""Writes files atomically, and checks before work begins that a file or folder can be written."""

import hashlib
import os
import pathlib
import tempfile

from tff_mf.errors import InputValueError


def made_folder(path: pathlib.Path) -> pathlib.Path:
    """Makes a folder, if need be, and returns it.

    Raises:
        InputValueError: If it cannot be made, or not be written to.
    """
    make_writable(path)
    return path


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
    sync_folder(path.parent)


def sync_folder(path: pathlib.Path) -> None:
    """Writes the entries of a folder to disk: the names of files that were made or replaced in it."""
    folder = os.open(path, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def make_writable(path: pathlib.Path) -> None:
    """Makes a folder, if it does not exist, and raises unless files can be written to it.

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
