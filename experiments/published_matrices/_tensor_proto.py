"""Reads serialized TensorProtos without TensorFlow: float64 tensors as `tf.io.serialize_tensor` writes them.

It knows only the fields that such a tensor has: dtype (field 1), shape (field 2), content (field 4).
"""

import math
import os
from collections.abc import Iterator

import numpy as np

from tff_mf.errors import InputValueError

MAX_FILE_BYTES = 2**30

_DTYPE, _SHAPE, _CONTENT = 1, 2, 4
_DIMENSION, _SIZE = 2, 1
_FLOAT64 = 2
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5


def read(path: str | os.PathLike[str]) -> np.ndarray:
    """Returns the tensor of a file.

    Raises:
        InputValueError: If there is no such file, or it is not a single intact float64 tensor.
    """
    try:
        with open(path, "rb") as file:
            data = file.read(MAX_FILE_BYTES + 1)
        if len(data) > MAX_FILE_BYTES:
            raise InputValueError(f"it is larger than {MAX_FILE_BYTES} bytes")
        return parse(data)
    except OSError as error:
        raise InputValueError(f"path={os.fspath(path)!r} cannot be read: {error.strerror or error}.") from None
    except InputValueError as error:
        raise InputValueError(f"path={os.fspath(path)!r} is not a serialized float64 tensor: {error}.") from None


def parse(data: bytes) -> np.ndarray:
    """Returns the tensor of a serialized TensorProto.

    Raises:
        InputValueError: If it is not a single intact float64 tensor.
    """
    dtype, shape, content = 0, [], b""
    for field, value in _fields(data):
        if field == _DTYPE and isinstance(value, int):
            dtype = value
        elif field == _SHAPE and isinstance(value, bytes):
            shape = [_size(dimension) for number, dimension in _fields(value) if number == _DIMENSION]
        elif field == _CONTENT and isinstance(value, bytes):
            content = value
    if dtype != _FLOAT64:
        raise InputValueError(f"its dtype is {dtype}, and must be {_FLOAT64}, float64")
    if 8 * math.prod(shape) != len(content):
        raise InputValueError(f"its shape {shape} needs {8 * math.prod(shape)} bytes, and it has {len(content)}")
    return np.frombuffer(content, dtype="<f8").reshape(shape)


def _size(dimension: int | bytes) -> int:
    sizes = [value for number, value in _fields(dimension if isinstance(dimension, bytes) else b"") if number == _SIZE]
    # Sizes of 0 are not written. A negative size, which means unknown, has ten bytes and is above 2^63.
    size = sizes[-1] if sizes else 0
    if not isinstance(size, int) or size >= 2**63:
        raise InputValueError("a dimension of its shape is unknown")
    return size


def _fields(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Yields the number and value of each field of a message."""
    place = 0
    while place < len(data):
        key, place = _varint(data, place)
        number, kind = key >> 3, key & 7
        if kind == _VARINT:
            value, place = _varint(data, place)
            yield number, value
            continue
        if kind == _BYTES:
            length, place = _varint(data, place)
        elif kind in (_FIXED64, _FIXED32):
            length = 8 if kind == _FIXED64 else 4
        else:
            raise InputValueError(f"byte {place} has the invalid wire type {kind}")
        if length > len(data) - place:
            raise InputValueError("it was cut off")
        yield number, data[place : place + length]
        place += length


def _varint(data: bytes, place: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 70, 7):
        if place == len(data):
            raise InputValueError("it was cut off")
        byte = data[place]
        place += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, place
    raise InputValueError("it has a number of more than ten bytes")
