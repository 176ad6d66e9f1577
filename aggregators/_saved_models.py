"""Stages on disk: as SavedModels, and as TensorFlow Lite where it can convert them."""

import dataclasses
import pathlib
import re
from typing import Any

import tensorflow as tf

from ._stage_graphs import StageGraph

SIGNATURE = "serving_default"
_REASON_LENGTH = 500


@dataclasses.dataclass(frozen=True, kw_only=True)
class Lite:
    """A stage for TensorFlow Lite, or why there is none.

    Attributes:
        content: The file, or `None`.
        reason: Why there is none, or an empty text.
    """

    content: bytes | None
    reason: str = ""


def save(graph: StageGraph, folder: pathlib.Path) -> dict[str, Any]:
    """Writes a stage as a SavedModel with one signature, and returns types of its inputs and outputs."""
    imported = tf.compat.v1.wrap_function(lambda: tf.import_graph_def(graph.graph_def, name=""), [])
    taken, given = (
        [imported.graph.get_tensor_by_name(name) for name in names.values()] for names in (graph.inputs, graph.outputs)
    )
    function = imported.prune(taken, given)
    specs = [
        tf.TensorSpec(tensor.shape, tensor.dtype, name=name) for name, tensor in zip(graph.inputs, taken, strict=True)
    ]

    @tf.function(input_signature=specs, autograph=False)
    def stage(*values: tf.Tensor) -> dict[str, tf.Tensor]:
        return dict(zip(graph.outputs, tf.nest.flatten(function(*values)), strict=True))

    module = tf.Module()
    module.stage = stage
    tf.saved_model.save(module, str(folder), signatures={SIGNATURE: stage})
    return {
        "inputs": {name: _type(tensor) for name, tensor in zip(graph.inputs, taken, strict=True)},
        "outputs": {name: _type(tensor) for name, tensor in zip(graph.outputs, given, strict=True)},
    }


def lite(folder: pathlib.Path) -> Lite:
    """Returns a SavedModel converted for TensorFlow Lite, with the operations that it needs TensorFlow for."""
    converter = tf.lite.TFLiteConverter.from_saved_model(str(folder))
    converter.target_spec.supported_ops = [tf.lite.OpsSet.TFLITE_BUILTINS, tf.lite.OpsSet.SELECT_TF_OPS]
    converter.experimental_enable_resource_variables = True
    try:
        return Lite(content=converter.convert())
    # The converter raises whatever its parts raise, and whatever it is, there is no file.
    except Exception as error:
        return Lite(content=None, reason=_reason(str(error)))


def _reason(message: str) -> str:
    custom = re.search(r"^Custom ops: (.*)$", message, re.MULTILINE)
    if custom:
        return f"TensorFlow Lite has no {custom[1]}, and SELECT_TF_OPS does not have it either."
    return message.strip().splitlines()[0][:_REASON_LENGTH] if message.strip() else "TensorFlow Lite does not say why."


def _type(tensor: tf.Tensor) -> dict[str, Any]:
    return {"dtype": tensor.dtype.name, "shape": tensor.shape.as_list()}
