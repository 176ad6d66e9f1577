"""What a client's data must be, so that a worker can train on it: asked before anything is computed on it."""

from collections.abc import Sequence
from typing import Any

import tensorflow as tf
from tensorflow.core.framework import graph_pb2

from tff_mf.base.errors import InputValueError

from ..sampling.data_source import check_ends

# TFF sends no larger dataset.
MOST_DATASET_BYTES = 100 * 1024**2
# A message to a worker, or a tensor in it, is no larger.
_MOST_LIST_BYTES = 2 * 1000**3
# TensorFlow's number for: nothing is written to stderr about random operations, which the worker may draw anew.
_ANY_STATE = 1


def check_sent(argument: str, whose: str, elements: tf.data.Dataset | Sequence[Any]) -> None:
    """Raises unless a worker can read a client's data to its end.

    Args:
        argument: The name of the argument that the data are of.
        whose: Which client's they are, in words.
        elements: The client's dataset, or a list of its elements.

    Raises:
        InputValueError: If a dataset has no end or calls Python, or the data are too large to be sent.
    """
    if not isinstance(elements, tf.data.Dataset):
        size = sum(array.nbytes for array in tf.nest.flatten(elements))
        _check_size(argument, whose, size, most=_MOST_LIST_BYTES)
        return
    check_ends(argument, whose, elements)
    variant = tf.data.experimental.to_variant(elements)
    sent = tf.raw_ops.DatasetToGraphV2(input_dataset=variant, external_state_policy=_ANY_STATE).numpy()
    _check_size(argument, whose, len(sent), most=MOST_DATASET_BYTES)
    # Elements may contain the word too.
    if b"PyFunc" in sent and (python := _python_operations(sent)):
        raise InputValueError(
            f"{argument}: the dataset of {whose} calls Python (in {python[0]}), as from_generator and py_function do, "
            "and the worker that trains on it is another process: give tf.data.Dataset.from_tensor_slices the arrays, "
            "or read files with TensorFlow's own operations; dataset.save(path) and tf.data.Dataset.load(path) keep "
            "what a generator makes."
        )


def is_empty(elements: tf.data.Dataset | Sequence[Any], *, read: bool) -> bool:
    """Returns whether a dataset, or a list of elements, has no element.

    Args:
        elements: The dataset or list.
        read: Whether the first element is read where the number of elements is not known, as after a filter; it is
            taken to be there otherwise.
    """
    if not isinstance(elements, tf.data.Dataset):
        return not elements
    known = elements.cardinality()
    return bool(known == 0) or (read and bool(known == tf.data.UNKNOWN_CARDINALITY) and not list(elements.take(1)))


def _python_operations(sent: bytes) -> list[str]:
    """Returns the names of operations that call Python in a serialized dataset."""
    graph = graph_pb2.GraphDef.FromString(sent)
    nodes = [*graph.node, *(node for function in graph.library.function for node in function.node_def)]
    return [node.name for node in nodes if "PyFunc" in node.op]


def _check_size(argument: str, whose: str, size: int, *, most: int) -> None:
    if size > most:
        raise InputValueError(
            f"{argument}: the data of {whose} are {size:,} bytes, and at most {most:,} of a client can be sent to the "
            "worker: keep them in files, with dataset.save(path), and pass tf.data.Dataset.load(path), which the "
            "worker reads itself; or pass fewer, with .take(batches)."
        )
