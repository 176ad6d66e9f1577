"""Exports a learning process as SavedModels and TensorFlow Lite models, which a server and devices run without TFF.

Its stages are the parts of TFF's map-reduce form, as TensorFlow graphs with a name for every input and output.
"""

import collections
import dataclasses
import os
import pathlib
import re
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import safetensors.numpy
import tensorflow as tf
import tensorflow_federated as tff

from tff_mf.base import checkpoint_files, validation
from tff_mf.base.errors import InputTypeError, InputValueError

from .resident import forms as tff_forms
from .resident.graphs import behind, node_name

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
    proto = tff.framework.serialize_computation(computation).tensorflow
    graph_def = tf.compat.v1.GraphDef()
    proto.graph_def.Unpack(graph_def)
    _run_before_readers(graph_def, proto.initialize_op)
    signature = computation.type_signature
    names = [] if signature.parameter is None else _leaves(proto.parameter, signature.parameter, inputs)
    return StageGraph(
        graph_def=graph_def, inputs=dict(names), outputs=dict(_leaves(proto.result, signature.result, outputs))
    )


def with_inputs_for(graph: StageGraph, outputs: Mapping[str, tuple[str, tf.TensorSpec]]) -> StageGraph:
    """Returns a graph in which some outputs are inputs that are passed through, without the nodes that made them."""
    graph_def = tf.compat.v1.GraphDef()
    graph_def.CopyFrom(graph.graph_def)
    fed, passed = dict(graph.inputs), dict(graph.outputs)
    for output, (name, spec) in outputs.items():
        _placeholder(graph_def.node.add(), name, spec.dtype, spec.shape)
        fed[name] = passed[output] = f"{name}:0"
    changed = StageGraph(graph_def=graph_def, inputs=fed, outputs=passed)
    needed = reachable(changed) | {node_name(tensor) for tensor in fed.values()}
    pruned = tf.compat.v1.GraphDef()
    pruned.CopyFrom(graph_def)
    del pruned.node[:]
    pruned.node.extend(node for node in graph_def.node if node.name in needed)
    return dataclasses.replace(changed, graph_def=pruned)


def reachable(graph: StageGraph) -> set[str]:
    """Returns the nodes that the outputs are computed from."""
    nodes = {node.name: node for node in graph.graph_def.node}
    return behind(map(node_name, graph.outputs.values()), nodes)


def without_large_constants(graph: StageGraph) -> tuple[StageGraph, dict[str, np.ndarray]]:
    """Returns a graph with an input in place of every large constant, and the values of these inputs."""
    graph_def = tf.compat.v1.GraphDef()
    graph_def.CopyFrom(graph.graph_def)
    inputs, values = dict(graph.inputs), dict[str, np.ndarray]()
    for node in graph_def.node:
        if node.op != "Const" or node.attr["value"].tensor.ByteSize() < _LARGE_BYTES:
            continue
        value, name = tf.make_ndarray(node.attr["value"].tensor), node.name
        node.Clear()
        _placeholder(node, name, tf.as_dtype(value.dtype), tf.TensorShape(value.shape))
        public = f"{_CONSTANT}{SEPARATOR}{len(values)}"
        values[public], inputs[public] = value, f"{name}:0"
    return StageGraph(graph_def=graph_def, inputs=inputs, outputs=graph.outputs), values


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
    added = True
    while added:
        added = [
            name
            for name, node in nodes.items()
            if name not in readers and any(node_name(source) in readers for source in node.input)
        ]
        readers.update(added)
    for name in sorted(readers - first):
        nodes[name].input.append(f"^{node_name(initialize)}")


