"""Releases that wait for the checkpoint, so that nothing released is ever computed a second time."""

from typing import Any

import tensorflow_federated as tff

from tff_mf import validation

from .manager import CheckpointManager


class WriteAheadReleaseManager(tff.program.ReleaseManager):
    """Releases through another manager, once every save that was started earlier is on disk.

    `tff.learning.programs.train_model` starts saving a round's state and then releasing its metrics and model, all
    concurrently. With this manager, the releases wait for the save.

    Formal guarantee: a value is released only after every save that `checkpoints` started earlier is durable; after a
    save has failed, nothing more is released.

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
        """Releases a value once every save that was started earlier is on disk.

        Raises:
            RuntimeError: If a save failed; nothing is released then.
        """
        await self._checkpoints.saved()
        await self._release_manager.release(value, key)
