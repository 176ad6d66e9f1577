"""Names of a model's weights, under which its file has them."""

import re
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf
import tensorflow_federated as tff


def of_model(
    model: Callable[[], tff.learning.models.VariableModel] | tff.learning.models.FunctionalModel,
) -> tuple[list[str], list[str]]:
    """Returns the names of the weights of TFF's model that train, and of the others, each in their order.

    A functional model has no variables: its weights are called by their places.
    """
    if isinstance(model, tff.learning.models.FunctionalModel):
        kinds = zip(("trainable", "non_trainable"), model.initial_weights, strict=True)
        placed = ([f"{kind}/{index}" for index in range(len(tf.nest.flatten(part)))] for kind, part in kinds)
        trainable, others = placed
        return trainable, others
    with tf.Graph().as_default():
        made = model()
    counted = len(made.trainable_variables)
    names = unique([_name(each) for each in (*made.trainable_variables, *made.non_trainable_variables)])
    return names[:counted], names[counted:]


def in_a_new_graph(build: Callable[[], Sequence[Any]]) -> list[str]:
    """Returns the name of each variable that `build` makes, once: `dense/kernel` and not `dense_7/kernel:0`.

    Keras numbers the layers of a graph. In a graph of their own, the names do not depend on what the process built
    before, so that two processes give a weight the same name.
    """
    with tf.Graph().as_default():
        return unique([_name(variable) for variable in build()])


def _name(variable: Any) -> str:
    return re.sub(r":\d+$", "", variable.name)


def unique(names: Sequence[str]) -> list[str]:
    """Returns names of which none occurs twice.

    Example:
        >>> unique(["kernel", "bias", "kernel", "kernel_1"])
        ['kernel', 'bias', 'kernel_2', 'kernel_1']
    """
    found: list[str] = []
    for name in names:
        number, free = 0, name
        while free in found or (number and free in names):
            number += 1
            free = f"{name}_{number}"
        found.append(free)
    return found
