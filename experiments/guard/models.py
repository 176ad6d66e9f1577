"""Models of private training: those that are refused, since what they assign would be lost; names of their weights."""

import dataclasses
import gc
import re
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

# Private in TensorFlow, which orders operations by it: which of a graph's variables are read only. Nothing public says.
from tensorflow.python.framework import auto_control_deps_utils

from tff_mf.base.errors import InputTypeError, InputValueError

# TensorFlow compiles what DATASET_REDUCE does for each client anew: rounds take up to three times as long, and the
# worker's memory grows with each client. TensorFlow Lite, on the other hand, has no iterators.
SIMULATION_LOOP = tff.learning.LoopImplementation.DATASET_ITERATOR
DEVICE_LOOP = tff.learning.LoopImplementation.DATASET_REDUCE


@dataclasses.dataclass(frozen=True, kw_only=True)
class Weights:
    """Of a model, the number of its trainable parameters, and the names of its weights that train, and of the others.

    A functional model has no variables: its weights are called by their places.
    """

    dimension: int
    trainable: list[str]
    non_trainable: list[str]


def checked_weights(model_fn: Any) -> Weights:
    """Returns the weights of TFF's model, whose training assigns to no variable but metrics.

    TFF's clients get the server's values of all variables, and return changes of the trainable ones alone. A layer that
    keeps statistics of its batches, such as `BatchNormalization`, trains with these and is released with the initial
    ones.

    Raises:
        InputTypeError: If it is no model.
        InputValueError: If its forward pass of training assigns to a variable.
    """
    if isinstance(model_fn, tff.learning.models.FunctionalModel):
        trainable, others = (tf.nest.flatten(part) for part in model_fn.initial_weights)
        return Weights(
            dimension=sum(np.size(weight) for weight in trainable),
            trainable=[f"trainable/{index}" for index in range(len(trainable))],
            non_trainable=[f"non_trainable/{index}" for index in range(len(others))],
        )
    if isinstance(model_fn, tf.keras.Model) or not callable(model_fn):
        raise InputTypeError(
            f"model_fn={type(model_fn).__name__} must be a function that returns a TFF model, such as "
            "tff.learning.models.from_keras_model(...), or a FunctionalModel."
        )
    with tf.Graph().as_default():
        model = model_fn()
        if not isinstance(model, tff.learning.models.VariableModel):
            raise InputTypeError(
                f"model_fn returns {type(model).__name__}, and must return a tff.learning.models.VariableModel, such "
                "as tff.learning.models.from_keras_model(...)."
            )
        assigned = _assigned(model)
    # TensorFlow leaves frames of the trace in a cycle. They would hold the caller's frame, and with it a training and
    # its worker, until Python happens to look for cycles.
    gc.collect()
    if assigned:
        raise InputValueError(
            f"model_fn's model assigns to {assigned[0]!r} while it trains, as BatchNormalization does to its "
            "statistics: no client's value comes back to the server, so that the released model would have the initial "
            "one. Use GroupNormalization or LayerNormalization; or freeze the layer, with trainable=False or by "
            "calling it with training=False."
        )
    names = _names([*model.trainable_variables, *model.non_trainable_variables])
    counted = len(model.trainable_variables)
    dimension = sum(variable.shape.num_elements() for variable in model.trainable_variables)
    return Weights(dimension=dimension, trainable=names[:counted], non_trainable=names[counted:])


def _assigned(model: tff.learning.models.VariableModel) -> list[str]:
    """Returns the names of variables that the forward pass of training assigns to, without metrics."""
    forward_pass = tf.function(lambda batch: model.forward_pass(batch, training=True).loss)
    graph = forward_pass.get_concrete_function(model.input_spec).graph
    only_read = set(auto_control_deps_utils.get_read_only_resource_input_indices_graph(graph))
    assigned = {id(tensor) for index, tensor in enumerate(graph.inputs) if index not in only_read}
    handles = {id(handle) for handle, tensor in graph.captures if id(tensor) in assigned}
    metrics = {id(variable.handle) for variable in model.local_variables}
    variables = [*model.trainable_variables, *model.non_trainable_variables]
    # Of variables that the model does not name, states of random generators are integers, and harmless.
    variables += [variable for variable in graph.variables if variable.dtype.is_floating]
    return [variable.name for variable in variables if id(variable.handle) in handles - metrics]


def names_in_a_new_graph(build: Callable[[], Sequence[Any]]) -> list[str]:
    """Returns the name of each variable that `build` makes, once: `dense/kernel` and not `dense_7/kernel:0`.

    Keras numbers the layers of a graph. In a graph of their own, the names do not depend on what the process built
    before, so that two processes give a weight the same name.
    """
    with tf.Graph().as_default():
        return _names(build())


def _names(variables: Sequence[Any]) -> list[str]:
    return unique([re.sub(r":\d+$", "", variable.name) for variable in variables])


def unique(names: Sequence[str]) -> list[str]:
    """Returns names of which none occurs twice.

    Example:
        >>> unique(["kernel", "bias", "kernel", "kernel_1"])
        ['kernel', 'bias', 'kernel_2', 'kernel_1']
    """
    taken: list[str] = []
    for name in names:
        number, free = 0, name
        while free in taken or (number and free in names):
            number += 1
            free = f"{name}_{number}"
        taken.append(free)
    return taken
