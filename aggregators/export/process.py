"""Exports a learning process as files that a server and devices run without TFF."""

import collections
import os
import pathlib
from collections.abc import Mapping
from typing import Any

import numpy as np
import safetensors.numpy
import tensorflow as tf
import tensorflow_federated as tff

from tff_mf import _validate
from tff_mf.errors import InputTypeError, InputValueError

from ..checkpoints import checkpoint_file
from ..computations import forms as tff_forms
from ..factories import record_sums
from ..factories.factory import MFAggregationFactory
from . import _saved_models, lite
from ._stage_graphs import (
    SEPARATOR,
    Label,
    StageGraph,
    node_name,
    reachable,
    stage_graph,
    with_inputs_for,
    without_large_constants,
)

INITIAL = "server/initial.safetensors"
LITE = "device/work.tflite"
_WEIGHTS = ("state", "global_model_weights")
_CONSTANT = "constant"
_NOISE = f"{SEPARATOR}noise"
_FINGERPRINT = f"{_NOISE}{SEPARATOR}fingerprint"
_SECRETS = tuple(f"{_NOISE}{SEPARATOR}{part}" for part in ("keys", "rows"))
_MAP_REDUCE = ("prepare", "work", "zero", "accumulate", "merge", "report", "update")
_DISTRIBUTE_AGGREGATE = (
    *("server_prepare", "server_to_client_broadcast", "client_work"),
    *("client_to_server_aggregation", "server_result"),
)
# How parameter and result of each part of the map-reduce form are called. The parts that are None are secure sums.
_LABELS: dict[str, tuple[Label, Label]] = {
    "prepare": ("state", "sent"),
    "work": (("examples", "sent"), ("update", None, None, None)),
    "zero": (None, "sum"),
    "accumulate": (("sum", "update"), "sum"),
    "merge": (("sum", "other"), "sum"),
    "report": ("sum", "report"),
    "update": (("state", ("report", None, None, None)), ("state", "metrics")),
}


