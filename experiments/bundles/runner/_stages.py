"""The stages of a bundle: the functions that its SavedModels hold."""

import json
import pathlib
from typing import Any

from ._errors import RefusedError
from ._files import read_regular
from ._names import INITIAL, MANIFEST, SIGNATURE
from ._safetensors import decoded, unique_keys
from ._updates import Tensors, Types

_MOST_MANIFEST_BYTES = 2**24


class Stages:
    """The stages of a bundle, each loaded when it is first called.

    Every stage takes and returns tensors by their full names, such as `state__…`. The model's variables hold a device's
    state during a call of `work`: do not make two calls at a time.

    Formal guarantee: `update` is one release of the mechanism. Its result must be on disk before any part of
    it is published, and of two results for one state at most one may ever be published.

    Args:
        folder: The bundle.

    Raises:
        RefusedError: If it has no intact manifest.
    """

    def __init__(self, folder: pathlib.Path) -> None:
        self.folder = folder
        try:
            raw = read_regular(folder / MANIFEST, _MOST_MANIFEST_BYTES)
            self.manifest = json.loads(raw.decode(), object_pairs_hook=unique_keys)
            self.described = self.manifest["stages"]
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise RefusedError(f"bundle={str(folder)!r} has no intact {MANIFEST}: {error}") from error
        self._loaded: dict[str, Any] = {}

    @property
    def update_types(self) -> Types:
        """Type of each tensor of a device's update."""
        return self.described["work"]["outputs"]

    @property
    def most_devices(self) -> int | None:
        """The most devices that a sum of integers has room for; `None` if sums are floats."""
        grid = self.manifest.get("grid")
        return None if grid is None else int(grid["max_clients"])

    def initialize(self) -> dict[str, Any]:
        """Returns the server's state before the first round."""
        return self._run("initialize", decoded(read_regular(self.folder / INITIAL))[0])

    def prepare(self, state: Tensors) -> dict[str, Any]:
        """Returns what the devices of a round are sent: the part of the state that they may see."""
        return self._run("prepare", state)

    def work(self, examples: Tensors, sent: Tensors) -> dict[str, Any]:
        """Returns a device's clipped update; it depends on the order of the examples."""
        return self._run("work", {**examples, **sent})

    def zero(self) -> dict[str, Any]:
        """Returns a sum of no updates."""
        return self._run("zero", {})

    def accumulate(self, total: Tensors, update: Tensors) -> dict[str, Any]:
        """Returns a sum with one more update in it."""
        return self._run("accumulate", {**total, **update})

    def merge(self, total: Tensors, other: Tensors) -> dict[str, Any]:
        """Returns the sum of two sums."""
        renamed = {f"other{name.removeprefix('sum')}": value for name, value in other.items()}
        return self._run("merge", {**total, **renamed})

    def report(self, total: Tensors) -> dict[str, Any]:
        """Returns the part of a sum that `update` takes."""
        return self._run("report", total)

    def update(self, state: Tensors, report: Tensors) -> tuple[dict[str, Any], dict[str, Any]]:
        """Returns the state of the next round, with the noised model, and measurements of the noise."""
        result = self._run("update", {**state, **report})
        kept = {name: value for name, value in result.items() if name.startswith("state__")}
        return kept, {name: value for name, value in result.items() if name not in kept}

    def replay(self, keys: Any) -> dict[str, Any]:
        """Returns the rows of noise of a state, drawn again from the keys of the rounds so far."""
        return self._run("replay", {**decoded(read_regular(self.folder / INITIAL))[0], "keys": keys})

    def signature(self, path: str) -> Any:
        """Returns the function of a SavedModel of the bundle."""
        import tensorflow as tf

        # A signature does not keep its SavedModel alive.
        if path not in self._loaded:
            self._loaded[path] = tf.saved_model.load(str(self.folder / path))
        return self._loaded[path].signatures[SIGNATURE]

    def _run(self, stage: str, values: Tensors) -> dict[str, Any]:
        import tensorflow as tf

        described = self.described[stage]
        given = {name: tf.convert_to_tensor(values[name]) for name in described["inputs"]}
        found = self.signature(described["path"])(**given)
        return {name: found[name] for name in described["outputs"]}
