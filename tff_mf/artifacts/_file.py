"""Safetensors files: size limits before parsing, and atomic writes."""

import contextlib
import os
import secrets
import stat
from collections.abc import Mapping

import numpy as np
import safetensors

from tff_mf.artifacts import _manifest
from tff_mf.errors import InputTypeError, InputValueError

# Four times the size of a dense C of 4096 rounds and its decoder.
MAX_FILE_BYTES = 2**30
MAX_HEADER_BYTES = 2**20

_METADATA_KEY = "tff_mf"
_LENGTH_BYTES = 8


def path_of(path: object) -> str:
    """Returns `path` as text.

    Raises:
        InputTypeError: If it is not a path.
        InputValueError: If it is empty, has a null byte, or cannot be encoded.
    """
    if not isinstance(path, str | os.PathLike) or not isinstance(os.fspath(path), str):
        raise InputTypeError(f"path={path!r} must be the path of a file.")
    text = os.fspath(path)
    try:
        encoded = os.fsencode(text)
    except UnicodeEncodeError:
        encoded = b""
    if not encoded or b"\0" in encoded:
        raise InputValueError(f"path={path!r} is not a valid path of a file.")
    return text


def pack(manifest: str, tensors: Mapping[str, np.ndarray]) -> bytes:
    """Returns the bytes of a safetensors file.

    The manifest is the only metadata, because safetensors writes several in no fixed order.
    """
    # Imported here: it is half of the import time of safetensors, and only `save` needs it.
    from safetensors.numpy import save

    return save(dict(tensors), {_METADATA_KEY: manifest})


def unpack(data: bytes) -> tuple[str, dict[str, np.ndarray]]:
    """Returns manifest and tensors of the bytes of a safetensors file.

    Raises:
        InputValueError: If they are not what `pack` gives.
    """
    if len(data) < _LENGTH_BYTES:
        raise InputValueError(f"its {len(data)} bytes are too short for a safetensors file")
    length = int.from_bytes(data[:_LENGTH_BYTES], "little")
    if length > min(MAX_HEADER_BYTES, len(data) - _LENGTH_BYTES):
        raise InputValueError(
            f"its header claims {length} bytes, which is too many for an artifact, or the file was truncated"
        )
    try:
        header = _manifest.parse(data[_LENGTH_BYTES : _LENGTH_BYTES + length].decode())
        entries = safetensors.deserialize(data)
    except UnicodeDecodeError as error:
        raise InputValueError(f"its header is not text: {error}") from None
    except safetensors.SafetensorError as error:
        raise InputValueError(f"it is not a valid safetensors file: {error}") from None
    metadata = header.get("__metadata__")
    if not isinstance(metadata, dict) or set(metadata) != {_METADATA_KEY}:
        raise InputValueError("it is a safetensors file, but tff-mf did not write it")
    return metadata[_METADATA_KEY], {name: _tensor(name, entry) for name, entry in entries}


def read(path: str) -> bytes:
    """Returns the bytes of the file.

    Raises:
        InputValueError: If it is not a regular file, or too large.
        OSError: If it cannot be read.
    """
    # Opening a pipe for reading would wait for a writer.
    if not stat.S_ISREG(os.stat(path).st_mode):
        raise InputValueError("it is not a regular file")
    with open(path, "rb") as file:
        data = file.read(MAX_FILE_BYTES + 1)
    if len(data) > MAX_FILE_BYTES:
        raise InputValueError(f"it is larger than {MAX_FILE_BYTES} bytes, the maximum size of an artifact")
    return data


def write(path: str, data: bytes, *, overwrite: bool) -> None:
    """Writes the file atomically: a reader, or a crash, finds the old file or the new one, never a part.

    Raises:
        FileExistsError: If there is a file and it may not be overwritten.
        InputValueError: If `path` is not a regular file.
        OSError: If it cannot be written.
    """
    target = os.path.realpath(path)
    if os.path.exists(target) and not os.path.isfile(target):
        raise InputValueError("it is not a regular file")
    temporary = os.path.join(os.path.dirname(target), f".{secrets.token_hex(8)}.tff-mf.tmp")
    try:
        with open(temporary, "xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        if overwrite:
            os.replace(temporary, target)
        else:
            # Unlike a check before writing, this has no race.
            os.link(temporary, target)
    finally:
        # Also after Ctrl-C. After a successful move the file no longer exists here.
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            os.unlink(temporary)
    _sync_folder(os.path.dirname(target))


def _tensor(name: str, entry: Mapping) -> np.ndarray:
    if entry["dtype"] != "F64":
        raise InputValueError(f"its tensor {name!r} is of type {entry['dtype']} where F64 is needed")
    if 0 in entry["shape"]:
        raise InputValueError(f"its tensor {name!r} has the shape {entry['shape']}: it is empty")
    return np.frombuffer(entry["data"], dtype="<f8").reshape(entry["shape"])


def _sync_folder(folder: str) -> None:
    # Makes the new name survive a power failure, where the file system supports it.
    with contextlib.suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
