"""Reads in a thread what is needed next."""

from collections.abc import Generator, Iterable
from concurrent import futures
from typing import TypeVar

_T = TypeVar("_T")


def read_ahead(chunks: Iterable[_T]) -> Generator[_T, None, None]:
    """Yields chunks, of which the next is read in a thread meanwhile: none of them may be `None`.

    One thread reads and closes them, as connections to SQLite need it; it has ended when this generator is closed. An
    error of reading is raised when its chunk is due.

    Args:
        chunks: Iterated over in the thread, one chunk ahead.
    """
    source = iter(chunks)
    with futures.ThreadPoolExecutor(1) as thread:
        try:
            coming = thread.submit(next, source, None)
            while (chunk := coming.result()) is not None:
                coming = thread.submit(next, source, None)
                yield chunk
        finally:
            if isinstance(source, Generator):
                thread.submit(source.close).result()
