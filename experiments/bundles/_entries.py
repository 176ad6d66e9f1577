"""Reads files of an untrusted folder, which may be changing: only regular files, and only up to a given size.

The kind of an entry is checked before it is opened, links are never followed, and no call can block. Files are copied
to the reader's own folder while they are hashed, so that what was checked is what is read.
"""

import contextlib
import dataclasses
import hashlib
import os
import pathlib
import shutil
import stat
from collections.abc import Iterator, Mapping
from typing import Any

from tff_mf.errors import InputValueError

from ._results import Refusal

_CHUNK_BYTES = 2**20
_MOST_REFUSALS = 50
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_KINDS = (
    (stat.S_ISLNK, "a symbolic link"),
    (stat.S_ISDIR, "a folder"),
    (stat.S_ISFIFO, "a pipe"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISBLK, "a device"),
    (stat.S_ISCHR, "a device"),
)


class _WrongError(Exception):
    """Why a file is refused."""


class _EnoughError(Exception):
    """Enough was refused: the rest need not be checked."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Copying:
    """The files to copy, and the refusals so far."""

    listed: Mapping[str, Mapping[str, Any]]
    known: Mapping[str, int]
    folders: frozenset[str]
    to: pathlib.Path
    refused: list[Refusal]
    seen: set[str]

    def refuse(self, name: str, reason: str) -> None:
        self.refused.append(Refusal(file=name, reason=reason))
        if len(self.refused) >= _MOST_REFUSALS:
            raise _EnoughError


def read(folder: pathlib.Path, name: str, most: int) -> bytes:
    """Returns the content of a regular file directly in a folder.

    Args:
        folder: The folder.
        name: The file.
        most: The largest number of bytes that is read.

    Raises:
        InputValueError: If it is missing, is not a regular file, is larger, or cannot be read.
    """
    try:
        with _opened_folder(folder) as place:
            chunks: list[bytes] = []
            with _opened(place, name, os.stat(name, dir_fd=place, follow_symlinks=False)) as (file, size):
                if size > most:
                    raise InputValueError(f"{name} has {size} bytes; at most {most} are read")
                _pump(file, size, chunks.append)
            return b"".join(chunks)
    except FileNotFoundError as error:
        raise InputValueError(f"bundle={str(folder)!r} is not a bundle of tff-mf export: {name} is missing.") from error
    except _WrongError as error:
        raise InputValueError(f"{name} {error}") from error
    except OSError as error:
        raise InputValueError(f"bundle={str(folder)!r} cannot be read: {error.strerror or error}.") from error


def copied(
    folder: pathlib.Path, listed: Mapping[str, Mapping[str, Any]], to: pathlib.Path, *, known: Mapping[str, int]
) -> list[Refusal]:
    """Copies the files of a folder, and returns how they differ from a list of them.

    Formal guarantee: if nothing is returned, every listed file is in `to` with the size and the hash of the list, and
    `folder` had no other entry, and no entry that others than its owner may write, when it was read.

    Args:
        folder: The folder.
        listed: `sha256` and `bytes` of each file, by its path in the folder.
        to: An empty folder of the caller's own.
        known: Largest size of each file that may be in the folder itself without being listed.

    Raises:
        InputValueError: If the folder cannot be read, or there is no room for the copy.
    """
    needed = sum(entry["bytes"] for entry in listed.values())
    if needed > shutil.disk_usage(to).free:
        raise InputValueError(
            f"bundle={str(folder)!r} has {needed} bytes, and there is no room for a copy in {str(to.parent)!r}: name "
            "another folder for temporary files in TMPDIR"
        )
    parents = frozenset(parent.as_posix() for name in listed for parent in pathlib.PurePosixPath(name).parents)
    state = _Copying(listed=listed, known=known, folders=parents - {"."}, to=to, refused=[], seen=set())
    with contextlib.suppress(_EnoughError):
        try:
            with _opened_folder(folder) as place:
                _check_mode("the folder", os.fstat(place), state)
                _copy_folder(place, "", state)
        except OSError as error:
            raise InputValueError(f"bundle={str(folder)!r} cannot be read: {error.strerror or error}.") from error
        for name in sorted(listed.keys() - state.seen):
            state.refuse(name, "is missing")
    return sorted(state.refused, key=lambda each: each.file)


@contextlib.contextmanager
def _opened_folder(path: pathlib.Path | str, within: int | None = None) -> Iterator[int]:
    # The folder itself may be a link: the user named it.
    place = os.open(path, _FOLDER | (0 if within is None else os.O_NOFOLLOW), dir_fd=within)
    try:
        yield place
    finally:
        os.close(place)


def _copy_folder(place: int, prefix: str, state: _Copying) -> None:
    (state.to / prefix).mkdir(exist_ok=True)
    with os.scandir(place) as entries:
        for entry in entries:
            name = f"{prefix}{entry.name}"
            state.seen.add(name)
            try:
                _copy_entry(place, entry.name, name, state)
            except _WrongError as error:
                state.refuse(name, str(error))
            except OSError as error:
                state.refuse(name, f"cannot be read: {error.strerror or error}")


def _copy_entry(place: int, name: str, path: str, state: _Copying) -> None:
    found = os.stat(name, dir_fd=place, follow_symlinks=False)
    if path in state.folders:
        _require_kind(found, stat.S_ISDIR, "a folder")
        _check_mode(path, found, state)
        with _opened_folder(name, place) as inside:
            _copy_folder(inside, f"{path}/", state)
        return
    if path not in state.listed and path not in state.known:
        raise _WrongError(f"is {_kind(found)} that is not in the manifest")
    _check_mode(path, found, state)
    with _opened(place, name, found) as (file, size):
        if path in state.known:
            if size > state.known[path]:
                raise _WrongError(f"has {size} bytes; at most {state.known[path]} are read")
        elif size != state.listed[path]["bytes"]:
            raise _WrongError(f"was modified: it has {size} bytes, and {state.listed[path]['bytes']} in the manifest")
        digest = hashlib.sha256()
        with (state.to / path).open("xb") as copy:
            _pump(file, size, lambda chunk: (digest.update(chunk), copy.write(chunk)))
    if path in state.listed and digest.hexdigest() != state.listed[path]["sha256"]:
        raise _WrongError("was modified: its SHA-256 differs from the manifest")


@contextlib.contextmanager
def _opened(place: int, name: str, expected: os.stat_result) -> Iterator[tuple[int, int]]:
    """Yields a regular file, opened, and its size; raises if it is no longer regular once it is open."""
    _require_kind(expected, stat.S_ISREG, "a file")
    file = os.open(name, _FILE, dir_fd=place)
    try:
        found = os.fstat(file)
        _require_kind(found, stat.S_ISREG, "a file")
        yield file, found.st_size
    finally:
        os.close(file)


def _pump(file: int, size: int, use: Any) -> None:
    """Passes `size` bytes of a file to `use`, chunk by chunk, and reads at most one byte more."""
    left = size
    while chunk := os.read(file, min(_CHUNK_BYTES, left + 1)):
        left -= len(chunk)
        if left < 0:
            break
        use(chunk)
    if left:
        raise _WrongError("was modified while it was read")


def _require_kind(found: os.stat_result, is_right: Any, right: str) -> None:
    if not is_right(found.st_mode):
        raise _WrongError(f"is {_kind(found)}, not {right}")


def _kind(found: os.stat_result) -> str:
    return next((words for is_kind, words in _KINDS if is_kind(found.st_mode)), "a file")


def _check_mode(name: str, found: os.stat_result, state: _Copying) -> None:
    mode = stat.S_IMODE(found.st_mode)
    if stat.S_ISLNK(found.st_mode):
        return
    if mode & (stat.S_IWGRP | stat.S_IWOTH):
        state.refuse(name, f"has mode {mode:04o}: others may write it. Run `chmod -R go-w` on the bundle")
    if mode & (stat.S_ISUID | stat.S_ISGID) and stat.S_ISREG(found.st_mode):
        state.refuse(name, f"has mode {mode:04o}: it runs as its owner. Run `chmod -R a-s` on the bundle")
