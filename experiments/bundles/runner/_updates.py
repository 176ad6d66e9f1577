"""Updates of devices: their names, types and shapes are checked before any of them is used."""

import math
import pathlib
from collections.abc import Mapping
from typing import Any

import numpy as np

from ._errors import RefusedError, RefusedUpdateError
from ._files import read_regular
from ._safetensors import decoded

Tensors = Mapping[str, Any]
Types = Mapping[str, Mapping[str, Any]]

_HEADER_BYTES = 4096


def checked(update: Any, types: Types) -> dict[str, np.ndarray]:
    """Returns an update that has exactly these names, types and shapes; nothing is converted or broadcast.

    Raises:
        RefusedUpdateError: If it has others.
    """
    if not isinstance(update, Mapping) or not update:
        raise RefusedUpdateError("empty")
    if update.keys() != types.keys():
        raise RefusedUpdateError("missing leaf" if types.keys() - update.keys() else "extra leaf")
    found = {}
    for name, spec in types.items():
        value = update[name].numpy() if hasattr(update[name], "numpy") else update[name]
        value = np.asarray(value) if isinstance(value, np.generic) else value
        if type(value) is not np.ndarray or value.dtype != np.dtype(spec["dtype"]):
            raise RefusedUpdateError("dtype")
        if list(value.shape) != spec["shape"]:
            raise RefusedUpdateError("shape")
        found[name] = value
    return found


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
