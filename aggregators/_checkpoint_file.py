"""A checkpoint on disk: a safetensors file that is whole and lasting once it has its name."""

import contextlib
import json
import os
import pathlib
import secrets
from collections.abc import Sequence
from typing import Any

import numpy as np
import safetensors

from tff_mf.errors import InputValueError

_KEY = "tff_mf_checkpoint"
_LENGTH_BYTES = 8
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
    """Returns whether a leaf is written as a tensor: it has a shape and a numeric type."""
    return hasattr(leaf, "shape") and str(getattr(leaf, "dtype", "")) in _DTYPES


def write(path: pathlib.Path, tensors: Sequence[Any], description: dict[str, Any]) -> None:
    """Writes a checkpoint that only its owner can read, and returns when it would survive a power cut.

    Args:
        path: The new file.
        tensors: Arrays, or what becomes one; read one at a time.
        description: Everything else, as JSON.
    """
    header: dict[str, Any] = {"__metadata__": {_KEY: json.dumps(description)}}
    end = 0
    for index, tensor in enumerate(tensors):
        start, end = end, end + int(np.prod(tensor.shape, dtype=np.int64)) * np.dtype(tensor.dtype).itemsize
        header[str(index)] = {
            "dtype": _DTYPES[str(tensor.dtype)],
            "shape": [int(length) for length in tensor.shape],
            "data_offsets": [start, end],
        }
    text = json.dumps(header).encode()
    temporary = path.with_name(f".{secrets.token_hex(8)}.tmp")
    try:
        with open(os.open(temporary, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600), "wb") as file:
            file.write(len(text).to_bytes(_LENGTH_BYTES, "little") + text)
            for tensor in tensors:
                array = np.ascontiguousarray(tensor)
                file.write(array.data.cast("B") if array.size else b"")
            file.flush()
            os.fsync(file.fileno())
        # Unlike a rename, a link never takes the place of a file that is there.
        os.link(temporary, path)
    finally:
        with contextlib.suppress(FileNotFoundError):
            temporary.unlink()
    _sync(path.parent)


def read(path: pathlib.Path) -> tuple[list[np.ndarray], dict[str, Any]]:
    """Returns tensors and description of a checkpoint.

    Raises:
        InputValueError: If the file is no checkpoint, or damaged.
    """
    try:
        with safetensors.safe_open(path, framework="numpy") as file:
            description = json.loads((file.metadata() or {})[_KEY])
            return [file.get_tensor(str(index)) for index in range(len(file.keys()))], description
    except (safetensors.SafetensorError, KeyError, ValueError) as error:
        raise InputValueError(f"checkpoint {str(path)!r} is damaged, or not one of tff-mf: {error}") from error


def make_private(folder: pathlib.Path) -> None:
    """Makes a folder that only its owner can read, or makes it so."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    folder.chmod(0o700)


def _sync(folder: pathlib.Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
