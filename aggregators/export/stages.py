"""Stages of an export as TensorFlow graphs with a name for every input and output, from a process's map-reduce form."""

import collections
import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tff_mf.base.errors import InputTypeError, InputValueError

from ..factory import MFAggregationFactory
from ..resident.graphs import behind, node_name

SEPARATOR = "__"
# Constants of at least this size are a model or a matrix, and become inputs.
_LARGE_BYTES = 2**12

# Names of the parts of a parameter or result: one word followed by the path, or a name for each part. None stands for a
# part that must be empty.
Label = str | None | tuple[Any, ...]

_WEIGHTS = ("state", "global_model_weights")
_CONSTANT = "constant"
_NOISE = f"{SEPARATOR}noise"
_SECRETS = tuple(f"{_NOISE}{SEPARATOR}{part}" for part in ("keys", "rows"))
_FINGERPRINT = f"{_NOISE}{SEPARATOR}fingerprint"
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
    graph, constants = without_large_constants(with_inputs_for(graph, passed), _CONSTANT)
    return graph, {**fed, **constants}


def replay(
    aggregator: MFAggregationFactory,
    initialize: StageGraph,
    fed: Mapping[str, np.ndarray],
    initial_weights: tff.learning.models.ModelWeights,
) -> tuple[StageGraph, dict[str, np.ndarray]]:
    """Returns the graph from keys to the state of the noise, and the values of its other inputs."""
    dimension = dimension_of(initial_weights)
    if aggregator.grid == "auto":
        # Only with its own number of bits does it have a fingerprint.
        aggregator = dataclasses.replace(aggregator, grid=aggregator.grid_for(dimension))
    (fingerprint,) = (name for name in initialize.outputs if name.endswith(_FINGERPRINT))
    if _value(initialize, fingerprint).astype("<i8").tobytes().hex() != aggregator.fingerprint:
        raise InputValueError("aggregator is not the one in process: pass the one that process was built with.")
    computation = aggregator.replay_computation(dimension=dimension)
    noise = fingerprint.removesuffix(_FINGERPRINT) + _NOISE
    constants = {name: value for name, value in fed.items() if name.startswith(f"{_CONSTANT}{SEPARATOR}")}
    return without_large_constants(stage_graph(computation, inputs="keys", outputs=noise), _CONSTANT, constants)


def dimension_of(weights: tff.learning.models.ModelWeights) -> int:
    """Returns the number of coordinates of an update."""
    return sum(int(np.size(weight)) for weight in weights.trainable)


def _value(graph: StageGraph, output: str) -> np.ndarray:
    """Returns the value of an output that depends on no input."""
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        tf.import_graph_def(graph.graph_def, name="")
        return session.run(graph.outputs[output])


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
