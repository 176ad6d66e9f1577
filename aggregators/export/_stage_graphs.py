"""TensorFlow graphs of TFF computations, with a name for every input and output."""

import dataclasses
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tff_mf.errors import InputTypeError

SEPARATOR = "__"
# Constants from here on are a model or a matrix, and become inputs.
_LARGE_BYTES = 2**12

# How the parts of a parameter or a result are called: by one word with the path behind it, or part by part; None is a
# part that must be empty.
Label = str | None | tuple[Any, ...]


@dataclasses.dataclass(frozen=True, kw_only=True)
class StageGraph:
    """A graph, and what its tensors are called from outside.

    Attributes:
        graph_def: The graph; what initializes variables and tables runs before what reads them.
        inputs: Name of each input, with the placeholder that takes it.
        outputs: Name of each output, with the tensor that gives it.
    """

    graph_def: tf.compat.v1.GraphDef
    inputs: Mapping[str, str]
    outputs: Mapping[str, str]


def stage_graph(computation: tff.Computation, *, inputs: Label = None, outputs: Label) -> StageGraph:
    """Returns the graph of a computation that is all TensorFlow.

    Args:
        computation: The computation.
        inputs: What its parameter is called; None if it has none.
        outputs: What its result is called.

    Raises:
        InputTypeError: If it has a part that no tensor stands for, such as a data set or a secure sum.
    """
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
    """Returns a graph in which some outputs are inputs that are passed on, and what computed them is left out.

    Args:
        graph: The graph.
        outputs: For each such output, the name of the input and its type.
    """
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
    return _behind(nodes, map(node_name, graph.outputs.values()))


def node_name(tensor: str) -> str:
    """Returns the node that an input of a node, or an output of the graph, is of."""
    return tensor.removeprefix("^").split(":")[0]


def without_large_constants(
    graph: StageGraph, prefix: str, known: Mapping[str, np.ndarray] | None = None
) -> tuple[StageGraph, dict[str, np.ndarray]]:
    """Returns a graph with an input in the place of every large constant, and what to feed there.

    Args:
        graph: The graph.
        prefix: What such inputs are called, with a number behind it.
        known: What others are fed by names of that kind: the same constant is fed by the same name.
    """
    graph_def = tf.compat.v1.GraphDef()
    graph_def.CopyFrom(graph.graph_def)
    given, values = dict(graph.inputs), dict(known or {})
    for node in graph_def.node:
        if node.op != "Const" or node.attr["value"].tensor.ByteSize() < _LARGE_BYTES:
            continue
        value = tf.make_ndarray(node.attr["value"].tensor)
        name = _name_of(value, {each: values[each] for each in values.keys() - given.keys()})
        name = name or f"{prefix}{SEPARATOR}{len(values)}"
        values[name] = value
        kept = node.name
        node.Clear()
        _placeholder(node, kept, tf.as_dtype(value.dtype), tf.TensorShape(value.shape))
        given[name] = f"{kept}:0"
    fed = {name: value for name, value in values.items() if name in given}
    return StageGraph(graph_def=graph_def, inputs=given, outputs=graph.outputs), fed


def _name_of(value: np.ndarray, known: Mapping[str, np.ndarray]) -> str | None:
    """Returns the first name of the same value, to the bit."""
    content = _content(value)
    return next((name for name in sorted(known) if _content(known[name]) == content), None)


def _content(value: np.ndarray) -> tuple[np.dtype, tuple[int, ...], bytes]:
    return value.dtype, value.shape, value.tobytes()


def _placeholder(node: tf.compat.v1.NodeDef, name: str, dtype: tf.DType, shape: tf.TensorShape) -> None:
    node.name, node.op = name, "Placeholder"
    node.attr["dtype"].type = dtype.as_datatype_enum
    node.attr["shape"].shape.CopyFrom(shape.as_proto())


def _run_before_readers(graph_def: tf.compat.v1.GraphDef, initialize: str) -> None:
    """Lets everything that reads a variable or a table wait for `initialize`: a function has no session to do that."""
    if not initialize:
        return
    nodes = {node.name: node for node in graph_def.node}
    first = _behind(nodes, [node_name(initialize)])
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
    """Yields name and tensor of each part of a parameter or a result."""
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
        raise InputTypeError(f"process has a part of type {type_spec} that cannot be exported as a tensor.")


def _behind(nodes: Mapping[str, tf.compat.v1.NodeDef], names: Iterable[str]) -> set[str]:
    """Returns the nodes of those names, and all that they are computed from."""
    found, waiting = set(), list(names)
    while waiting:
        name = waiting.pop()
        if name not in found:
            found.add(name)
            waiting += map(node_name, nodes[name].input)
    return found
