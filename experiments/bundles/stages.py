"""The stages of a bundle, with the tokenizer and the device's work for TensorFlow Lite."""

import functools
import pathlib
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from tff_mf.errors import InputValueError

from ..output import native_output
from . import runner
from ._manifest import read_manifest
from .names import TOKENIZE
from .runner import Tensors as Tensors

INITIAL = runner.INITIAL


class Stages(runner.Stages):
    """The stages of a bundle, with its tokenizer and the device's work for TensorFlow Lite.

    Args:
        folder: The bundle.

    Raises:
        InputValueError: If the manifest is missing or damaged.
    """

    def __init__(self, folder: pathlib.Path) -> None:
        self._checked, _ = read_manifest(folder)
        super().__init__(folder)

    def tokenize(self, sentences: list[str]) -> dict[str, np.ndarray]:
        """Returns sentences as examples."""
        found = self.signature(TOKENIZE)(sentences=tf.constant(sentences, tf.string))
        return {name: value.numpy() for name, value in found.items()}

    def lite_work(self, examples: Tensors, sent: Tensors) -> dict[str, np.ndarray]:
        """Returns the result of `work`, computed by TensorFlow Lite.

        Raises:
            InputValueError: If the bundle has no file for it.
        """
        fed = {name: np.asarray(value) for name, value in {**examples, **sent}.items()}
        return self._lite(**{name: fed[name] for name in self.described["work"]["inputs"]})

    def types(self, stage: str) -> tuple[dict[str, Any], dict[str, Any]]:
        """Returns the types of the inputs and outputs of a stage's SavedModel."""
        signature = self.signature(self.described[stage]["path"])
        found = (signature.structured_input_signature[1], signature.structured_outputs)
        taken, given = (
            {name: {"dtype": spec.dtype.name, "shape": spec.shape.as_list()} for name, spec in specs.items()}
            for specs in found
        )
        return taken, given

    @functools.cached_property
    def _lite(self) -> Callable[..., dict[str, np.ndarray]]:
        lite = self._checked.lite
        if lite["path"] is None:
            raise InputValueError(f"bundle={str(self.folder)!r} has no file for TensorFlow Lite: {lite['reason']}")
        # It logs its delegates as information, whatever the log level is.
        with native_output.without("INFO: "):
            self._interpreter = tf.lite.Interpreter(str(self.folder / lite["path"]))
            self._interpreter.allocate_tensors()
        return self._interpreter.get_signature_runner(runner.SIGNATURE)
