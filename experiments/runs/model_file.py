"""The file of a trained model: all of its weights by name, those that train and those that do not, in order."""

import json
import pathlib
from collections.abc import Iterable, Mapping

import numpy as np
import safetensors
import safetensors.numpy

from ...base.errors import InputValueError
from .names import MODEL

# One field of the metadata: the format writes several in any order, and equal models have equal files.
_ORDER = "order"


def content(trainable: Mapping[str, np.ndarray], non_trainable: Mapping[str, np.ndarray]) -> bytes:
    """Returns the content of the file of a model.

    The format does not keep the order of tensors, which a model needs to take them: it is in the metadata.

    Args:
        trainable: The weights that train, by their names, in the model's order.
        non_trainable: The others, likewise.
    """
    order = json.dumps([list(trainable), list(non_trainable)])
    return safetensors.numpy.save({**trainable, **non_trainable}, metadata={_ORDER: order})


def names(metadata: Mapping[str, str] | None, tensors: Iterable[str]) -> tuple[list[str], list[str]]:
    """Returns the names of the weights that train, and of the others, each in the model's order.

    Of a file without an order, as of another program, all train: in the order of their numbers, or in none.

    Raises:
        ValueError: If the metadata are not those of the tensors.
    """
    if metadata is None or _ORDER not in metadata:
        return sorted(tensors, key=lambda name: (int(name) if name.isdecimal() else 0, name)), []
    trainable, others = json.loads(metadata[_ORDER])
    if sorted([*trainable, *others]) != sorted(tensors):
        raise ValueError("its metadata name other tensors than it has")
    return trainable, others


def read(content: bytes) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """Returns the weights of a model that train, and the others, by their names, each in the model's order.

    Raises:
        ValueError: If the content is not that of a model.
    """
    try:
        tensors = safetensors.numpy.load(content)
        header = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])
        trainable, others = names(header.get("__metadata__"), tensors)
        if "__metadata__" not in header and trainable != [str(index) for index in range(len(trainable))]:
            raise ValueError("it does not say in which order a model takes its tensors")
        return {name: tensors[name] for name in trainable}, {name: tensors[name] for name in others}
    except (safetensors.SafetensorError, KeyError, TypeError, OverflowError) as error:
        raise ValueError(str(error)) from error


def read_from(folder: pathlib.Path, file: str = MODEL) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """Returns the trained model in the folder of a run, or another one that is there, as `read` does.

    Raises:
        InputValueError: If it is missing or damaged.
    """
    try:
        return read((folder / file).read_bytes())
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise InputValueError(f"run={str(folder)!r}: {file} is missing or damaged: {reason}. Put it back.") from error
