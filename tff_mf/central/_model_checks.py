"""Models that central training refuses, because a gradient would depend on several examples, or on none."""

import re
from typing import Any

import tensorflow as tf

from tff_mf import validation
from tff_mf.errors import InputValueError

# Operations that change a variable, or a table.
_UPDATE = re.compile(r"^(Assign|ResourceScatter|ResourceApply|ResourceSparseApply|Scatter|LookupTableI)")
_NORMALIZATIONS = (tf.keras.layers.BatchNormalization,)


def check(model: Any) -> None:
    """Raises unless single examples' gradients of a model can be computed: as far as its layers show.

    Formal guarantee: with `check_graph`, a model that passes changes no variable when a gradient is computed, so that
    all that training leaves of an example is its clipped gradient.

    Raises:
        InputTypeError: If it is not a Keras model.
        InputValueError: If it is refused.
    """
    validation.instance("model", model, tf.keras.Model, "pass a Keras model")
    if not model.built:
        raise InputValueError("model is not built: call it on one example, or give its first layer an input_shape.")
    for layer in model._flatten_layers():
        if isinstance(layer, _NORMALIZATIONS) and layer.trainable:
            raise InputValueError(
                f"model has the layer {layer.name!r}, a {type(layer).__name__}, which computes with all examples of a "
                "batch and stores their statistics without noise: use GroupNormalization or LayerNormalization, or "
                "set trainable=False on it."
            )
    if not model.trainable_variables:
        raise InputValueError("model has no trainable variables.")
    for variable in model.trainable_variables:
        if variable.dtype != tf.float32:
            raise InputValueError(
                f"model has the variable {variable.name!r} of type {variable.dtype.name}: gradients are clipped in "
                "float32; make the model with variables of float32."
            )
    _check_losses(model)
    if tf.config.list_physical_devices("GPU") and tf.config.experimental.tensor_float_32_execution_enabled():
        raise InputValueError(
            "TensorFloat-32 is enabled, with which clipped gradients exceed their norm by up to a thousandth: call "
            "tf.config.experimental.enable_tensor_float_32_execution(False)."
        )
    if tf.distribute.get_strategy().num_replicas_in_sync > 1:
        raise InputValueError("model is on several replicas, each of which would draw noise of its own: use one.")


def check_graph(model: tf.keras.Model, graph: Any) -> None:
    """Raises if a graph that computes a model's gradients changes variables, or if the model added losses to it.

    Raises:
        InputValueError: If it does.
    """
    _check_losses(model)
    definition = graph.as_graph_def()
    nodes = [*definition.node, *(node for function in definition.library.function for node in function.node_def)]
    found = sorted({node.name for node in nodes if _UPDATE.match(node.op)})
    if found:
        raise InputValueError(
            f"model updates variables when it is trained, in {found[0]!r}: their values are without noise. Take layers "
            "without such state, or set trainable=False on them."
        )


def _check_losses(model: tf.keras.Model) -> None:
    if model.losses:
        raise InputValueError(
            "model has losses of its own, from a regularizer or add_loss, which are not clipped: take them out; for "
            "weight decay use an optimizer that has it, such as AdamW."
        )
