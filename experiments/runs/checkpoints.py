"""The states of a run as files, each secret and whole, and only for a run with the same settings."""

import json
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from ...base import checkpoint_files
from .rules import check_same


class Storage(Protocol):
    """Where the states of a run are kept, one for each of the newest rounds."""

    def rounds(self) -> Sequence[int]:
        """Returns the rounds after which a state was saved and is there, in order."""
        ...

    def save(self, round_number: int, state: Any, about: Mapping[str, Any]) -> None:
        """Saves the state after a round with facts about it, and returns when both would survive a power cut."""
        ...

    def about(self, round_number: int) -> Mapping[str, Any]:
        """Returns the facts that were saved with a state."""
        ...


class Checkpoints:
    """The states of one run, of which only the newest is kept. A `Storage`.

    Formal guarantee: `save` returns when the state would survive a power cut, and never replaces the state of a round:
    of two processes that step one state, the second fails. A file in which a bit has changed, or that is of a run with
    other settings, is refused. Folder and files are accessible to their owner only (0700 and 0600).
    """

    def __init__(self, folder: pathlib.Path, settings: Mapping[str, Any]) -> None:
        self._folder, self._settings = folder, json.loads(json.dumps(settings))
        checkpoint_files.make_private(folder)

    def rounds(self) -> list[int]:
        """Returns the rounds after which a state was saved and is there, in order."""
        return checkpoint_files.saved_rounds(self._folder)

    def save(self, round_number: int, state: Mapping[str, Any], about: Mapping[str, Any]) -> None:
        """Saves the state after a round, and deletes the earlier ones."""
        checkpoint_files.write(self._path(round_number), state, {"settings": self._settings, "about": about})
        for old in self.rounds()[:-1]:
            self._path(old).unlink()

    def load(self, round_number: int) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        """Returns the state after a round, whose arrays cannot be written to, and the facts about it."""
        state, kept = checkpoint_files.read(self._path(round_number))
        check_same(self._settings, kept["settings"], run=str(self._folder.parent))
        return state, kept["about"]

    def about(self, round_number: int) -> dict[str, Any]:
        """Returns the facts about the state after a round; raises as `load` does."""
        return self.load(round_number)[1]

    def _path(self, round_number: int) -> pathlib.Path:
        return checkpoint_files.path_of(self._folder, round_number)
