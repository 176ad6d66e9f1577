"""Models that private training refuses, because what their training assigns to variables would be lost."""

import gc
from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

# Private in TensorFlow, which orders operations by it: which of a graph's variables are read only. Nothing public says.
from tensorflow.python.framework import auto_control_deps_utils

from tff_mf.base.errors import InputTypeError, InputValueError


def checked_dimension(model_fn: Any) -> int:
    """Returns the number of trainable parameters of TFF's model, whose training assigns to no variable but metrics.

    TFF's clients get the server's values of all variables, and return changes of the trainable ones alone. A layer that
    keeps statistics of its batches, such as `BatchNormalization`, trains with these and is released with the initial
    ones.

    Raises:
        InputTypeError: If it is no model.
        InputValueError: If its forward pass of training assigns to a variable.
    """
    if isinstance(model_fn, tff.learning.models.FunctionalModel):
        # It has no variables: its weights are arguments.
        return sum(np.size(weight) for weight in tf.nest.flatten(model_fn.initial_weights[0]))
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
    return sum(variable.shape.num_elements() for variable in model.trainable_variables)


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
