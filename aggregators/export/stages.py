"""Stages of an export as TensorFlow graphs with a name for every input and output, from a process's map-reduce form."""

import collections
import dataclasses
import pathlib
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tff_mf.base.errors import InputTypeError, InputValueError

from ..resident.graphs import behind, node_name

SEPARATOR = "__"
# Constants of at least this size are a model or a matrix, and become inputs.
_LARGE_BYTES = 2**12

# Names of the parts of a parameter or result: one word followed by the path, or a name for each part. None stands for a
# part that must be empty.
Label = str | None | tuple[Any, ...]

_WEIGHTS = ("state", "global_model_weights")
_CONSTANT = "constant"
_SECRETS = ("__noise__keys", "__noise__rows")
# Names of the parameter and result of each part of the map-reduce form. Secure sums' names are None.
_LABELS: dict[str, tuple[Label, Label]] = {
    "prepare": ("state", "sent"),
    "work": (("examples", "sent"), ("update", None, None, None)),
    "zero": (None, "sum"),
    "accumulate": (("sum", "update"), "sum"),
    "merge": (("sum", "other"), "sum"),
    "report": ("sum", "report"),
    "update": (("state", ("report", None, None, None)), ("state", "metrics")),
}
PARTS = tuple(_LABELS)


@dataclasses.dataclass(frozen=True, kw_only=True)
class StageGraph:
    """A graph, whose variables and tables are initialized before they are read, and the public names of its tensors."""

    graph_def: tf.compat.v1.GraphDef
    inputs: Mapping[str, str]
    outputs: Mapping[str, str]


def stage_graph(computation: tff.Computation, *, inputs: Label = None, outputs: Label) -> StageGraph:
    """Returns the graph of a computation of TensorFlow only."""
    parts = tff.framework.serialize_computation(computation).tensorflow
    graph_def = tf.compat.v1.GraphDef()
    parts.graph_def.Unpack(graph_def)
    _run_before_readers(graph_def, parts.initialize_op)
    signature = computation.type_signature
    taken = [] if signature.parameter is None else _leaves(parts.parameter, signature.parameter, inputs)
    return StageGraph(
        graph_def=graph_def, inputs=dict(taken), outputs=dict(_leaves(parts.result, signature.result, outputs))
    )


def with_inputs_for(graph: StageGraph, outputs: Mapping[str, tuple[str, tf.TensorSpec]]) -> StageGraph:
    """Returns a graph in which some outputs are inputs that are passed through, without the nodes that made them."""
    graph_def = tf.compat.v1.GraphDef()
    graph_def.CopyFrom(graph.graph_def)
    given, passed = dict(graph.inputs), dict(graph.outputs)
    for output, (name, spec) in outputs.items():
        _placeholder(graph_def.node.add(), name, spec.dtype, spec.shape)
        given[name] = passed[output] = f"{name}:0"
    changed = StageGraph(graph_def=graph_def, inputs=given, outputs=passed)
    needed = reachable(changed) | {node_name(tensor) for tensor in given.values()}
    kept = tf.compat.v1.GraphDef()
    kept.CopyFrom(graph_def)
    del kept.node[:]
    kept.node.extend(node for node in graph_def.node if node.name in needed)
    return dataclasses.replace(changed, graph_def=kept)


def reachable(graph: StageGraph) -> set[str]:
    """Returns the nodes that the outputs are computed from."""
    nodes = {node.name: node for node in graph.graph_def.node}
    return behind(map(node_name, graph.outputs.values()), nodes)


def without_large_constants(graph: StageGraph) -> tuple[StageGraph, dict[str, np.ndarray]]:
    """Returns a graph with an input in place of every large constant, and the values of these inputs."""
    graph_def = tf.compat.v1.GraphDef()
    graph_def.CopyFrom(graph.graph_def)
    given, values = dict(graph.inputs), dict[str, np.ndarray]()
    for node in graph_def.node:
        if node.op != "Const" or node.attr["value"].tensor.ByteSize() < _LARGE_BYTES:
            continue
        value, name = tf.make_ndarray(node.attr["value"].tensor), node.name
        node.Clear()
        _placeholder(node, name, tf.as_dtype(value.dtype), tf.TensorShape(value.shape))
        public = f"{_CONSTANT}{SEPARATOR}{len(values)}"
        values[public], given[public] = value, f"{name}:0"
    return StageGraph(graph_def=graph_def, inputs=given, outputs=graph.outputs), values


def _placeholder(node: tf.compat.v1.NodeDef, name: str, dtype: tf.DType, shape: tf.TensorShape) -> None:
    node.name, node.op = name, "Placeholder"
    node.attr["dtype"].type = dtype.as_datatype_enum
    node.attr["shape"].shape.CopyFrom(shape.as_proto())


def _run_before_readers(graph_def: tf.compat.v1.GraphDef, initialize: str) -> None:
    """Makes every reader of a variable or table depend on `initialize`: a function has no session to run it first."""
    if not initialize:
        return
    nodes = {node.name: node for node in graph_def.node}
    first = behind([node_name(initialize)], nodes)
    readers = {name for name in first if nodes[name].op != "Const"}
    found = True
    while found:
        found = [
            name
            for name, node in nodes.items()
            if name not in readers and any(node_name(each) in readers for each in node.input)
        ]
        readers.update(found)
    for name in sorted(readers - first):
        nodes[name].input.append(f"^{node_name(initialize)}")


