"""Safetensors files by NumPy alone: strict to read, and equal bytes for equal tensors."""

import json
import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from .errors import InputValueError
from .strict_json import loads

_DTYPES = {f"{kind[0].upper()}{bits}": f"{kind}{bits}" for kind in ("int", "uint") for bits in (8, 16, 32, 64)}
_DTYPES |= {"BOOL": "bool", "F16": "float16", "F32": "float32", "F64": "float64"}
_NAMES = {name: key for key, name in _DTYPES.items()}
LENGTH_BYTES = 8
_METADATA = "__metadata__"


def is_tensor(leaf: object) -> bool:
    """Returns whether a leaf can be written as a tensor: whether it has a shape and a numeric type."""
    return hasattr(leaf, "shape") and str(getattr(leaf, "dtype", "")) in _NAMES


def header(tensors: Mapping[str, Any], metadata: Mapping[str, str]) -> tuple[bytes, list[str]]:
    """Returns the header of a file, and the names of its tensors in the order in which their bytes follow it.

    Args:
        tensors: Arrays, or objects that NumPy converts to arrays; only their shapes and types are read.
        metadata: The metadata.
    """
    fields: dict[str, Any] = {_METADATA: dict(sorted(metadata.items()))}
    # Wide types come first, so that each tensor is aligned.
    order = sorted(tensors, key=lambda name: (-np.dtype(tensors[name].dtype).itemsize, name))
    end = 0
    for name in order:
        shape, dtype = [int(length) for length in tensors[name].shape], np.dtype(tensors[name].dtype)
        start, end = end, end + math.prod(shape) * dtype.itemsize
        fields[name] = {"dtype": _NAMES[dtype.name], "shape": shape, "data_offsets": [start, end]}
    text = json.dumps(fields, separators=(",", ":")).encode()
    return text + b" " * (-len(text) % LENGTH_BYTES), order


def encoded(tensors: Mapping[str, Any], metadata: Mapping[str, str]) -> bytes:
    """Returns tensors and metadata as a safetensors file.

    Example:
        >>> decoded(encoded({"a": np.float32([1, 2])}, {"round": "3"}))
        ({'a': array([1., 2.], dtype=float32)}, {'round': '3'})
    """
    arrays = {name: np.asarray(value, order="C") for name, value in tensors.items()}
    text, order = header(arrays, metadata)
    return b"".join([len(text).to_bytes(LENGTH_BYTES, "little"), text, *(arrays[name].tobytes() for name in order)])


def decoded(content: bytes) -> tuple[dict[str, np.ndarray], dict[str, str]]:
    """Returns the tensors and the metadata of a safetensors file.

    Raises:
        InputValueError: If it is not intact: every byte must belong to the header or to one tensor.
    """
    try:
        begin = LENGTH_BYTES + int.from_bytes(content[:LENGTH_BYTES], "little")
        fields = loads(content[LENGTH_BYTES:begin].decode())
        metadata = fields.pop(_METADATA, {})
        if begin > len(content) or not all(isinstance(value, str) for value in metadata.values()):
            raise ValueError("its header is cut off, or its metadata is not text")
        tensors, end = {}, 0
        for name, entry in sorted(fields.items(), key=lambda item: item[1]["data_offsets"]):
            dtype, shape, (start, stop) = np.dtype(_DTYPES[entry["dtype"]]), entry["shape"], entry["data_offsets"]
            whole = all(type(value) is int and value >= 0 for value in (*shape, start, stop))
            if not whole or start != end or stop - start != math.prod(shape) * dtype.itemsize:
                raise ValueError("a tensor is not where its header says")
            count, end = math.prod(shape), stop
            tensors[name] = np.frombuffer(content, dtype, count, begin + start).reshape(shape)
        if begin + end != len(content):
            raise ValueError("it is longer or shorter than its tensors")
        return tensors, metadata
    except (ValueError, KeyError, TypeError, AttributeError, IndexError, RecursionError, OverflowError) as error:
        raise InputValueError(f"it is not an intact safetensors file: {error}") from error
