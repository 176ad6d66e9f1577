"""Checkpoints of a central training: files that only their owner can read, because they have the keys of the noise."""

import hashlib
import pathlib
from collections.abc import Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from tff_mf.base import checkpoint_files, files
from tff_mf.base.errors import InputValueError

# What secret batches follow from.
BATCHES = "batches"
# Fields of the state of the noise.
_FINGERPRINT, _ROUND, _KEYS = "noise/0", "noise/1", "noise/2"

Parts = Mapping[str, list[tf.Variable]]


def write(path: pathlib.Path, parts: Parts, state: Any, examples: Any, about: Mapping[str, Any]) -> None:
    """Writes the variables of a training, the state of its noise, a digest of its examples, and facts about it."""
    arrays = {name: variable.numpy() for name, variable in _named(parts, state).items()}
    checkpoint_files.write(path, arrays, {"examples": _digest(examples), "about": about}, replaces=True)


def read(path: pathlib.Path, parts: Parts, state: Any, examples: Any) -> None:
    """Assigns the variables that `write` wrote, or none of them.

    Deletes what a killed process left unfinished beside the file.

    Raises:
        InputValueError: If the file cannot be read, has changed in any bit, or is not a checkpoint of a training with
            such variables, noise and examples.
    """
    files.remove_unfinished(path.parent)
    found, description = checkpoint_files.read(path)
    if "examples" not in description:
        raise InputValueError(f"{path}: it is the checkpoint of a run of clients: pass one that Training.save wrote.")
    if description["examples"] != _digest(examples):
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
