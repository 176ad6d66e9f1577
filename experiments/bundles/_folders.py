"""Folders that are there whole or not at all."""

import contextlib
import os
import pathlib
import secrets
import shutil
import stat
import tempfile
from collections.abc import Iterator

from tff_mf.errors import InputValueError


@contextlib.contextmanager
def new_folder(out: pathlib.Path) -> Iterator[pathlib.Path]:
    """Yields a folder to write to, and gives it the name `out` once it is written and on disk.

    Raises:
        InputValueError: If `out` holds something, or cannot be written.
    """
    check_new_folder(out)
    place = out.absolute()
    aside = place.with_name(f".{place.name}.{secrets.token_hex(8)}.partial")
    try:
        aside.mkdir(parents=True)
        yield aside
        for path in (*aside.rglob("*"), aside):
            _sync(path)
        # Takes the place of an empty folder, and of nothing else.
        aside.rename(place)
        _sync(place.parent)
    except OSError as error:
        raise InputValueError(f"out={str(out)!r} cannot be written: {error.strerror or error}.") from error
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def set_modes(folder: pathlib.Path) -> None:
    """Gives a folder and all that is in it modes by which nobody but their owner can write, whatever the umask is.

    What only its owner can read stays so.
    """
    for path in (*folder.rglob("*"), folder):
        path.chmod(stat.S_IMODE(path.stat().st_mode) & ~(stat.S_IWGRP | stat.S_IWOTH))


def _sync(path: pathlib.Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def check_new_folder(out: pathlib.Path) -> None:
    """Raises unless a new folder can be made there; nothing is made.

    Raises:
        InputValueError: If `out` holds something, or cannot be written.
    """
    try:
        if out.exists() and (not out.is_dir() or any(out.iterdir())):
            raise InputValueError(f"out={str(out)!r} is not an empty folder: name another one, or remove it.")
        above = out.absolute().parent
        while not os.path.lexists(above):
            above = above.parent
        with tempfile.TemporaryFile(dir=above):
            pass
    except OSError as error:
        raise InputValueError(f"out={str(out)!r} cannot be written: {error.strerror or error}.") from error
