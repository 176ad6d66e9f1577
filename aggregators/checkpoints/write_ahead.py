"""Releases without noise that wait for the checkpoint, so that nothing released is ever computed a second time."""

from collections.abc import Mapping
from typing import Any

import tensorflow_federated as tff
import tree

from tff_mf import validation
from tff_mf.noise.tensorflow import NoiseState

from .manager import CheckpointManager


def without_noise(value: Any) -> Any:
    """Returns a structure, such as the state of a learning process, with `()` in place of each state of noise.

    Formal guarantee: the result has no key and no row of the noise. It can be released, and no process can continue it.

    Args:
        value: A structure of tensors, or of references to them.

    Example:
        >>> import tensorflow as tf
        >>> import tff_mf
        >>> from tff_mf import queries
        >>> query = queries.build_query(tff_mf.Identity(), record_specs=tf.TensorSpec([2]), clip_norm=1.0,
        ...                             noise_multiplier=8.0)
        >>> without_noise({"model": 0.5, "server": query.initial_global_state()})
        {'model': 0.5, 'server': QueryState(noise=())}
    """
    return tree.traverse(lambda part: () if _is_noise(part) else None, value)


def _is_noise(part: object) -> bool:
    # Results of a computation that was serialized are dictionaries.
    return isinstance(part, NoiseState) or (isinstance(part, Mapping) and part.keys() == set(NoiseState._fields))


class WriteAheadReleaseManager(tff.program.ReleaseManager):
    """Releases through another manager, once every save that was started earlier is on disk, and without noise states.

    `tff.learning.programs.train_model` starts saving a round's state and then releasing its metrics and state, all
    concurrently. With this manager, the releases wait for the save, and the other one gets `without_noise` of the
    state.

    Formal guarantee: a value is released only after every save that `checkpoints` started earlier is durable; after a
    save has failed, nothing more is released. No released value has a key or a row of the noise.

    Args:
        release_manager: The manager that releases.
        checkpoints: The manager with which the program saves its state.

    Raises:
        InputTypeError: If an argument is of the wrong type.

    Example:
        checkpoints = CheckpointManager("checkpoints", aggregator=aggregator)
        metrics = WriteAheadReleaseManager(tff.program.LoggingReleaseManager(), checkpoints)
    """

    def __init__(self, release_manager: tff.program.ReleaseManager, checkpoints: CheckpointManager) -> None:
        validation.instance("release_manager", release_manager, tff.program.ReleaseManager, "such as one for CSV files")
        validation.instance("checkpoints", checkpoints, CheckpointManager, "the one that saves the program's state")
        self._release_manager = release_manager
        self._checkpoints = checkpoints

    async def release(self, value: Any, key: Any) -> None:
        """Releases a value without states of noise, once every save that was started earlier is on disk.

        Raises:
            RuntimeError: If a save failed; nothing is released then.
        """
        await self._checkpoints.saved()
        await self._release_manager.release(without_noise(value), key)
