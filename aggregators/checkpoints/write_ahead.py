"""Releases that wait for the checkpoint: what has left the program is never computed a second time."""

from typing import Any

import tensorflow_federated as tff

from tff_mf import _validate

from .manager import CheckpointManager


class WriteAheadReleaseManager(tff.program.ReleaseManager):
    """Releases through another manager, once every checkpoint that was begun before is on disk.

    `tff.learning.programs.train_model` begins to save a round's state and then to release its metrics
    and its model, all at the same time. Wrapped in this, the releases come second.

    Formal guarantee: a value is released only after every save that `checkpoints` began before is
    durable; after one that failed nothing is released any more.

    Args:
        release_manager: What releases.
        checkpoints: What the program saves its state with.

    Raises:
        InputTypeError: If an argument is of the wrong type.

    Example:
        checkpoints = CheckpointManager("checkpoints", aggregator=aggregator)
        metrics = WriteAheadReleaseManager(tff.program.LoggingReleaseManager(), checkpoints)
    """

    def __init__(self, release_manager: tff.program.ReleaseManager, checkpoints: CheckpointManager) -> None:
        _validate.instance("release_manager", release_manager, tff.program.ReleaseManager, "such as one for CSV files")
        _validate.instance("checkpoints", checkpoints, CheckpointManager, "the one that saves the program's state")
        self._release_manager = release_manager
        self._checkpoints = checkpoints

    async def release(self, value: Any, key: Any) -> None:
        """Releases a value, when every checkpoint that was begun before is on disk.

        Raises:
            RuntimeError: If one could not be saved; nothing is released then.
        """
        await self._checkpoints.saved()
        await self._release_manager.release(value, key)
