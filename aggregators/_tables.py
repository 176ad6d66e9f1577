"""Lookup tables in clients' data, one a content in a worker and not one a client."""

import hashlib
from typing import Any

from tensorflow.core.framework import graph_pb2

# TensorFlow gives the table of every serialized dataset a name of its own, and its resource, which is kept under that
# name, lives as long as the worker: a vocabulary for each client of each round.
_TABLE, _IMPORT, _NAMED = "HashTableV2", "LookupTableImportV2", b"HashTableFromGraphDef"


def share(value: Any) -> None:
    """Renames, in a value on its way to a worker, the tables of all its datasets by what they hold.

    Args:
        value: TFF's `executor_pb2.Value`, changed in place.
    """
    kind = value.WhichOneof("value")
    if kind == "struct":
        for element in value.struct.element:
            share(element.value)
    elif kind == "federated":
        for member in value.federated.value:
            share(member)
    elif kind == "sequence":
        value.sequence.serialized_graph_def = shared(value.sequence.serialized_graph_def)


def shared(serialized: bytes) -> bytes:
    """Returns a serialized dataset whose static tables have the same names wherever they hold the same.

    Whoever finds a table under its name takes it as it is. Tables that can be written to are left alone.
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
        digest = hashlib.sha256(b"".join(hashlib.sha256(part).digest() for part in content)).hexdigest()
        same = sum(digest in name for name in names.values())
        names[node.input[0]] = f"{_NAMED.decode()}/{digest}/{same}"
    for node in graph.node:
        node.name = names.get(node.name, node.name)
        for index, source in enumerate(node.input):
            control = "^" * source.startswith("^")
            node.input[index] = control + names.get(source.removeprefix("^"), source.removeprefix("^"))
    return graph.SerializeToString()
