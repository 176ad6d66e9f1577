"""Clients' data before it is sent: datasets that leave no tables in a worker, and lists of examples as datasets.

A pipeline costs a worker more than its elements: each client's functions are parsed, compiled and freed. A caller that
has the elements, for example of a whole cohort at once, passes them as lists, which TFF takes in place of datasets.
"""

import functools
import hashlib
import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff
from tensorflow.core.framework import graph_pb2

# TensorFlow gives each lookup table of each serialized dataset a unique name, and keeps the table under that name as
# long as the worker lives: one vocabulary for each client of each round.
_TABLE, _IMPORT, _NAMED = "HashTableV2", "LookupTableImportV2", b"HashTableFromGraphDef"


def lighten(value: Any) -> None:
    """Replaces every dataset in TFF's `executor_pb2.Value`, about to be sent to a worker, by `lightened` of it."""
    kind = value.WhichOneof("value")
    if kind == "struct":
        for element in value.struct.element:
            lighten(element.value)
    elif kind == "federated":
        for member in value.federated.value:
            lighten(member)
    elif kind == "sequence":
        value.sequence.serialized_graph_def = lightened(value.sequence.serialized_graph_def)


def lightened(serialized: bytes) -> bytes:
    """Returns a serialized dataset with the same elements, whose static tables a worker keeps once for each content.

    TensorFlow uses a table that exists under its name as it is. Mutable tables are left alone.
    """
    if _NAMED not in serialized:
        return serialized
    graph = graph_pb2.GraphDef.FromString(serialized)
    nodes = {node.name: node for node in graph.node}
    names: dict[str, str] = {}
    for node in graph.node:
        if node.op != _IMPORT or nodes[node.input[0]].op != _TABLE:
            continue
        content = [nodes[name].attr["value"].tensor.SerializeToString() for name in node.input[1:]]
        digest = hashlib.sha256(b"".join(hashlib.sha256(tensor).digest() for tensor in content)).hexdigest()
        same = sum(digest in name for name in names.values())
        names[node.input[0]] = f"{_NAMED.decode()}/{digest}/{same}"
    for node in graph.node:
        node.name = names.get(node.name, node.name)
        for index, source in enumerate(node.input):
            control = "^" * source.startswith("^")
            node.input[index] = control + names.get(source.removeprefix("^"), source.removeprefix("^"))
    return graph.SerializeToString()


_Specs = tuple[tuple[str, tuple[int, ...]], ...]


class _OtherError(Exception):
    """An element or a type that is left to TFF."""


def of_elements(elements: Sequence[Any], element_type: tff.Type) -> bytes | None:
    """Returns the serialized dataset of elements, which `DatasetFromGraph` reads.

    It is `None` if elements or type are of another structure, for TFF to convert or refuse.
    """
    try:
        types = list(_types(element_type))
        rows = [tuple(_arrays(element, element_type)) for element in elements]
    except _OtherError:
        return None
    graph = graph_pb2.GraphDef()
    parts = [
        [np.stack(column) for column in zip(*part, strict=True)] for _, part in itertools.groupby(rows, key=_specs)
    ]
    # Without elements: no rows, and any shape that fits.
    parts = parts or [[np.zeros([0, *(length or 0 for length in spec.shape)], _dtype(spec)) for spec in types]]
    graph.CopyFrom(_template(tuple(map(_specs, parts))))
    values = {_name(i, j): column for i, part in enumerate(parts) for j, column in enumerate(part)}
    for node in graph.node:
        if node.name in values:
            node.attr["value"].tensor.CopyFrom(tf.make_tensor_proto(values[node.name]))
    return graph.SerializeToString()


def _types(element_type: tff.Type) -> Iterator[tff.TensorType]:
    """Yields the types of the arrays in an element, in the order in which TensorFlow has them."""
    if isinstance(element_type, tff.StructType):
        names = tff.structure.name_list(element_type)
        # TensorFlow sorts the names of a mapping.
        if names != sorted(names):
            raise _OtherError
        for child in element_type.children():
            yield from _types(child)
    elif (
        isinstance(element_type, tff.TensorType)
        and element_type.shape is not None
        and issubclass(element_type.dtype.type, np.number | np.bool_ | np.str_)
    ):
        yield element_type
    else:
        raise _OtherError


def _arrays(element: object, element_type: tff.Type) -> Iterator[np.ndarray]:
    """Yields the arrays of an element, in the order of their types."""
    if isinstance(element_type, tff.StructType):
        names = tff.structure.name_list(element_type)
        if isinstance(element, Mapping) and list(element) == names:
            children = tuple(element.values())
        elif isinstance(element, tuple) and len(element) == len(element_type) and not names:
            children = element
        else:
            raise _OtherError
        for child, child_type in zip(children, element_type.children(), strict=True):
            yield from _arrays(child, child_type)
    elif isinstance(element, bytes):
        yield from _arrays(np.array(element, object), element_type)
    elif (
        isinstance(element, np.ndarray | np.generic)
        and element.dtype == _dtype(element_type)
        and tf.TensorShape(element_type.shape).is_compatible_with(element.shape)
    ):
        yield np.asarray(element)
    else:
        raise _OtherError


def _dtype(type_spec: tff.TensorType) -> np.dtype:
    """Returns the dtype of a type's arrays; strings are objects of Python, as TensorFlow has them."""
    return np.dtype(object) if type_spec.dtype.type is np.str_ else type_spec.dtype


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
                tuple(
                    tf.constant(np.full(shape, b"" if dtype == "object" else 0, dtype), name=_name(i, j))
                    for j, (dtype, shape) in enumerate(part)
                )
            )
            for i, part in enumerate(parts)
        ]
        options = tf.data.Options()
        # Tuning takes longer than reading.
        options.autotune.enabled = False
        options.experimental_optimization.apply_default_optimizations = False
        whole = functools.reduce(tf.data.Dataset.concatenate, datasets).with_options(options)
        variant = tf.data.experimental.to_variant(whole)
    graph_def = graph.as_graph_def()
    returned = graph_def.node.add(name="dataset", op="_Retval", input=[variant.op.name])
    returned.attr["T"].type, returned.attr["index"].i = tf.variant.as_datatype_enum, 0
    return graph_def