def _leaves(binding: Any, type_spec: tff.Type, label: Label) -> Iterator[tuple[str, str]]:
    """Yields the name and tensor of each part of a parameter or result."""
    kind = binding.WhichOneof("binding")
    if isinstance(type_spec, tff.StructType):
        elements = list(tff.structure.iter_elements(type_spec))
        bindings = binding.struct.element if elements else []
        for index, ((name, element), inner) in enumerate(zip(elements, bindings, strict=True)):
            if isinstance(label, str):
                below: Label = f"{label}{SEPARATOR}{index if name is None else name}"
            else:
                below = None if label is None else label[index]
            yield from _leaves(inner, element, below)
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
    inputs, outputs = (
        [imported.graph.get_tensor_by_name(name) for name in names.values()] for names in (graph.inputs, graph.outputs)
    )
    function = imported.prune(inputs, outputs)
    specs = [
        tf.TensorSpec(tensor.shape, tensor.dtype, name=name) for name, tensor in zip(graph.inputs, inputs, strict=True)
    ]

    @tf.function(input_signature=specs, autograph=False)
    def stage(*values: tf.Tensor) -> dict[str, tf.Tensor]:
        checked = [tf.ensure_shape(value, spec.shape) for value, spec in zip(values, specs, strict=True)]
        return dict(zip(graph.outputs, tf.nest.flatten(function(*checked)), strict=True))

    module = tf.Module()
    module.stage = stage
    tf.saved_model.save(module, str(folder), signatures={"serving_default": stage})
    return {
        "inputs": {name: _type(tensor) for name, tensor in zip(graph.inputs, inputs, strict=True)},
        "outputs": {name: _type(tensor) for name, tensor in zip(graph.outputs, outputs, strict=True)},
    }


def _type(tensor: tf.Tensor) -> dict[str, Any]:
    return {"dtype": tensor.dtype.name, "shape": tensor.shape.as_list()}


def part_graph(name: str, computation: tff.Computation) -> StageGraph:
    """Returns the graph of a part of the map-reduce form."""
    inputs, outputs = _LABELS[name]
    return stage_graph(computation, inputs=inputs, outputs=outputs)


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
        public = f"model{name.removeprefix(prefix)}"
        fed[public] = weight
        passed[name] = public, tf.TensorSpec(weight.shape, weight.dtype)
    graph, constants = without_large_constants(with_inputs_for(graph, passed))
    return graph, {**fed, **constants}


def _containers(value: Any) -> Any:
    """Returns a structure of TFF as Python containers."""
    if not isinstance(value, tff.structure.Struct):
        return value
    members = [(name, _containers(inner)) for name, inner in tff.structure.iter_elements(value)]
    if any(name is None for name, _ in members):
        return tuple(inner for _, inner in members)
    return collections.OrderedDict(members)


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


INITIAL = "server/initial.safetensors"
LITE = "device/work.tflite"


