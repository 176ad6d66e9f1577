"""Reads serialized TensorProtos without TensorFlow: float64 tensors as `tf.io.serialize_tensor` writes them."""

import math
import os

import numpy as np

from tff_mf.base.errors import InputValueError

from ...output import protobufs

MAX_FILE_BYTES = 2**30
_FLOAT64 = 2


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
    try:
        tensor = protobufs.parsed("Tensor", data)
    except ValueError as error:
        raise InputValueError(str(error)) from error
    shape = [dimension.size for dimension in tensor.shape.dimension]
    if tensor.dtype != _FLOAT64:
        raise InputValueError(f"its dtype is {tensor.dtype}, and must be {_FLOAT64}, float64")
    # A negative size means that it is unknown.
    if min(shape, default=0) < 0:
        raise InputValueError("a dimension of its shape is unknown")
    if 8 * math.prod(shape) != len(tensor.content):
        raise InputValueError(f"its shape {shape} needs {8 * math.prod(shape)} bytes, and it has {len(tensor.content)}")
    return np.frombuffer(tensor.content, dtype="<f8").reshape(shape)
