"""Files from outside: refused unless regular and intact, read without following links, and never more than expected."""

import math
import os
import pathlib
import shutil
import stat
from collections.abc import Mapping
from typing import Any, BinaryIO

import numpy as np

from ....base.errors import InputValueError
from ....base.tensor_files import decoded

Tensors = Mapping[str, Any]
Types = Mapping[str, Mapping[str, Any]]

SUFFIX = ".safetensors"
_MOST_BYTES = 2**40
_HEADER_BYTES = 4096


class RefusedUpdateError(InputValueError):
    """An update that is not added to the sum; the message is one of `report_counts.REASONS`."""


def open_regular(path: pathlib.Path) -> BinaryIO:
    """Returns a regular file, opened for reading; anything else is not opened, or not read."""
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


def remove(path: pathlib.Path) -> None:
    """Deletes a file, or a folder with everything in it; does nothing if there is none."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def checked(update: Tensors, types: Types) -> dict[str, np.ndarray]:
    """Returns an update that has exactly these names, types and shapes; nothing is converted or broadcast."""
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
    """Returns the update in a device's file, and its metadata; a file that is too large for one is not read."""
    size = sum(np.dtype(spec["dtype"]).itemsize * math.prod(spec["shape"]) for spec in types.values())
    header = _HEADER_BYTES + 256 * len(types) + 2 * sum(map(len, types))
    try:
        tensors, about = decoded(read_regular(path, 8 + header + size))
    except RefusedUpdateError:
        raise
    except InputValueError as error:
        raise RefusedUpdateError("damaged") from error
    return checked(tensors, types), about