def export_process(
    process: tff.learning.templates.LearningProcess,
    folder: str | os.PathLike[str],
    *,
    initial_weights: tff.learning.models.ModelWeights,
    batch_size: int,
    client_epochs: int = 1,
    max_examples: int | None = None,
    aggregator: MFAggregationFactory | None = None,
) -> dict[str, Any]:
    """Writes a learning process as TFF's forms and as SavedModels that plain TensorFlow runs, stage by stage.

    | file | what it is |
    |---|---|
    | `forms/map_reduce/*.pb`, `forms/distribute_aggregate/*.pb` | TFF's computations, serialized |
    | `server/{initialize,prepare,zero,accumulate,merge,report,update}/` | SavedModels for the server |
    | `server/replay/` | with `aggregator`: SavedModel from the keys of past rounds to the state of the noise |
    | `server/initial.safetensors` | what `initialize` (and `replay`) is fed: the initial model, matrices |
    | `device/work/` | SavedModel for the device: from examples, and what the server sent, to a clipped update |
    | `device/work.tflite` | the same for TensorFlow Lite, where that can convert it |

    Inputs and outputs are called `state__…`, `sent__…`, `examples__…`, `update__…`, `sum__…`, `report__…` and
    `metrics__…`. A device trains on the examples it feeds, in that order, at most `max_examples` of them, in batches.

    Every stage fails for an input of another type or shape than it names, if it computes anything of it. `accumulate`
    clips what it is given, whatever a device sent; of the sum, `sum__…__clipped` and `sum__…__zeroed` count the values
    that it scaled or made zero. They are for the operator alone: `report` drops them. `replay` takes `keys`, and of
    `initial.safetensors` what its inputs name; its result has the names and the values of the state's noise, so that a
    stored state needs its keys alone.

    Formal guarantee: the server's graphs are those of `process`: one chain of `update`, each fed the state that the
    one before returned, draws a fresh key in every call and has the guarantee of the aggregator. A state that is fed
    twice, with both results released, has none. What the device is given depends on the state only through `sent__…`,
    and it is checked that the graph of `prepare` computes nothing of that from rows of noise or from keys.

    Args:
        process: The process, with an aggregator of `build_mf_aggregator`.
        folder: Where to write; made if need be.
        initial_weights: The model that training starts from.
        batch_size: Examples in a batch of a device.
        client_epochs: Passes over its examples that a device makes.
        max_examples: Examples that a device uses at most in one round, over all passes; None for all.
        aggregator: The aggregator in the process, whose noise `replay` draws again; without it there is no such stage.

    Returns:
        A description, as JSON: the types of every stage and form, bytes of every graph, and why there is no file for
        TensorFlow Lite if there is none.

    Raises:
        InputTypeError: If the process is none of TFF's learning processes, or has a part that is no tensor.
        InputValueError: If the model's batches have no first dimension that is free, sums are secure or do not clip,
            clients are sent what is computed from noise, or `aggregator` is another one than that of the process.
    """
    _validate.instance("process", process, tff.learning.templates.LearningProcess, "such as federated averaging's")
    batch_size = _validate.whole("batch_size", batch_size)
    client_epochs = _validate.whole("client_epochs", client_epochs)
    max_examples = None if max_examples is None else _validate.whole("max_examples", max_examples)
    if aggregator is not None:
        _validate.instance("aggregator", aggregator, MFAggregationFactory, "pass what build_mf_aggregator returns")
    folder = pathlib.Path(folder)
    as_written = tff_forms.as_written()
    form = tff.backends.mapreduce.get_map_reduce_form_for_computation(process.next, as_written)
    if form.securely_aggregates_tensors:
        raise InputValueError("process has secure sums, which a SavedModel cannot have; export it without them.")
    aggregate_form = record_sums.distribute_aggregate_form(process.next)
    forms = _write_forms(folder / "forms" / "map_reduce", form, _MAP_REDUCE)
    forms |= _write_forms(folder / "forms" / "distribute_aggregate", aggregate_form, _DISTRIBUTE_AGGREGATE)

    graphs = {name: _graph(name, getattr(form, name)) for name in _MAP_REDUCE if name != "work"}
    _check_clips(graphs["accumulate"])
    _check_secrets_stay(graphs["prepare"])
    work = _on_examples(form.work, batch_size=batch_size, client_epochs=client_epochs, max_examples=max_examples)
    start = tff.backends.mapreduce.get_state_initialization_computation(process.initialize, as_written)
    graphs["initialize"], fed = _initialization(start, initial_weights)
    if aggregator is not None:
        graphs["replay"], constants = _replay(aggregator, graphs["initialize"], fed, initial_weights)
        fed |= constants
    stages = {}
    # Before anything is in it: no file of it is ever open to others.
    checkpoint_file.close(folder / "server")
    for name, graph in {**graphs, "work": _graph("work", work)}.items():
        place = f"{'device' if name == 'work' else 'server'}/{name}"
        stages[name] = {
            "path": place,
            "graph_bytes": graph.graph_def.ByteSize(),
            **_saved_models.save(graph, folder / place),
        }
    _write_private(folder / INITIAL, fed)
    converted = lite.convert_to_lite(folder / "device" / "work")
    if converted.content is not None:
        (folder / LITE).write_bytes(converted.content)
    return {
        "process": str(process.next.type_signature),
        "forms": forms,
        "stages": stages,
        "lite": {"path": None if converted.content is None else LITE, "reason": converted.reason},
        "batch_size": batch_size,
        "client_epochs": client_epochs,
        "max_examples": max_examples,
    }


def export_computation(
    computation: tff.Computation, folder: str | os.PathLike[str], *, inputs: str, outputs: str
) -> dict[str, Any]:
    """Writes a computation that is all TensorFlow, such as a tokenizer, as a SavedModel with names.

    Args:
        computation: The computation, without placements, from tensors to tensors.
        folder: Where to write.
        inputs: What its parameter is called; parts of it have their path behind that, after `__`.
        outputs: What its result is called.

    Returns:
        Types of `inputs` and `outputs` by name, as JSON.

    Raises:
        InputTypeError: If it has a part that is no tensor.
    """
    return _saved_models.save(stage_graph(computation, inputs=inputs, outputs=outputs), pathlib.Path(folder))


def _graph(name: str, computation: tff.Computation) -> StageGraph:
    taken, given = _LABELS[name]
    return stage_graph(computation, inputs=taken, outputs=given)


def _write_forms(folder: pathlib.Path, form: Any, names: tuple[str, ...]) -> dict[str, str]:
    folder.mkdir(parents=True)
    types = {}
    for name in names:
        computation = getattr(form, name)
        content = tff.framework.serialize_computation(computation).SerializeToString(deterministic=True)
        (folder / f"{name}.pb").write_bytes(content)
        types[f"{folder.name}/{name}"] = str(computation.type_signature)
    return types


