"""Models that central training refuses, because a gradient would depend on several examples, or on none."""

import re
from collections.abc import Callable
from typing import Any

import tensorflow as tf
from tensorflow.python.framework import op_def_registry

from tff_mf.base import validation
from tff_mf.base.errors import InputTypeError, InputValueError

Loss = Callable[[Any, Any], tf.Tensor]

# Operations that TensorFlow calls stateful, and that store and write nothing but states of random generators. All
# others of them may leave exact values of examples behind: in variables, tables, queues, files, or Python.
_HARMLESS = re.compile(
    r"^(ReadVariableOp|ResourceGather(Nd)?|VariableShape|Var(Handle|IsInitialized)Op|(Anonymous)?(Mutable)?HashTable(V2)?"
    r"|LookupTable(Find|Size)V2|(Stateful)?PartitionedCall|If|While|Case|Assert|CheckNumerics(V2)?|CudnnRNN\w*"
    r"|Random\w+|Multinomial|ParameterizedTruncatedNormal|TruncatedNormal|SampleDistortedBoundingBox(V2)?"
    r"|RngReadAndSkip|Stateful(Uniform|StandardNormal|Truncated|Random)\w*|\w*CandidateSampler"
    r"|TensorArray\w*|StackV2|StackPopV2|StackCloseV2|StackPushV2)$"
)
# Methods that Keras's own fit calls, and this training does not.
_METHODS_OF_FIT = ("train_step", "make_train_function", "compute_loss")


def check(model: Any) -> None:
    """Raises unless single examples' gradients of a model can be computed: as far as its layers show.

    Formal guarantee: with `check_graph`, a model that passes changes no variable when a gradient is computed, so that
    all that training leaves of an example is its clipped gradient.
    """
    validation.instance("model", model, tf.keras.Model, "pass a Keras model")
    if not model.built:
        raise InputValueError("model is not built: call it on one example, or give its first layer an input_shape.")
    for layer in model._flatten_layers():
        if isinstance(layer, tf.keras.layers.BatchNormalization) and layer.trainable:
            raise InputValueError(
                f"model has the layer {layer.name!r}, a BatchNormalization, which computes with all examples of a "
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
    check_options()
    if tf.distribute.get_strategy().num_replicas_in_sync > 1:
        raise InputValueError("model is on several replicas, each of which would draw noise of its own: use one.")


def check_options() -> None:
    """Raises if TensorFlow's optimizer of graphs shortens numbers: it reads its options whenever a graph is run."""
    options = tf.config.optimizer.get_experimental_options()
    shortened = sorted(name for name, value in options.items() if name.startswith("auto_mixed_precision") and value)
    if shortened:
        raise InputValueError(
            f"TensorFlow's optimizer of graphs has the option {shortened[0]!r}, with which clipped gradients exceed "
            "their norm: set it to False with tf.config.optimizer.set_experimental_options."
        )


def check_compiled(model: tf.keras.Model) -> None:
    """Raises if `fit` of Keras would train a compiled model in another way than with its loss and its optimizer."""
    if getattr(model, "optimizer", None) is None or getattr(model, "loss", None) is None:
        raise InputValueError("model has no optimizer and loss: call model.compile(optimizer, loss) first.")
    # Public functions only serialize it, which fails for losses of one's own.
    weights = model._compile_config.config["loss_weights"]
    if weights is not None:
        raise InputValueError(
            f"model is compiled with loss_weights={weights!r}, which are not read: write the weighted sum as one loss, "
            "a function of targets and outputs, and compile without them."
        )
    for name in _METHODS_OF_FIT:
        if getattr(type(model), name) is not getattr(tf.keras.Model, name):
            raise InputValueError(
                f"model is a {type(model).__name__} with a {name} of its own, which is not called: put what it "
                "computes into the loss, or write a loop of your own with ClippedSum."
            )
    optimizer = model.optimizer
    if isinstance(optimizer, tf.keras.mixed_precision.LossScaleOptimizer):
        raise InputValueError(
            "the model's optimizer scales losses, and clipped gradients are not scaled: take another."
        )
    if type(optimizer).__module__.startswith("tensorflow_privacy"):
        raise InputValueError(
            f"the model's optimizer is {type(optimizer).__name__} of TensorFlow Privacy, which clips and adds noise "
            "itself: take an ordinary one, such as tf.keras.optimizers.SGD."
        )
    if getattr(optimizer, "use_ema", False):
        raise InputValueError(
            "the model's optimizer has use_ema=True, whose averages Keras writes into the weights at the end of fit, "
            "and this training does not: leave it out, and average weights of released models, at no cost of privacy."
        )


def loss_function(loss: Any) -> Loss:
    """Returns a loss of Keras, given by name or as an object, or a function, as Keras's own fit has it."""
    try:
        function = tf.keras.losses.get(loss)
    except (ValueError, TypeError):
        function = None
    if not callable(function):
        raise InputTypeError(f"loss={loss!r} must be one loss of Keras, by name or as an object, or a function.")
    return function if isinstance(function, tf.keras.losses.Loss) else _OfFunction(function)


class _OfFunction(tf.keras.losses.Loss):
    """A function as a loss that leaves out what the output masks."""

    def __init__(self, function: Loss) -> None:
        super().__init__()
        self._function = function

    def call(self, y_true: Any, y_pred: Any) -> tf.Tensor:
        return self._function(y_true, y_pred)


def check_graph(model: tf.keras.Model, graph: Any) -> None:
    """Raises if a graph that computes a model's gradients changes variables, or if the model added losses to it."""
    _check_losses(model)
    stateful = sorted(
        (node.name, node.op) for node in _nodes(graph) if _is_stateful(node.op) and not _HARMLESS.match(node.op)
    )
    if stateful:
        name, op = stateful[0]
        raise InputValueError(
            f"model or loss updates variables, writes or runs Python when it is trained, in {name!r}, a {op}: what it "
            "leaves is without noise. Take layers without such state, or set trainable=False on them."
        )


def check_unseeded(graph: Any) -> None:
    """Raises if a graph has random operations with a seed, for batches that are sampled.

    The places of a batch have random bits of their own. If those are known, as by a seed, and one example fewer is in a
    batch, all that follow it move, and their gradients change: by more than the clip norm of one example.
    """
    seeded = sorted(node.name for node in _nodes(graph) if node.attr["seed"].i or node.attr["seed2"].i)
    if seeded:
        raise InputValueError(
            f"model has random numbers with a seed, in {seeded[0]!r}: with sampled batches, each example that joins "
            "would change the numbers of others. Call tf.random.set_seed(None) before the model is trained, and give "
            "its layers no seed."
        )


def _nodes(graph: Any) -> list[Any]:
    definition = graph.as_graph_def()
    return [*definition.node, *(node for function in definition.library.function for node in function.node_def)]


def _is_stateful(name: str) -> bool:
    # Functions of the library, which TensorFlow may call by their names, are no operations; their own nodes are seen.
    definition = op_def_registry.get(name)
    return definition is not None and definition.is_stateful


def _check_losses(model: tf.keras.Model) -> None:
    if model.losses:
        raise InputValueError(
            "model has losses of its own, from a regularizer or add_loss, which are not clipped: take them out; for "
            "weight decay use an optimizer that has it, such as AdamW."
        )
