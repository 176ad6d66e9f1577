"""The states of a deployment."""

import pathlib
from collections.abc import Mapping
from typing import Any

import numpy as np

from ...runs.checkpoints import Checkpoints
from ...runs.names import CHECKPOINTS
from ._bundle import Stages, Tensors

_KEYS, _ROUND = "__noise__keys", "__noise__round"
_WEIGHTS = "state__global_model_weights__"
# Texts are stored as bytes.
_TEXT = "text:"


class States(Checkpoints):
    """The states of a deployment, of which only the newest is kept.

    If the bundle has a stage that draws the rows of noise again, the keys are stored in place of the rows.
    """

    def __init__(self, deployment: pathlib.Path, stages: Stages) -> None:
        super().__init__(deployment / CHECKPOINTS, {"bundle": stages.manifest["digest"]})
        self._stages = stages
        replay = stages.described.get("replay")
        self._drawn = frozenset(replay["outputs"] if replay else ())

    def save(self, round_number: int, state: Tensors, about: Mapping[str, Any]) -> None:
        """Saves a state of the stages; see `Checkpoints.save`."""
        kept = {}
        for name in state.keys() - self._drawn:
            array = np.asarray(state[name])
            if array.dtype.kind in "OSU":
                text = array[()]
                kept[_TEXT + name] = np.frombuffer(text.encode() if isinstance(text, str) else bytes(text), np.uint8)
            else:
                kept[name] = array
        if self._drawn:
            past = int(state[_one(state, _ROUND)])
            kept["keys"] = np.asarray(state[_one(state, _KEYS)])[:past]
        super().save(round_number, kept, about)

    def state(self, round_number: int) -> dict[str, Any]:
        """Returns a state, with its rows of noise drawn again if they are not stored."""
        kept, _ = self.load(round_number)
        state: dict[str, Any] = {name: value for name, value in kept.items() if not name.startswith(_TEXT)}
        state |= {name.removeprefix(_TEXT): value.tobytes() for name, value in kept.items() if name.startswith(_TEXT)}
        return {**state, **self._stages.replay(state.pop("keys"))} if self._drawn else state

    def model(self, round_number: int) -> dict[str, np.ndarray]:
        """Returns the model of a state; raises as `state` does."""
        kept, _ = self.load(round_number)
        return {name.removeprefix(_WEIGHTS): value for name, value in kept.items() if name.startswith(_WEIGHTS)}


def _one(state: Tensors, ending: str) -> str:
    (name,) = (each for each in state if each.endswith(ending))
    return name