def _on_examples(
    work: tff.Computation, *, batch_size: int, client_epochs: int, max_examples: int | None
) -> tff.Computation:
    """Returns the client's work on a tensor of examples: a data set is nothing that can be fed from outside."""
    sequence, sent = work.type_signature.parameter
    if not isinstance(sequence, tff.SequenceType):
        raise InputTypeError(f"process takes {sequence} of a client; only data sets of batches can be exported.")
    for batch in tff.structure.flatten(sequence.element):
        if not batch.shape or batch.shape[0] is not None:
            raise InputValueError(f"process takes batches of {batch}; their first dimension must be free.")

    @tff.tensorflow.computation(sequence.element, sent)
    def on_examples(examples: Any, sent: Any) -> Any:
        batches = tf.data.Dataset.from_tensor_slices(_containers(examples))
        batches = batches.repeat(client_epochs) if client_epochs > 1 else batches
        batches = batches.take(max_examples) if max_examples is not None else batches
        return work(batches.batch(batch_size), sent)

    return on_examples


def _check_secrets_stay(prepare: StageGraph) -> None:
    """Raises if anything that devices are sent is computed from rows of noise or their keys."""
    read = reachable(prepare)
    for name, tensor in prepare.inputs.items():
        if node_name(tensor) in read and any(secret in name for secret in _SECRETS):
            raise InputValueError(f"process sends its clients what it computes from {name}, which is secret.")


def _check_clips(accumulate: StageGraph) -> None:
    """Raises if a sum does not clip: a server that runs the stages has nothing else that bounds what a device sends."""
    if not any(name.endswith(f"{SEPARATOR}clipped") for name in accumulate.outputs):
        raise InputValueError(
            "process has a sum that does not clip, so that its stages would trust every device: export one with the "
            "aggregator of build_mf_aggregator, without adaptive_clipping, whose clip norm a sum does not see."
        )


def _replay(
    aggregator: MFAggregationFactory,
    initialize: StageGraph,
    fed: Mapping[str, np.ndarray],
    initial_weights: tff.learning.models.ModelWeights,
) -> tuple[StageGraph, dict[str, np.ndarray]]:
    """Returns the graph from keys to the state of the noise, and what else it is fed."""
    (fingerprint,) = (name for name in initialize.outputs if name.endswith(_FINGERPRINT))
    if _value(initialize, fingerprint).astype("<i8").tobytes().hex() != aggregator.fingerprint:
        raise InputValueError("aggregator is another one than that of process: pass the one that it was built with.")
    dimension = sum(int(np.size(weight)) for weight in initial_weights.trainable)
    computation = aggregator.replay_computation(dimension=dimension)
    noise = fingerprint.removesuffix(_FINGERPRINT) + _NOISE
    constants = {name: value for name, value in fed.items() if name.startswith(f"{_CONSTANT}{SEPARATOR}")}
    return without_large_constants(stage_graph(computation, inputs="keys", outputs=noise), _CONSTANT, constants)


def _value(graph: StageGraph, output: str) -> np.ndarray:
    """Returns an output that depends on no input."""
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        tf.import_graph_def(graph.graph_def, name="")
        return session.run(graph.outputs[output])


def _initialization(
    computation: tff.Computation, initial_weights: tff.learning.models.ModelWeights
) -> tuple[StageGraph, dict[str, np.ndarray]]:
    """Returns a graph without model and matrices, and what it is fed in their place."""
    graph = stage_graph(computation, outputs=_WEIGHTS[0])
    prefix = SEPARATOR.join(_WEIGHTS)
    names = [name for name in graph.outputs if name.startswith(f"{prefix}{SEPARATOR}")]
    weights = [np.asarray(weight) for weight in (*initial_weights.trainable, *initial_weights.non_trainable)]
    if len(names) != len(weights):
        raise InputValueError(f"initial_weights has {len(weights)} tensors, and the process {len(names)}.")
    fed, passed = {}, {}
    for name, weight in zip(names, weights, strict=True):
        given = f"model{name.removeprefix(prefix)}"
        fed[given] = weight
        passed[name] = given, tf.TensorSpec(weight.shape, weight.dtype)
    graph, constants = without_large_constants(with_inputs_for(graph, passed), _CONSTANT)
    return graph, {**fed, **constants}


def _write_private(path: pathlib.Path, tensors: Mapping[str, np.ndarray]) -> None:
    with open(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600), "wb") as file:
        file.write(safetensors.numpy.save({name: np.ascontiguousarray(value) for name, value in tensors.items()}))


def _containers(value: Any) -> Any:
    """Returns a structure of TFF's as one of Python's."""
    if not isinstance(value, tff.structure.Struct):
        return value
    parts = [(name, _containers(part)) for name, part in tff.structure.iter_elements(value)]
    if any(name is None for name, _ in parts):
        return tuple(part for _, part in parts)
    return collections.OrderedDict(parts)
