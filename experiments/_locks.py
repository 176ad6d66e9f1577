"""Locks between processes, which end with the process that holds them, however it ends."""

import contextlib
import fcntl
import pathlib
from collections.abc import Callable, Iterator


@contextlib.contextmanager
def held(path: pathlib.Path, on_wait: Callable[[], None] = lambda: None) -> Iterator[None]:
    """Holds the lock of the file `path`, made if need be; waits for it as long as another process has it.

    Args:
        path: The file; it stays, since removing it would let two processes hold the lock.
        on_wait: Called before waiting.
    """
    with path.open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            on_wait()
            fcntl.flock(file, fcntl.LOCK_EX)
        yield
