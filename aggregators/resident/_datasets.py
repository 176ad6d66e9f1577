"""Rewrites clients' datasets before they are sent, so that a worker keeps no memory for them."""

import hashlib
from collections.abc import Iterator
from typing import Any

from tensorflow.core.framework import graph_pb2, node_def_pb2, types_pb2

# TensorFlow gives each lookup table of each serialized dataset a unique name, and keeps the table under that name as
# long as the worker lives: one vocabulary for each client of each round.
_TABLE, _IMPORT, _NAMED = "HashTableV2", "LookupTableImportV2", b"HashTableFromGraphDef"
# The functions of a dataset (for example in `map`) are compiled for each client as if for several devices, and the
# session keeps some 50 bytes of each compilation, which fragment the memory that is freed around them. This attribute,
# documented for GPUs only, makes TensorFlow compile for the one device that datasets run on.
_ONE_DEVICE, _OF_DATASETS = "experimental_ints_on_device", "_tf_data_function"


def lighten(value: Any) -> None:
    """Replaces every dataset in a value that is about to be sent to a worker by `lightened` of it.

    Args:
        value: TFF's `executor_pb2.Value`, changed in place.
    """
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
    """Returns a serialized dataset with the same elements, of which a worker keeps nothing after reading it."""
    if _NAMED not in serialized and _OF_DATASETS.encode() not in serialized:
        return serialized
    graph = graph_pb2.GraphDef.FromString(serialized)
    _share_tables(graph)
    _compile_for_one_device(graph)
    return graph.SerializeToString()


def _share_tables(graph: graph_pb2.GraphDef) -> None:
    """Gives static tables with equal content the same name, so that they become one table.

    TensorFlow uses a table that exists under its name as it is. Mutable tables are left alone.
    """
    nodes = {node.name: node for node in graph.node}
    names: dict[str, str] = {}
    for node in graph.node:
        if node.op != _IMPORT or nodes[node.input[0]].op != _TABLE:
            continue
        content = [nodes[name].attr["value"].tensor.SerializeToString() for name in node.input[1:]]
        digest = hashlib.sha256(b"".join(hashlib.sha256(part).digest() for part in content)).hexdigest()
        same = sum(digest in name for name in names.values())
        names[node.input[0]] = f"{_NAMED.decode()}/{digest}/{same}"
    for node in graph.node:
        node.name = names.get(node.name, node.name)
        for index, source in enumerate(node.input):
            control = "^" * source.startswith("^")
            node.input[index] = control + names.get(source.removeprefix("^"), source.removeprefix("^"))


def _compile_for_one_device(graph: graph_pb2.GraphDef) -> None:
    # TensorFlow refuses the attribute in functions that are called, and thus in functions that those may call.
    everything = [*graph.node, *(node for function in graph.library.function for node in function.node_def)]
    called = {name for node in everything if not _is_dataset(node) for name in _functions_of(node)}
    computed = {name for node in graph.node if _is_dataset(node) for name in _functions_of(node)}
    for function in graph.library.function:
        if function.signature.name not in computed - called:
            continue
        function.attr[_ONE_DEVICE].b = True
        # With the attribute, an int32 is returned by a node of another name than other types. TensorFlow's optimizer of
        # pipelines recognizes functions by that name, would take this one for a pipeline with two ends, and fail;
        # without the mark it leaves the function alone. No pipeline returns an int32, so that nothing is lost.
        if any(output.type == types_pb2.DT_INT32 for output in function.signature.output_arg):
            function.attr.pop(_OF_DATASETS, None)


def _is_dataset(node: node_def_pb2.NodeDef) -> bool:
    return "Dataset" in node.op


def _functions_of(node: node_def_pb2.NodeDef) -> Iterator[str]:
    """Yields the names of all functions that a node may call."""
    yield node.op
    for value in node.attr.values():
        for function in (value.func, *value.list.func):
            yield function.name
