"""Reads and writes checkpoint files: safetensors files that are complete and durable once they have their name."""

import hashlib
import json
import logging
import pathlib
import stat
from collections.abc import Sequence
from typing import Any

import numpy as np
import safetensors

from tff_mf.base import files
from tff_mf.base.errors import InputValueError

_LOG = logging.getLogger(__name__)

_KEY, _HASH = "tff_mf_checkpoint", "sha256"
# Placeholder in the header until everything is written, and while the hash is computed.
_NO_HASH = "0" * 64
_VERSION = 2
_LENGTH_BYTES = 8
# Other files beside checkpoints, such as `run.json`, contain no keys.
_SETTINGS = ".json"
_READ_BYTES = 2**20
_DTYPES = {
    "bool": "BOOL",
    "uint8": "U8",
    "int8": "I8",
    "int16": "I16",
    "uint16": "U16",
    "int32": "I32",
    "uint32": "U32",
    "int64": "I64",
    "uint64": "U64",
    "float16": "F16",
    "float32": "F32",
    "float64": "F64",
}


def is_tensor(leaf: object) -> bool:
    """Returns whether a leaf is written as a tensor: whether it has a shape and a numeric type."""
    return hasattr(leaf, "shape") and str(getattr(leaf, "dtype", "")) in _DTYPES


def write(path: pathlib.Path, tensors: Sequence[Any], description: dict[str, Any]) -> None:
    """Writes a checkpoint that only its owner can read, and returns when it would survive a power failure.

    Args:
        path: The new file.
        tensors: Arrays, or objects that NumPy converts to arrays; read one at a time.
        description: Everything else, as JSON.
    """
    about = json.dumps({"version": _VERSION, **description})
    header: dict[str, Any] = {"__metadata__": {_HASH: _NO_HASH, _KEY: about}}
    end = 0
    for index, tensor in enumerate(tensors):
        start, end = end, end + int(np.prod(tensor.shape, dtype=np.int64)) * np.dtype(tensor.dtype).itemsize
        header[str(index)] = {
            "dtype": _DTYPES[str(tensor.dtype)],
            "shape": [int(length) for length in tensor.shape],
            "data_offsets": [start, end],
        }
    text = json.dumps(header).encode()
    # An existing checkpoint is never replaced.
    with files.atomic_file(path, mode=0o600, overwrite=False) as file:
        digest = hashlib.sha256(text)
        file.write(len(text).to_bytes(_LENGTH_BYTES, "little") + text)
        for tensor in tensors:
            array = np.ascontiguousarray(tensor)
            content = array.data.cast("B") if array.size else b""
            digest.update(content)
            file.write(content)
        file.seek(_LENGTH_BYTES + text.index(_NO_HASH.encode()))
        file.write(digest.hexdigest().encode())
    files.sync_folder(path.parent)


def read(path: pathlib.Path) -> tuple[list[np.ndarray], dict[str, Any]]:
    """Returns tensors and description of a checkpoint.

    Formal guarantee: a file in which any bit has changed is refused. A changed key of a past round would be replayed as
    different noise, which later rounds would not cancel.

    Raises:
        InputValueError: If the file is not a checkpoint, is damaged, or was written by a release with another version
            of the format.
    """
    try:
        with safetensors.safe_open(path, framework="numpy") as file:
            metadata = file.metadata() or {}
            description = json.loads(metadata[_KEY])
            version = description["version"]
            if version != _VERSION:
                raise InputValueError(
                    f"its format version is {version!r:.80}, and this release reads version {_VERSION}: finish the run "
                    "with the release of tff-mf that started it"
                )
            if metadata[_HASH] != _digest(path, metadata[_HASH]):
                raise InputValueError("its content does not match its sha256")
            return [file.get_tensor(str(index)) for index in range(len(file.keys()))], description
    except (safetensors.SafetensorError, OSError, KeyError, ValueError, TypeError, RecursionError) as error:
        raise InputValueError(
            f"checkpoint {str(path)!r} is damaged or was not written by this release of tff-mf: {error}. A damaged "
            "checkpoint cannot be repaired; what the run has released is not affected."
        ) from error


def _digest(path: pathlib.Path, claimed: str) -> str:
    """Returns the hash of a file, without the hash in its header."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        header = file.read(int.from_bytes(file.read(_LENGTH_BYTES), "little"))
        digest.update(header.replace(claimed.encode(), _NO_HASH.encode(), 1))
        while part := file.read(_READ_BYTES):
            digest.update(part)
    return digest.hexdigest()


def make_private(folder: pathlib.Path) -> None:
    """Creates a folder of checkpoints that only its owner can read, or restricts an existing one to its owner.

    Checkpoints that killed processes left unfinished are deleted: they have keys too. Logs a warning if others could
    read checkpoints in it.

    Raises:
        InputValueError: If it cannot be created or restricted.
    """
    try:
        if folder.is_dir() and _others(folder) and any(map(_others, _with_keys(folder))):
            _LOG.warning(
                "Others could read the checkpoints in %r, whose keys allow removing the noise from every released "
                "model. They no longer can; against anyone who did, the run has no guarantee.",
                str(folder),
            )
        close(folder)
        files.remove_unfinished(folder)
    except OSError as error:
        raise InputValueError(f"checkpoints={str(folder)!r} cannot be made private: {error}.") from error


def close(folder: pathlib.Path) -> None:
    """Creates a folder that only its owner can read, or restricts an existing one and its files to their owner."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    folder.chmod(0o700)
    for path in filter(pathlib.Path.is_file, folder.iterdir()):
        path.chmod(0o600)


def _others(path: pathlib.Path) -> bool:
    """Returns whether anyone but the owner has any permission on a path."""
    return bool(stat.S_IMODE(path.stat().st_mode) & 0o077)


def _with_keys(folder: pathlib.Path) -> list[pathlib.Path]:
    """Returns the files in a folder and its subfolders that may contain keys: all but settings."""
    return [path for path in folder.rglob("*") if path.is_file() and path.suffix != _SETTINGS]