def _leaves(binding: Any, type_spec: tff.Type, label: Label) -> Iterator[tuple[str, str]]:
    """Yields the name and tensor of each part of a parameter or result."""
    kind = binding.WhichOneof("binding")
    if isinstance(type_spec, tff.StructType):
        elements = list(tff.structure.iter_elements(type_spec))
        parts = binding.struct.element if elements else []
        for index, ((name, element), part) in enumerate(zip(elements, parts, strict=True)):
            if isinstance(label, str):
                below: Label = f"{label}{SEPARATOR}{index if name is None else name}"
            else:
                below = None if label is None else label[index]
            yield from _leaves(part, element, below)
    elif kind == "tensor" and isinstance(label, str):
        yield label, binding.tensor.tensor_name
    else:
        raise InputTypeError(f"process has a part of type {type_spec}, which cannot be exported as a tensor.")


def save(graph: StageGraph, folder: pathlib.Path) -> dict[str, Any]:
    """Writes a stage as a SavedModel with one signature, and returns the types of its inputs and outputs.

    Formal guarantee: the graph fails unless every input that an output is computed from has the rank and dimensions
    returned here. TensorFlow does not enforce a signature: in a call by signature, or from another language, a scalar
    would be broadcast to the shape of the tensor that it is added to.
    """
    named = tf.compat.v1.GraphDef()
    named.CopyFrom(graph.graph_def)
    for node in (*named.node, *(node for function in named.library.function for node in function.node_def)):
        # Names of custom gradients, which TensorFlow refuses to save in graphs that it imported: stages have none.
        node.attr.pop("_gradient_op_type", None)
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
    tf.saved_model.save(module, str(folder), signatures={"serving_default": stage})
    return {
        "inputs": {name: _type(tensor) for name, tensor in zip(graph.inputs, taken, strict=True)},
        "outputs": {name: _type(tensor) for name, tensor in zip(graph.outputs, given, strict=True)},
    }


def _type(tensor: tf.Tensor) -> dict[str, Any]:
    return {"dtype": tensor.dtype.name, "shape": tensor.shape.as_list()}


def part_graph(name: str, computation: tff.Computation) -> StageGraph:
    """Returns the graph of a part of the map-reduce form."""
    taken, given = _LABELS[name]
    return stage_graph(computation, inputs=taken, outputs=given)


def on_tensors(
    work: tff.Computation, *, batch_size: int, client_epochs: int, max_examples: int | None
) -> tff.Computation:
    """Returns the client's work on tensors of examples, since a data set cannot be an input of a SavedModel."""
    sequence, sent = work.type_signature.parameter
    if not isinstance(sequence, tff.SequenceType):
        raise InputTypeError(f"process takes {sequence} as a client's data; only data sets of batches can be exported.")
    for batch in tff.structure.flatten(sequence.element):
        if not batch.shape or batch.shape[0] is not None:
            raise InputValueError(f"process takes batches of {batch}; their first dimension must be None.")

    @tff.tensorflow.computation(sequence.element, sent)
    def on_examples(examples: Any, sent: Any) -> Any:
        batches = tf.data.Dataset.from_tensor_slices(_containers(examples))
        batches = batches.repeat(client_epochs) if client_epochs > 1 else batches
        batches = batches.take(max_examples) if max_examples is not None else batches
        return work(batches.batch(batch_size), sent)

    return on_examples


def initialization(
    computation: tff.Computation, initial_weights: tff.learning.models.ModelWeights
) -> tuple[StageGraph, dict[str, np.ndarray]]:
    """Returns the graph of the initial state with inputs in place of the model and matrices, and their values."""
    graph = stage_graph(computation, outputs=_WEIGHTS[0])
    prefix = SEPARATOR.join(_WEIGHTS)
    names = [name for name in graph.outputs if name.startswith(f"{prefix}{SEPARATOR}")]
    weights = [np.asarray(weight) for weight in (*initial_weights.trainable, *initial_weights.non_trainable)]
    if len(names) != len(weights):
        raise InputValueError(f"initial_weights has {len(weights)} tensors, but the process has {len(names)}.")
    fed, passed = {}, {}
    for name, weight in zip(names, weights, strict=True):
        given = f"model{name.removeprefix(prefix)}"
        fed[given] = weight
        passed[name] = given, tf.TensorSpec(weight.shape, weight.dtype)
    graph, constants = without_large_constants(with_inputs_for(graph, passed))
    return graph, {**fed, **constants}


def _containers(value: Any) -> Any:
    """Returns a structure of TFF as Python containers."""
    if not isinstance(value, tff.structure.Struct):
        return value
    parts = [(name, _containers(part)) for name, part in tff.structure.iter_elements(value)]
    if any(name is None for name, _ in parts):
        return tuple(part for _, part in parts)
    return collections.OrderedDict(parts)


def check_secrets_stay(prepare: StageGraph) -> None:
    """Raises if anything that is sent to devices is computed from rows of noise or their keys."""
    read = reachable(prepare)
    for name, tensor in prepare.inputs.items():
        if node_name(tensor) in read and any(secret in name for secret in _SECRETS):
            raise InputValueError(f"process computes what it sends to clients from {name}, which is secret.")


def check_clips(accumulate: StageGraph) -> None:
    """Raises if a sum does not clip: in exported stages nothing else bounds a device's contribution."""
    if not any(name.endswith(f"{SEPARATOR}clipped") for name in accumulate.outputs):
        raise InputValueError(
            "process has a sum that does not clip, so that its stages would trust every device: export a process with "
            "the aggregator of build_mf_aggregator, and without adaptive_clipping, whose clip norm is in the state."
        )
