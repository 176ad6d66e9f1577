"""Checkpoints of a central training: files that only their owner can read, because they have the keys of the noise."""

import hashlib
import io
import pathlib
import zipfile
from collections.abc import Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from tff_mf.base import files
from tff_mf.base.errors import InputValueError

_VERSION = "tff-mf central training 1"
_MODE = 0o600
# What secret batches follow from.
BATCHES = "batches"
# Fields of the state of the noise.
_FINGERPRINT, _ROUND, _KEYS = "noise/0", "noise/1", "noise/2"

Parts = Mapping[str, list[tf.Variable]]


def write(path: pathlib.Path, parts: Parts, state: Any, examples: Any) -> None:
    """Writes the variables of a training, the state of its noise, and a digest of its examples."""
    arrays = {name: variable.numpy() for name, variable in _named(parts, state).items()}
    content = io.BytesIO()
    np.savez(content, version=_VERSION, examples=_digest(examples), **arrays)
    files.write_atomically(path, content.getvalue(), mode=_MODE)


def read(path: pathlib.Path, parts: Parts, state: Any, examples: Any) -> None:
    """Assigns the variables that `write` wrote, or none of them.

    Deletes what a killed process left unfinished beside the file.

    Raises:
        InputValueError: If the file is not a checkpoint of a training with such variables, noise and examples.
        OSError: If it cannot be read.
    """
    files.remove_unfinished(path.parent)
    try:
        with np.load(io.BytesIO(path.read_bytes()), allow_pickle=False) as archive:
            found = {name: archive[name] for name in archive.files}
    except (ValueError, EOFError, KeyError, zipfile.BadZipFile) as error:
        raise InputValueError(f"{path}: it is not a checkpoint, or it is damaged: {error}.") from None
    if str(found.pop("version", None)) != _VERSION:
        raise InputValueError(f"{path}: it is not a checkpoint of the format {_VERSION!r}.")
    if str(found.pop("examples", None)) != _digest(examples):
        raise InputValueError(
            f"{path}: it is of a training on other examples, or in another order: an example that changes its place "
            "would take part in other rounds. Pass the same arrays."
        )
    variables = _named(parts, state)
    wrong = sorted(set(found) ^ set(variables)) + [
        name for name in sorted(set(found) & set(variables)) if not _fits(variables[name], found[name])
    ]
    if wrong:
        raise InputValueError(f"{path}: {wrong[0]} differs from this training's: pass the same model and arguments.")
    if not np.array_equal(found[_FINGERPRINT], state.noise.fingerprint.numpy()):
        raise InputValueError(
            f"{path}: its noise is of another training: mechanism, clip_norm, noise_multiplier, order or insecure_seed "
            "differ. Pass the same arguments."
        )
    step, keys = int(found[_ROUND]), found[_KEYS]
    if not 0 <= step <= len(keys) or np.any(keys[step:]):
        raise InputValueError(f"{path}: it says that {step} rounds have run, and has keys of others: it is damaged.")
    # If this is interrupted, all other noise can be computed from the keys and the number of rounds. Rounds go on with
    # the batches that they began with.
    first = [name for name in found if name.startswith(f"{BATCHES}/")] + [_KEYS, _ROUND]
    for name in [*first, *(found.keys() - set(first))]:
        variables[name].assign(found[name])


def _named(parts: Parts, state: Any) -> dict[str, tf.Variable]:
    every = {**parts, "noise": tf.nest.flatten(state)}
    return {f"{part}/{index}": each for part, list_ in every.items() for index, each in enumerate(list_)}


def _fits(variable: tf.Variable, value: np.ndarray) -> bool:
    return variable.shape.is_compatible_with(value.shape) and variable.dtype.as_numpy_dtype == value.dtype


def _digest(examples: Any) -> str:
    """Returns a digest of all examples, in their order."""
    digest = hashlib.sha256()
    for tensor in tf.nest.flatten(examples):
        array = tensor.numpy()
        digest.update(repr((array.dtype.str, array.shape)).encode())
        # Strings are objects, whose bytes are their addresses in memory.
        digest.update(repr(array.tolist()).encode() if array.dtype == object else array.tobytes())
    return digest.hexdigest()
