"""Writes files atomically and durably: after a crash the old file or the new one is there, never a part of one."""

import contextlib
import fcntl
import os
import pathlib
import secrets
from collections.abc import Iterator
from typing import BinaryIO

_SUFFIX = ".tff-mf.tmp"


@contextlib.contextmanager
def atomic_file(path: str | os.PathLike[str], *, mode: int | None = None, overwrite: bool = True) -> Iterator[BinaryIO]:
    """Opens a file to write that gets its name when the block ends without an error.

    Until then the content is in a hidden file in the same folder, which is locked, and deleted if the block raises; if
    the process is killed, `remove_unfinished` deletes it. The content is on disk before the file gets its name; call
    `sync_folder` to make the name itself survive a power cut.

    Args:
        path: The file.
        mode: Permission bits of the new file, before the umask; if `None`, as for an ordinary new file.
        overwrite: Whether to replace an existing file.

    Yields:
        The file, opened to write bytes.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     with atomic_file(os.path.join(folder, "rounds.txt")) as file:
        ...         _ = file.write(b"2052")
        ...         before = os.listdir(folder) == ["rounds.txt"]
        ...     before, os.listdir(folder)
        (False, ['rounds.txt'])

    Raises:
        FileExistsError: If the file exists and may not be overwritten.
        OSError: If it cannot be written.
    """
    path = pathlib.Path(path)
    temporary = path.with_name(f".{secrets.token_hex(8)}{_SUFFIX}")
    bits = 0o666 if mode is None else mode
    try:
        with open(temporary, "xb", opener=lambda name, flags: os.open(name, flags, bits)) as file:
            _lock(file.fileno())
            yield file
            file.flush()
            os.fsync(file.fileno())
        if overwrite:
            os.replace(temporary, path)
        else:
            # Fails if the file exists; to look first and rename then would leave a gap between the two.
            os.link(temporary, path)
    finally:
        # Also after Ctrl-C. A file that was renamed is no longer here.
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            temporary.unlink()


def unfinished(folder: str | os.PathLike[str], *, subfolders: bool = False) -> Iterator[pathlib.Path]:
    """Yields what killed processes left of files that they were writing with `atomic_file`.

    A file that a process is writing is locked, and is not among them; neither is one whose lock cannot be had.

    Args:
        folder: The folder.
        subfolders: Whether to look into subfolders too.
    """
    for path in pathlib.Path(folder).glob(f"{'**/' if subfolders else ''}.*{_SUFFIX}"):
        # No link is followed, and no pipe waited for.
        with contextlib.suppress(OSError):
            descriptor = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK)
            try:
                if _lock(descriptor):
                    yield path
            finally:
                os.close(descriptor)


def remove_unfinished(folder: str | os.PathLike[str], *, subfolders: bool = False) -> None:
    """Deletes what killed processes left of files that they were writing with `atomic_file`: see `unfinished`.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     _ = pathlib.Path(folder, f".0{_SUFFIX}").write_bytes(b"")
        ...     remove_unfinished(folder)
        ...     os.listdir(folder)
        []
    """
    for path in unfinished(folder, subfolders=subfolders):
        path.unlink(missing_ok=True)


def _lock(descriptor: int) -> bool:
    """Locks an open file until it is closed, and returns whether that was possible."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def sync_folder(folder: str | os.PathLike[str]) -> None:
    """Returns when the names of the files in a folder would survive a power cut.

    Example:
        >>> sync_folder(".")

    Raises:
        OSError: If the file system cannot do it, as on Windows.
    """
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_atomically(path: str | os.PathLike[str], content: bytes | str, *, mode: int | None = None) -> None:
    """Writes a file, replacing an existing one, and returns when it would survive a power cut.

    Args:
        path: The file.
        content: What to write; text is encoded as UTF-8.
        mode: Permission bits of the new file, before the umask; if `None`, as for an ordinary new file.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     write_atomically(os.path.join(folder, "rounds.txt"), "2052")
        ...     pathlib.Path(folder, "rounds.txt").read_text()
        '2052'

    Raises:
        OSError: If it cannot be written.
    """
    path = pathlib.Path(path)
    with atomic_file(path, mode=mode) as file:
        file.write(content.encode() if isinstance(content, str) else content)
    sync_folder(path.parent)
