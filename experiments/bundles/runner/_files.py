"""Files: refused unless intact, read without following links, written to survive a power cut; and safetensors files."""

import contextlib
import fcntl
import hashlib
import json
import math
import os
import pathlib
import secrets
import shutil
import stat
from collections.abc import Iterator, Mapping
from typing import Any, BinaryIO

import numpy as np

Tensors = Mapping[str, Any]
Types = Mapping[str, Mapping[str, Any]]

SUFFIX, LOCK, _PARTIAL = ".safetensors", ".lock", ".partial"
_MOST_BYTES = 2**40
_HEADER_BYTES = 4096
_DTYPES = {f"{kind[0].upper()}{bits}": f"{kind}{bits}" for kind in ("int", "uint") for bits in (8, 16, 32, 64)}
_DTYPES |= {"BOOL": "bool", "F16": "float16", "F32": "float32", "F64": "float64"}
_NAMES = {name: key for key, name in _DTYPES.items()}
# The reasons for which a report is refused. None of them contains text from a device.
REASONS = (
    *("no regular file", "too large", "damaged", "empty", "missing leaf", "extra leaf", "dtype", "shape"),
    *("not chosen", "duplicate", "another round", "late"),
)


class RefusedError(ValueError):
    """An input is wrong; the message names it and the remedy."""


class RefusedUpdateError(RefusedError):
    """An update that is not added to the sum; the message is one of `REASONS`."""


def open_regular(path: pathlib.Path) -> BinaryIO:
    """Returns a regular file, opened for reading; anything else is not opened, or not read.

    Raises:
        RefusedUpdateError: If it is a link, a folder, a pipe or a device, or cannot be opened.
    """
    try:
        if stat.S_ISREG(os.lstat(path).st_mode):
            # It may have been replaced since: without O_NONBLOCK, opening a pipe waits for a writer.
            opened = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
            if stat.S_ISREG(os.fstat(opened).st_mode):
                return open(opened, "rb")
            os.close(opened)
    except OSError as error:
        raise RefusedUpdateError("no regular file") from error
    raise RefusedUpdateError("no regular file")


def read_regular(path: pathlib.Path, most_bytes: int = _MOST_BYTES) -> bytes:
    """Returns the content of a regular file up to a size; raises as `open_regular` does, or if the file is larger."""
    with open_regular(path) as file:
        size = os.fstat(file.fileno()).st_size
        if size > most_bytes:
            raise RefusedUpdateError("too large")
        return file.read(size)


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


def encoded(tensors: Mapping[str, np.ndarray], about: Mapping[str, str]) -> bytes:
    """Returns tensors and metadata as a safetensors file; equal input gives equal bytes."""
    arrays = {name: np.asarray(value, order="C") for name, value in tensors.items()}
    header: dict[str, Any] = {"__metadata__": dict(sorted(about.items()))}
    # Wide types come first, so that each tensor is aligned.
    order = sorted(arrays, key=lambda name: (-arrays[name].itemsize, name))
    end = 0
    for name in order:
        array, start = arrays[name], end
        end += array.nbytes
        header[name] = {"dtype": _NAMES[array.dtype.name], "shape": array.shape, "data_offsets": [start, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return b"".join([len(text).to_bytes(8, "little"), text, *(arrays[name].tobytes() for name in order)])


def decoded(content: bytes) -> tuple[dict[str, np.ndarray], dict[str, str]]:
    """Returns the tensors and the metadata of a safetensors file.

    Raises:
        RefusedError: If it is not intact: every byte must belong to the header or to one tensor.
    """
    try:
        begin = 8 + int.from_bytes(content[:8], "little")
        header = json.loads(content[8:begin].decode(), object_pairs_hook=unique_keys)
        about = header.pop("__metadata__", {})
        if begin > len(content) or not all(isinstance(each, str) for each in about.values()):
            raise ValueError("its header is cut off, or its metadata is not text")
        found, end = {}, 0
        for name, entry in sorted(header.items(), key=lambda item: item[1]["data_offsets"]):
            dtype, shape, (start, stop) = np.dtype(_DTYPES[entry["dtype"]]), entry["shape"], entry["data_offsets"]
            whole = all(type(each) is int and each >= 0 for each in (*shape, start, stop))
            if not whole or start != end or stop - start != math.prod(shape) * dtype.itemsize:
                raise ValueError("a tensor is not where its header says")
            count, end = math.prod(shape), stop
            found[name] = np.frombuffer(content, dtype, count, begin + start).reshape(shape)
        if begin + end != len(content):
            raise ValueError("it is longer or shorter than its tensors")
        return found, about
    except (ValueError, KeyError, TypeError, AttributeError, IndexError, RecursionError, OverflowError) as error:
        raise RefusedError(f"it is not an intact safetensors file: {error}") from error


def sealed(tensors: Mapping[str, np.ndarray], about: Mapping[str, str]) -> tuple[bytes, str]:
    """Returns a safetensors file whose metadata holds its own SHA-256, and that SHA-256."""
    digest = hashlib.sha256(encoded(tensors, about)).hexdigest()
    return encoded(tensors, {**about, "sha256": digest}), digest


def unsealed(path: pathlib.Path) -> tuple[dict[str, np.ndarray], dict[str, str], str]:
    """Returns tensors, metadata and SHA-256 of a sealed file.

    Raises:
        RefusedError: If the file is missing, or one bit of it was changed.
    """
    try:
        tensors, about = decoded(read_regular(path))
    except RefusedError as error:
        raise RefusedError(
            f"file={str(path)!r} is missing or damaged ({error}): put its newest version back."
        ) from error
    digest = about.pop("sha256", "")
    if hashlib.sha256(encoded(tensors, about)).hexdigest() != digest:
        raise RefusedError(f"file={str(path)!r} was changed: put its newest version back.")
    return tensors, about, digest


def unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Returns a JSON object; raises ValueError if it has a key twice."""
    if len({name for name, _ in pairs}) != len(pairs):
        raise ValueError("a key is there twice")
    return dict(pairs)


def checked(update: Tensors, types: Types) -> dict[str, np.ndarray]:
    """Returns an update that has exactly these names, types and shapes; nothing is converted or broadcast.

    Raises:
        RefusedUpdateError: If it has others.
    """
    if not update:
        raise RefusedUpdateError("empty")
    if update.keys() != types.keys():
        raise RefusedUpdateError("missing leaf" if types.keys() - update.keys() else "extra leaf")
    for name, spec in types.items():
        value = update[name]
        if type(value) is not np.ndarray or value.dtype != np.dtype(spec["dtype"]):
            raise RefusedUpdateError("dtype")
        if list(value.shape) != spec["shape"]:
            raise RefusedUpdateError("shape")
    return {name: update[name] for name in types}


def read_update(path: pathlib.Path, types: Types) -> tuple[dict[str, np.ndarray], dict[str, str]]:
    """Returns the update in a device's file, and its metadata; a file that is too large for one is not read.

    Raises:
        RefusedUpdateError: If the file holds no such update.
    """
    size = sum(np.dtype(spec["dtype"]).itemsize * math.prod(spec["shape"]) for spec in types.values())
    header = _HEADER_BYTES + 256 * len(types) + 2 * sum(map(len, types))
    try:
        tensors, about = decoded(read_regular(path, 8 + header + size))
    except RefusedUpdateError:
        raise
    except RefusedError as error:
        raise RefusedUpdateError("damaged") from error
    return checked(tensors, types), about