def export_process(
    process: tff.learning.templates.LearningProcess,
    folder: str | os.PathLike[str],
    *,
    initial_weights: tff.learning.models.ModelWeights,
    batch_size: int | None,
    client_epochs: int = 1,
    max_examples: int | None = None,
) -> dict[str, Any]:
    """Writes a learning process as SavedModels of its stages, which plain TensorFlow can run.

    | file | content |
    |---|---|
    | `server/{initialize,prepare,zero,accumulate,merge,report,update}/` | SavedModels for the server |
    | `server/initial.safetensors` | inputs of `initialize`: the initial model and matrices |
    | `device/work/` | SavedModel for the device: from examples and what the server sent to a clipped update |
    | `device/work.tflite` | the same for TensorFlow Lite, if it can be converted |

    Inputs and outputs are called `state__…`, `sent__…`, `examples__…`, `update__…`, `sum__…`, `report__…` and
    `metrics__…`. A device trains on its examples in the given order, in batches, on `max_examples` of them at most.

    Every stage fails if an input that it uses has another type or shape than declared. `accumulate` clips its input,
    whatever a device sent; `sum__…__clipped` and `sum__…__zeroed` count the values that it scaled or set to zero. Only
    the operator may see these counts: `report` drops them. On a grid, updates and sums are integers, the last tensor of
    each is a number of clients, which `accumulate` counts itself, and `update` fails if there are more than the grid's
    `max_clients`.

    Formal guarantee: the server has the graphs of `process`: a chain of calls of `update`, each with the state that
    the previous one returned, draws a fresh key in every call and has the guarantee of the aggregator. If a state is
    used twice and both results are released, there is no guarantee. What a device receives depends on the state only
    through `sent__…`, and the export checks that the graph of `prepare` computes none of it from rows of noise or keys.

    Args:
        process: The process, with an aggregator of `build_mf_aggregator`.
        folder: Folder to write to; created if it does not exist.
        initial_weights: The model that training starts from.
        batch_size: Number of examples in a device's batch; `None` for no graphs of devices.
        client_epochs: Number of passes that a device makes over its examples.
        max_examples: Maximum number of examples that a device uses in one round, over all passes; `None` for all.

    Returns:
        A description as JSON: the types of every stage, the bytes of every graph, and, for devices, the reason if
        there is no file for TensorFlow Lite.

    Raises:
        InputTypeError: If the process is not one of TFF's learning processes, or has a part that is not a tensor.
        InputValueError: If the first dimension of the model's batches is fixed, sums are secure or do not clip, or
            clients are sent something computed from noise.
    """
    validation.instance("process", process, tff.learning.templates.LearningProcess, "such as federated averaging's")
    batch_size = None if batch_size is None else validation.whole("batch_size", batch_size)
    client_epochs = validation.whole("client_epochs", client_epochs)
    max_examples = None if max_examples is None else validation.whole("max_examples", max_examples)
    folder = pathlib.Path(folder)
    form = tff.backends.mapreduce.get_map_reduce_form_for_computation(process.next, tff_forms.as_written())
    if form.securely_aggregates_tensors:
        raise InputValueError("process has secure sums, which a SavedModel cannot have; export it without them.")
    graphs = {name: part_graph(name, getattr(form, name)) for name in PARTS if name != "work"}
    check_clips(graphs["accumulate"])
    check_secrets_stay(graphs["prepare"])
    start = tff.backends.mapreduce.get_state_initialization_computation(process.initialize, tff_forms.as_written())
    graphs["initialize"], fed = initialization(start, initial_weights)
    if batch_size is not None:
        work = on_tensors(form.work, batch_size=batch_size, client_epochs=client_epochs, max_examples=max_examples)
        graphs["work"] = part_graph("work", work)
    # Made private while it is empty: no file in it is ever open to others.
    checkpoint_files.close(folder / "server")
    written = {}
    for name, graph in graphs.items():
        path = f"{'device' if name == 'work' else 'server'}/{name}"
        written[name] = {
            "path": path,
            "graph_bytes": graph.graph_def.ByteSize(),
            **save(graph, folder / path),
        }
    initial = {name: np.ascontiguousarray(value) for name, value in fed.items()}
    with open(os.open(folder / INITIAL, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600), "wb") as file:
        file.write(safetensors.numpy.save(initial))
    if batch_size is None:
        return {"stages": written}
    converted = convert_to_lite(folder / "device" / "work")
    if converted.content is not None:
        (folder / LITE).write_bytes(converted.content)
    return {
        "stages": written,
        "lite": {"path": None if converted.content is None else LITE, "reason": converted.reason},
    }


def export_computation(
    computation: tff.Computation, folder: str | os.PathLike[str], *, inputs: str, outputs: str
) -> dict[str, Any]:
    """Writes a computation of TensorFlow only, such as a tokenizer, as a SavedModel with named inputs and outputs.

    Args:
        computation: The computation, without placements, from tensors to tensors.
        folder: Folder to write to.
        inputs: Name of its parameter; the name of a part is followed by `__` and its path.
        outputs: Name of its result.

    Returns:
        Types of `inputs` and `outputs` by name, as JSON.

    Raises:
        InputTypeError: If a part of its parameter or result is not a tensor.
    """
    return save(stage_graph(computation, inputs=inputs, outputs=outputs), pathlib.Path(folder))


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

    It runs where the Flex delegate is linked in, as in TensorFlow's own Python package. A model that cannot be
    converted is not an error: the result says why.

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
    return LiteModel(content=content)


def _reason(message: str) -> str:
    custom = re.search(r"^Custom ops: (.*)$", message, re.MULTILINE)
    if custom:
        return f"TensorFlow Lite has no {custom[1]}, and SELECT_TF_OPS does not have it either."
    return message.strip().splitlines()[0][:500] if message.strip() else "TensorFlow Lite does not say why."
