"""The batches of an order, as tensors."""

from typing import Any

import numpy as np
import tensorflow as tf

from tff_mf.base import validation
from tff_mf.base.errors import InputTypeError, InputValueError
from tff_mf.planning.order import Order
from tff_mf.problem.cohort_secret import CohortSecret


def dataset(order: Order, examples: Any, *, begin: int = 0, secret: CohortSecret | None = None) -> tf.data.Dataset:
    """Returns the batches of the rounds from `begin` on, for a loop of your own.

    The data set repeats secret batches if it is iterated again, and so no amplification holds then. A loop that
    continues after round t must take a data set that begins there, with the same `secret`.

    Args:
        order: The order.
        examples: A structure of arrays, each with one entry for each example.
        begin: The first round.
        secret: What secret batches follow from: see `Order.batches`.

    Returns:
        A data set of structures of tensors, one element for each round; a batch of a sampled order may be empty.

    Raises:
        InputTypeError: If an argument is of the wrong type.
        InputValueError: If an argument is out of range.

    Example:
        >>> order = Order.fixed(examples=4, batch_size=2, epochs=1)
        >>> [batch.shape[0] for batch in dataset(order, tf.ones([4, 3]))]
        [2, 2]
    """
    tensors = checked(order, examples)
    rows = order.batches(begin, order.rounds - validation.whole("begin", begin, at_least=0), secret=secret)

    def batch(row: tf.Tensor) -> Any:
        present = tf.boolean_mask(row, row >= 0)
        return tf.nest.map_structure(lambda tensor: tf.gather(tensor, present), tensors)

    return tf.data.Dataset.from_tensor_slices(rows).map(batch)


def checked(order: Order, examples: Any) -> Any:
    """Returns a structure of arrays as tensors, after checking that each has one entry for each example."""
    tensors = tf.nest.map_structure(_tensor, examples)
    if not tf.nest.flatten(tensors):
        raise InputTypeError(f"examples={examples!r} has no arrays: pass arrays such as x, or (x, y).")
    for tensor in tf.nest.flatten(tensors):
        if tensor.shape.rank == 0 or tensor.shape[0] != order.examples:
            raise InputValueError(
                f"examples has an array of shape {tensor.shape}, but examples={order.examples} in the order: each "
                "array must have one entry for each example."
            )
    return tensors


def _tensor(leaf: Any) -> tf.Tensor:
    # TensorFlow copies NumPy's arrays, but shares the memory of others, which can change.
    return tf.convert_to_tensor(leaf if tf.is_tensor(leaf) or isinstance(leaf, tf.Variable) else np.array(leaf))
