"""Folders that are written whole or not at all."""

import contextlib
import os
import pathlib
import secrets
import shutil
import tempfile
from collections.abc import Iterator, Sequence

from tff_mf.errors import InputValueError

from .files import sync_folder


@contextlib.contextmanager
def new_folder(out: pathlib.Path) -> Iterator[pathlib.Path]:
    """Yields a folder to write to, which gets the name `out` when the block ends without an error.

    Its files are on disk before it gets the name.

    Args:
        out: The folder: a new one, or an empty one.

    Raises:
        InputValueError: If `out` is not empty, or cannot be written.
    """
    check_new_folder(out)
    place = out.absolute()
    try:
        with _beside(place) as aside:
            yield aside
            _sync_all(aside)
            # Replaces an empty folder, and nothing else.
            aside.rename(place)
            sync_folder(place.parent)
    except OSError as error:
        raise InputValueError(f"out={str(out)!r} cannot be written: {error.strerror or error}.") from error


@contextlib.contextmanager
def replaced_parts(out: pathlib.Path, parts: Sequence[str]) -> Iterator[pathlib.Path]:
    """Yields a folder to write parts of `out` to, which replace the earlier ones when the block ends without an error.

    Args:
        out: The folder, made if it does not exist; everything else in it stays.
        parts: Names of the files and folders that the block writes.
    """
    place = out.absolute()
    with _beside(place) as aside:
        yield aside
        _sync_all(aside)
        place.mkdir(parents=True, exist_ok=True)
        for part in parts:
            if (place / part).is_dir():
                shutil.rmtree(place / part)
            (aside / part).replace(place / part)
        sync_folder(place)


def check_new_folder(out: pathlib.Path) -> None:
    """Raises unless a new folder can be made there; nothing is made.

    Raises:
        InputValueError: If `out` is not empty, or cannot be written.
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


@contextlib.contextmanager
def _beside(place: pathlib.Path) -> Iterator[pathlib.Path]:
    """Yields a new folder beside `place`, and deletes it if it is still there in the end."""
    aside = place.with_name(f".{place.name}.{secrets.token_hex(8)}.partial")
    try:
        aside.mkdir(parents=True)
        yield aside
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def _sync_all(folder: pathlib.Path) -> None:
    """Returns when all files of a folder would survive a power cut."""
    for path in (*folder.rglob("*"), folder):
        # Of a file, the same call writes its content.
        sync_folder(path)
