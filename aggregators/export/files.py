"""Writes stages as SavedModels, and converts these to TensorFlow Lite, where that is possible."""

import dataclasses
import hashlib
import os
import pathlib
import re
from typing import Any

import tensorflow as tf
from flatbuffers import flexbuffers
from tensorflow.core.protobuf import saved_model_pb2
from tensorflow.lite.python import schema_py_generated as schema

from .stages import StageGraph

SIGNATURE = "serving_default"
_GRADIENT, _SHARED = "_gradient_op_type", "shared_name"
_RANDOM = re.compile(rb"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_ASSETS, _FINGERPRINT, _GRAPHS = "assets", "fingerprint.pb", "saved_model.pb"


def save(graph: StageGraph, folder: pathlib.Path) -> dict[str, Any]:
    """Writes a stage as a SavedModel with one signature, and returns the types of its inputs and outputs.

    Formal guarantee: the graph fails unless every input that an output is computed from has the rank and dimensions
    returned here. TensorFlow does not enforce a signature: in a call by signature, or from another language, a scalar
    would be broadcast to the shape of the tensor that it is added to.
    """
    named = _canonical(graph.graph_def)
    imported = tf.compat.v1.wrap_function(lambda: tf.import_graph_def(named, name=""), [])
    taken, given = (
        [imported.graph.get_tensor_by_name(name) for name in names.values()] for names in (graph.inputs, graph.outputs)
    )
    function = imported.prune(taken, given)
    specs = [
        tf.TensorSpec(tensor.shape, tensor.dtype, name=name) for name, tensor in zip(graph.inputs, taken, strict=True)
    ]

    @tf.function(input_signature=specs, autograph=False)
    def stage(*values: tf.Tensor) -> dict[str, tf.Tensor]:
        checked = [tf.ensure_shape(value, spec.shape) for value, spec in zip(values, specs, strict=True)]
        return dict(zip(graph.outputs, tf.nest.flatten(function(*checked)), strict=True))

    module = tf.Module()
    module.stage = stage
    tf.saved_model.save(module, str(folder), signatures={SIGNATURE: stage})
    _sort_nodes(folder / _GRAPHS)
    # Unused: an empty folder, and hashes of the graphs before they were put in order.
    (folder / _ASSETS).rmdir()
    (folder / _FINGERPRINT).unlink()
    return {
        "inputs": {name: _type(tensor) for name, tensor in zip(graph.inputs, taken, strict=True)},
        "outputs": {name: _type(tensor) for name, tensor in zip(graph.outputs, given, strict=True)},
    }


def _canonical(graph_def: tf.compat.v1.GraphDef) -> tf.compat.v1.GraphDef:
    """Returns a graph without names that vary: of custom gradients, and of lookup tables.

    Names of custom gradients count what a process has built before, and TensorFlow refuses to save them in graphs that
    it imported; stages are not differentiated. TensorFlow names tables at random. Here, a hash of the graph names them:
    different graphs get different names, since tables with the same name are one table in a process.
    """
    changed = tf.compat.v1.GraphDef()
    changed.CopyFrom(graph_def)
    nodes = [*changed.node, *(node for function in changed.library.function for node in function.node_def)]
    places: dict[bytes, int] = {}
    named = [node.attr[_SHARED] for node in nodes if _SHARED in node.attr]
    for node in nodes:
        node.attr.pop(_GRADIENT, None)
    for attribute in named:
        for drawn in _RANDOM.findall(attribute.s):
            places.setdefault(drawn, len(places))
        attribute.s = _RANDOM.sub(lambda match: b"#%d" % places[match[0]], attribute.s)
    if places:
        content = hashlib.sha256(changed.SerializeToString(deterministic=True)).hexdigest()
        for attribute in named:
            attribute.s = re.sub(rb"#(\d+)", lambda match: b"%s_%s" % (content.encode(), match[1]), attribute.s)
    return changed


def _sort_nodes(path: pathlib.Path) -> None:
    """Sorts the nodes of functions: TensorFlow prunes graphs in the order of memory addresses, which varies.

    Nodes are referred to by name, so that their order within a function has no effect.
    """
    saved = saved_model_pb2.SavedModel.FromString(path.read_bytes())
    for meta_graph in saved.meta_graphs:
        for function in meta_graph.graph_def.library.function:
            nodes = sorted(function.node_def, key=lambda node: node.name)
            del function.node_def[:]
            function.node_def.extend(nodes)
    path.write_bytes(saved.SerializeToString(deterministic=True))


def _type(tensor: tf.Tensor) -> dict[str, Any]:
    return {"dtype": tensor.dtype.name, "shape": tensor.shape.as_list()}


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
    return LiteModel(content=_sort_attributes(content))


def _sort_attributes(content: bytes) -> bytes:
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
