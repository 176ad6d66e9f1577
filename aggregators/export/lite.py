"""Converts SavedModels to TensorFlow Lite, where that is possible."""

import dataclasses
import os
import re

import tensorflow as tf
from flatbuffers import flexbuffers
from tensorflow.lite.python import schema_py_generated as schema

_REASON_LENGTH = 500
_FLEX = b"Flex"


@dataclasses.dataclass(frozen=True, kw_only=True)
class LiteModel:
    """A TensorFlow Lite model, or the reason why the SavedModel could not be converted.

    Attributes:
        content: Content of the file, or `None`.
        reason: Why there is no file; empty if there is one.
    """

    content: bytes | None
    reason: str = ""


def convert_to_lite(saved_model: str | os.PathLike[str]) -> LiteModel:
    """Returns a SavedModel converted to TensorFlow Lite, with TensorFlow operations where Lite has none.

    The same SavedModel always gives the same file. It runs where the Flex delegate is linked in, as in TensorFlow's own
    Python package. A model that cannot be converted is not an error: the result says why.

    Args:
        saved_model: Folder of the SavedModel.
    """
    converter = tf.lite.TFLiteConverter.from_saved_model(os.fspath(saved_model))
    converter.target_spec.supported_ops = [tf.lite.OpsSet.TFLITE_BUILTINS, tf.lite.OpsSet.SELECT_TF_OPS]
    converter.experimental_enable_resource_variables = True
    try:
        content = converter.convert()
    # The converter passes on any exception of its parts.
    except Exception as error:
        return LiteModel(content=None, reason=_reason(str(error)))
    return LiteModel(content=_in_order(content))


def _in_order(content: bytes) -> bytes:
    """Returns a model with the attributes of each Flex operation sorted: the converter writes them in any order."""
    model = schema.Model.GetRootAs(content, 0)
    graphs = (model.Subgraphs(index) for index in range(model.SubgraphsLength()))
    operators = (graph.Operators(index) for graph in graphs for index in range(graph.OperatorsLength()))
    for operator in operators:
        code = model.OperatorCodes(operator.OpcodeIndex()).CustomCode()
        if code is None or not code.startswith(_FLEX):
            continue
        options = operator.CustomOptionsAsNumpy().tobytes()
        written = flexbuffers.GetRoot(options).AsVector[1].AsStringBytes
        ordered = tf.compat.v1.NodeDef.FromString(written).SerializeToString(deterministic=True)
        # The length stays, so that no offset changes; equal bytes elsewhere are equal attributes.
        if len(ordered) != len(written):
            raise ValueError("TensorFlow Lite wrote an operation whose length changes when it is serialized again.")
        content = content.replace(written, ordered)
    return content


def _reason(message: str) -> str:
    custom = re.search(r"^Custom ops: (.*)$", message, re.MULTILINE)
    if custom:
        return f"TensorFlow Lite has no {custom[1]}, and SELECT_TF_OPS does not have it either."
    return message.strip().splitlines()[0][:_REASON_LENGTH] if message.strip() else "TensorFlow Lite does not say why."
