"""Graphs of the stages of an export, made from the parts of a process's map-reduce form."""

import collections
import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tff_mf.base.errors import InputTypeError, InputValueError

from ..factories.factory import MFAggregationFactory
from ..resident.graphs import node_name
from ._stage_graphs import (
    SEPARATOR,
    Label,
    StageGraph,
    reachable,
    stage_graph,
    with_inputs_for,
    without_large_constants,
)

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
