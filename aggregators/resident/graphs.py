"""Nodes of TensorFlow graphs: their names, and what they follow from."""

import graphlib
from collections.abc import Iterable, Mapping

from tensorflow.core.framework import node_def_pb2


def node_name(tensor: str) -> str:
    """Returns the name of the node that a tensor, or an input of another node, belongs to."""
    return tensor.removeprefix("^").split(":")[0]


def behind(names: Iterable[str], nodes: Mapping[str, node_def_pb2.NodeDef]) -> set[str]:
    """Returns some nodes, and all that they follow from."""
    found, left = set(), list(names)
    while left:
        name = left.pop()
        if name not in found:
            found.add(name)
            left.extend(map(node_name, nodes[name].input))
    return found


def in_order(nodes: Mapping[str, node_def_pb2.NodeDef]) -> list[str] | None:
    """Returns the nodes, each behind its inputs; loops are cut at `NextIteration`. None if there are other circles."""
    before = {
        name: {node_name(given) for given in node.input if nodes[node_name(given)].op != "NextIteration"}
        for name, node in nodes.items()
    }
    try:
        return list(graphlib.TopologicalSorter(before).static_order())
    except graphlib.CycleError:
        return None


def variable(handle: node_def_pb2.NodeDef) -> bytes:
    """Returns the name of the variable that a handle is of."""
    return handle.attr["shared_name"].s or handle.name.encode()
