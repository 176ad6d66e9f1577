"""States of a deployment on disk."""

import json
import pathlib
from collections.abc import Mapping
from typing import Any

import numpy as np

from ._files import remove_partial, write_lasting
from ._names import SUFFIX
from ._safetensors import sealed, unsealed
from ._stages import Stages
from ._updates import Tensors

_KEYS, _ROUND = "__noise__keys", "__noise__round"


class StateStore:
    """The states of a deployment: one secret file per round, of which only the newest is kept.

    If the bundle has a stage that draws the rows of noise again, the keys are stored in place of the rows.

    Formal guarantee: `save` returns when the state would survive a power cut, and never replaces the state of a round:
    of two processes that step one state, the second fails. A file of which one bit was changed is refused.

    Args:
        folder: Folder of the states; made if it does not exist.
        stages: The bundle's stages.
    """

    def __init__(self, folder: pathlib.Path, stages: Stages) -> None:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        folder.chmod(0o700)
        remove_partial(folder)
        self._folder, self._stages = folder, stages
        replay = stages.described.get("replay")
        self._drawn = frozenset(replay["outputs"] if replay else ())

    def rounds(self) -> list[int]:
        """Returns the rounds whose states are stored, in order; 0 is the state before the first round."""
        found = (path.name.removesuffix(SUFFIX) for path in self._folder.glob(f"[0-9]*{SUFFIX}"))
        return sorted(int(name) for name in found if name.isdecimal())

    def save(self, state: Tensors, round_number: int, about: Mapping[str, Any]) -> str:
        """Saves the state after a round, with metadata that is stored as JSON; returns the file's SHA-256.

        Raises:
            FileExistsError: If a state of that round exists.
        """
        arrays = {name: np.asarray(value) for name, value in state.items() if name not in self._drawn}
        texts = {name: _text(value[()]) for name, value in arrays.items() if value.dtype.kind in "OSU"}
        tensors = {name: value for name, value in arrays.items() if name not in texts}
        if self._drawn:
            past = int(state[_one(state, _ROUND)])
            tensors["keys"] = np.asarray(state[_one(state, _KEYS)])[:past]
        content, digest = sealed(tensors, {"texts": json.dumps(texts), "about": json.dumps(about)})
        write_lasting(self._path(round_number), content, replaces=False)
        for old in self.rounds()[:-1]:
            self._path(old).unlink()
        return digest

    def read(self, round_number: int) -> tuple[dict[str, Any], dict[str, Any], str]:
        """Returns a state as it is stored, its metadata, and the file's SHA-256.

        Raises:
            RefusedError: If the file is missing or was changed.
        """
        tensors, metadata, digest = unsealed(self._path(round_number))
        return {**tensors, **json.loads(metadata["texts"])}, json.loads(metadata["about"]), digest

    def load(self, round_number: int) -> dict[str, Any]:
        """Returns a state, with its rows of noise drawn again if they are not stored; raises as `read` does."""
        state, _, _ = self.read(round_number)
        return {**state, **self._stages.replay(state.pop("keys"))} if self._drawn else state

    def remove_all(self) -> None:
        """Deletes every state, the newest last."""
        for number in self.rounds():
            self._path(number).unlink()

    def _path(self, round_number: int) -> pathlib.Path:
        return self._folder / f"{round_number:06d}{SUFFIX}"


def _text(value: Any) -> str:
    return value if isinstance(value, str) else bytes(value).decode()


def _one(state: Tensors, ending: str) -> str:
    (name,) = (each for each in state if each.endswith(ending))
    return name
