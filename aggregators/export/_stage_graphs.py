"""Turns TFF computations into TensorFlow graphs with a name for every input and output."""

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tff_mf.base.errors import InputTypeError

from ..resident.graphs import behind, node_name

SEPARATOR = "__"
# Constants of at least this size are a model or a matrix, and become inputs.
_LARGE_BYTES = 2**12

# Names of the parts of a parameter or result: one word followed by the path, or a name for each part. None stands for a
# part that must be empty.
Label = str | None | tuple[Any, ...]


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


def without_large_constants(
    graph: StageGraph, prefix: str, known: Mapping[str, np.ndarray] | None = None
) -> tuple[StageGraph, dict[str, np.ndarray]]:
    """Returns a graph with an input in place of every large constant, and the values of these inputs.

    A constant that equals a known value, of an input of another graph, gets its name; others get the prefix with a
    number.
    """
    graph_def = tf.compat.v1.GraphDef()
    graph_def.CopyFrom(graph.graph_def)
    given, values = dict(graph.inputs), dict(known or {})
    for node in graph_def.node:
        if node.op != "Const" or node.attr["value"].tensor.ByteSize() < _LARGE_BYTES:
            continue
        value = tf.make_ndarray(node.attr["value"].tensor)
        equal = (each for each in sorted(values.keys() - given.keys()) if _content(values[each]) == _content(value))
        name = next(equal, f"{prefix}{SEPARATOR}{len(values)}")
        values[name] = value
        kept = node.name
        node.Clear()
        _placeholder(node, kept, tf.as_dtype(value.dtype), tf.TensorShape(value.shape))
        given[name] = f"{kept}:0"
    fed = {name: value for name, value in values.items() if name in given}
    return StageGraph(graph_def=graph_def, inputs=given, outputs=graph.outputs), fed


def _content(value: np.ndarray) -> tuple[np.dtype, tuple[int, ...], bytes]:
    return value.dtype, value.shape, value.tobytes()


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
