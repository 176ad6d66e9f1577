"""Serializes a client's elements, given as a list, as a dataset without functions, which a worker opens at once.

A pipeline costs a worker more than its elements: each client's functions are parsed, compiled and freed. A caller that
has the elements, for example of a whole cohort at once, passes them as lists, which TFF takes in place of datasets.
"""

import functools
import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff
from tensorflow.core.framework import graph_pb2

_Specs = tuple[tuple[str, tuple[int, ...]], ...]


def serialized(elements: Sequence[Any], element_type: tff.Type) -> bytes | None:
    """Returns the serialized dataset of elements, which `DatasetFromGraph` reads.

    Args:
        elements: The elements: arrays, or tuples of arrays.
        element_type: Their type.

    Returns:
        The graph; `None` if elements or type are of another structure, for TFF to convert or refuse.
    """
    types = element_type.children() if isinstance(element_type, tff.StructType) else [element_type]
    types = list(types)
    if not _is_flat(element_type, types):
        return None
    rows = [element if isinstance(element_type, tff.StructType) else (element,) for element in elements]
    if not all(_fits(row, types) for row in rows):
        return None
    graph = graph_pb2.GraphDef()
    parts = [
        [np.stack(column) for column in zip(*part, strict=True)] for _, part in itertools.groupby(rows, key=_specs)
    ]
    # Without elements: no rows, and any shape that fits.
    parts = parts or [[np.zeros([0, *(length or 0 for length in each.shape)], each.dtype.type) for each in types]]
    graph.CopyFrom(_template(tuple(map(_specs, parts))))
    values = {_name(i, j): column for i, part in enumerate(parts) for j, column in enumerate(part)}
    for node in graph.node:
        if node.name in values:
            node.attr["value"].tensor.CopyFrom(tf.make_tensor_proto(values[node.name]))
    return graph.SerializeToString()


def _is_flat(element_type: tff.Type, types: Sequence[tff.Type]) -> bool:
    """Returns whether elements are numeric arrays, or unnamed tuples of them."""
    names = tff.structure.name_list(element_type) if isinstance(element_type, tff.StructType) else []
    return not names and all(
        isinstance(each, tff.TensorType) and each.shape is not None and issubclass(each.dtype.type, np.number)
        for each in types
    )


def _fits(row: object, types: Sequence[tff.TensorType]) -> bool:
    return (
        isinstance(row, tuple)
        and len(row) == len(types)
        and all(
            isinstance(array, np.ndarray)
            and array.dtype == each.dtype
            and tf.TensorShape(each.shape).is_compatible_with(array.shape)
            for array, each in zip(row, types, strict=True)
        )
    )


def _specs(arrays: Sequence[np.ndarray]) -> _Specs:
    return tuple((array.dtype.name, array.shape) for array in arrays)


def _name(part: int, column: int) -> str:
    return f"elements_{part}_{column}"


@functools.lru_cache(maxsize=256)
def _template(parts: tuple[_Specs, ...]) -> graph_pb2.GraphDef:
    """Returns the graph of a dataset, with zeros for the elements of each part, one part after the other."""
    with tf.Graph().as_default() as graph:
        datasets = [
            tf.data.Dataset.from_tensor_slices(
                tuple(tf.constant(np.zeros(shape, dtype), name=_name(i, j)) for j, (dtype, shape) in enumerate(part))
            )
            for i, part in enumerate(parts)
        ]
        options = tf.data.Options()
        # Tuning takes longer than reading.
        options.autotune.enabled = False
        options.experimental_optimization.apply_default_optimizations = False
        whole = functools.reduce(tf.data.Dataset.concatenate, datasets).with_options(options)
        variant = tf.data.experimental.to_variant(whole)
    found = graph.as_graph_def()
    returned = found.node.add(name="dataset", op="_Retval", input=[variant.op.name])
    returned.attr["T"].type, returned.attr["index"].i = tf.variant.as_datatype_enum, 0
    return found
