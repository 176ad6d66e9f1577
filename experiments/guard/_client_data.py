"""What a client's data must be, so that a worker can train on it: asked before anything is computed on it."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import tensorflow as tf
from tensorflow.core.framework import graph_pb2

from tff_mf.base.errors import InputValueError

# TFF sends no larger dataset.
MOST_DATASET_BYTES = 100 * 1024**2
# A message to a worker, or a tensor in it, is no larger.
_MOST_LIST_BYTES = 2 * 1000**3
_IGNORED_STATE = 1


def check_sent(argument: str, data: Mapping[str, Any]) -> None:
    """Raises unless a worker can read each client's data to its end.

    Args:
        argument: The name of the argument that the data are of.
        data: For each client, a dataset or a list of elements, by the words for whose it is.

    Raises:
        InputValueError: If a dataset has no end or calls Python, or is too large to be sent.
    """
    for whose, elements in data.items():
        if isinstance(elements, tf.data.Dataset):
            _check_dataset(argument, whose, elements)
        else:
            arrays = tf.nest.flatten(elements)
            _check_size(argument, whose, sum(array.nbytes for array in arrays), most=_MOST_LIST_BYTES)


def check_ends(argument: str, whose: str, dataset: tf.data.Dataset) -> None:
    """Raises if a dataset is known to have no end.

    Raises:
        InputValueError: If it has none.
    """
    if dataset.cardinality() == tf.data.INFINITE_CARDINALITY:
        raise InputValueError(
            f"{argument}: the dataset of {whose} has no end, so that a round on it would have none either: bound it "
            "with .take(batches), or give .repeat the number of local epochs."
        )


def without_elements(data: Iterable[Any]) -> list[int]:
    """Returns the places of datasets, or lists of elements, in which there is no element."""
    return [place for place, elements in enumerate(data) if _is_empty(elements)]


def _check_dataset(argument: str, whose: str, dataset: tf.data.Dataset) -> None:
    check_ends(argument, whose, dataset)
    variant = tf.data.experimental.to_variant(dataset)
    sent = tf.raw_ops.DatasetToGraphV2(input_dataset=variant, external_state_policy=_IGNORED_STATE).numpy()
    _check_size(argument, whose, len(sent), most=MOST_DATASET_BYTES)
    # Elements may contain the word too.
    if b"PyFunc" in sent and (python := _python_operations(sent)):
        raise InputValueError(
            f"{argument}: the dataset of {whose} calls Python (in {python[0]}), as from_generator and py_function do, "
            "and the worker that trains on it is another process: give tf.data.Dataset.from_tensor_slices the arrays, "
            "or read files with TensorFlow's own operations; dataset.save(path) and tf.data.Dataset.load(path) keep "
            "what a generator makes."
        )


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


def _is_empty(elements: tf.data.Dataset | Sequence[Any]) -> bool:
    if not isinstance(elements, tf.data.Dataset):
        return not elements
    known = int(elements.cardinality())
    # Where the number is not known, as after a filter, the first element is read.
    return not known or (known == tf.data.UNKNOWN_CARDINALITY and not list(elements.take(1)))
