"""Strikes this process before one of the changes that it makes to files, and counts them: run in a fork."""

import errno
import os
import pathlib
import signal
import sys

_CHANGES = ("os.rename", "os.remove", "os.mkdir", "os.link", "os.truncate", "sqlite3.connect")
_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT


def armed(folder: str, counted: str, number: int, fault: str) -> None:
    """Sends a signal before the change of a number in a folder, or before that fsync; or the disk is full from there.

    Args:
        folder: Where changes count.
        counted: File that grows by a byte with each of them.
        number: From 1; 0 for none of them.
        fault: The name of a signal, or `ENOSPC`.
    """
    descriptor, left, real = os.open(counted, os.O_WRONLY | os.O_CREAT | os.O_APPEND), [number], os.fsync

    def event() -> None:
        os.write(descriptor, b".")
        left[0] -= 1
        if number and left[0] <= 0 and fault == "ENOSPC":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        if left[0] == 0 and fault != "ENOSPC":
            os.kill(os.getpid(), getattr(signal, fault))

    def hook(name: str, given: tuple[object, ...]) -> None:
        changes = name in _CHANGES or (name == "open" and isinstance(given[2], int) and given[2] & _WRITES)
        if changes and str(given[0]).startswith(str(pathlib.Path(folder))):
            event()

    os.fsync = lambda number: (event(), real(number))[1]
    sys.addaudithook(hook)
