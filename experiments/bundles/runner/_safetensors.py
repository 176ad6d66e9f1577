"""Safetensors files: 8 bytes of length, a JSON object of names, types and places, and the data."""

import hashlib
import json
import math
import pathlib
from collections.abc import Mapping
from typing import Any

import numpy as np

from ._errors import RefusedError
from ._files import read_regular

_DTYPES = {f"{kind[0].upper()}{bits}": f"{kind}{bits}" for kind in ("int", "uint") for bits in (8, 16, 32, 64)}
_DTYPES |= {"BOOL": "bool", "F16": "float16", "F32": "float32", "F64": "float64"}
_NAMES = {name: key for key, name in _DTYPES.items()}


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
