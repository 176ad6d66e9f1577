"""Runs the stages of a bundle with nothing but TensorFlow: no TFF, and no part of tff-mf that needs it."""

import functools
import pathlib
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import safetensors.numpy
import tensorflow as tf

from tff_mf.errors import InputValueError

from .. import native_output
from ._manifest import TOKENIZE, read_manifest

Tensors = Mapping[str, Any]
INITIAL = "server/initial.safetensors"
_SIGNATURE = "serving_default"


class Stages:
    """The stages of a bundle, each loaded when it is first called.

    Every stage takes and returns tensors by their full names, such as `state__…`. A model with variables, such as the
    recurrent one, keeps them between the start and the end of a call of `work`: one call at a time.

    Formal guarantee: `update` is one release of the mechanism. Its result must be on disk before anything of it is
    shown, and no state may be given to it twice with both results shown.

    Args:
        folder: The bundle.

    Raises:
        InputValueError: If it has no intact manifest.
    """

    def __init__(self, folder: pathlib.Path) -> None:
        self._folder = folder
        self._manifest, _ = read_manifest(folder)
        self._loaded: dict[str, Any] = {}

    def initialize(self) -> dict[str, tf.Tensor]:
        """Returns the server's state before the first round."""
        return self._run("initialize", safetensors.numpy.load_file(self._folder / INITIAL))

    def prepare(self, state: Tensors) -> dict[str, tf.Tensor]:
        """Returns what the devices of a round are sent: all that they may see of the state."""
        return self._run("prepare", state)

    def tokenize(self, sentences: list[str]) -> dict[str, np.ndarray]:
        """Returns the examples that sentences make."""
        found = self._signature(TOKENIZE)(sentences=tf.constant(sentences, tf.string))
        return {name: value.numpy() for name, value in found.items()}

    def work(self, examples: Tensors, sent: Tensors) -> dict[str, tf.Tensor]:
        """Returns a device's clipped update; examples count in their order."""
        return self._run("work", {**examples, **sent})

    def lite_work(self, examples: Tensors, sent: Tensors) -> dict[str, np.ndarray]:
        """Returns what `work` does, computed by TensorFlow Lite.

        Raises:
            InputValueError: If the bundle has no file for it.
        """
        fed = {name: np.asarray(value) for name, value in {**examples, **sent}.items()}
        return self._lite(**{name: fed[name] for name in self._manifest.stages["work"]["inputs"]})

    def zero(self) -> dict[str, tf.Tensor]:
        """Returns a sum of no updates."""
        return self._run("zero", {})

    def accumulate(self, total: Tensors, update: Tensors) -> dict[str, tf.Tensor]:
        """Returns a sum with one more update in it."""
        return self._run("accumulate", {**total, **update})

    def merge(self, total: Tensors, other: Tensors) -> dict[str, tf.Tensor]:
        """Returns the sum of two sums."""
        renamed = {f"other{name.removeprefix('sum')}": value for name, value in other.items()}
        return self._run("merge", {**total, **renamed})

    def report(self, total: Tensors) -> dict[str, tf.Tensor]:
        """Returns what `update` is given of a sum."""
        return self._run("report", total)

    def update(self, state: Tensors, report: Tensors) -> tuple[dict[str, tf.Tensor], dict[str, tf.Tensor]]:
        """Returns the state of the next round, with a model that has this round's noise, and figures of the noise."""
        result = self._run("update", {**state, **report})
        kept = {name: value for name, value in result.items() if name.startswith("state__")}
        return kept, {name: value for name, value in result.items() if name not in kept}

    def types(self, stage: str) -> tuple[dict[str, Any], dict[str, Any]]:
        """Returns the types of inputs and outputs that the SavedModel of a stage has."""
        signature = self._signature(self._manifest.stages[stage]["path"])
        found = (signature.structured_input_signature[1], signature.structured_outputs)
        taken, given = (
            {name: {"dtype": spec.dtype.name, "shape": spec.shape.as_list()} for name, spec in specs.items()}
            for specs in found
        )
        return taken, given

    def _run(self, stage: str, values: Tensors) -> dict[str, tf.Tensor]:
        described = self._manifest.stages[stage]
        found = self._signature(described["path"])(
            **{name: tf.convert_to_tensor(values[name]) for name in described["inputs"]}
        )
        return {name: found[name] for name in described["outputs"]}

    def _signature(self, path: str) -> Any:
        # A signature does not keep its model alive.
        if path not in self._loaded:
            self._loaded[path] = tf.saved_model.load(str(self._folder / path))
        return self._loaded[path].signatures[_SIGNATURE]

    @functools.cached_property
    def _lite(self) -> Callable[..., dict[str, np.ndarray]]:
        lite = self._manifest.lite
        if lite["path"] is None:
            raise InputValueError(f"bundle={str(self._folder)!r} has no file for TensorFlow Lite: {lite['reason']}")
        # It logs its delegates as information, at every level that can be set.
        with native_output.without("INFO: "):
            self._interpreter = tf.lite.Interpreter(str(self._folder / lite["path"]))
            self._interpreter.allocate_tensors()
        return self._interpreter.get_signature_runner(_SIGNATURE)
