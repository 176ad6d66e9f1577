"""Nodes of TensorFlow graphs: their names, and what they follow from."""

from collections.abc import Callable, Iterable, Mapping

from tensorflow.core.framework import node_def_pb2


def node_name(tensor: str) -> str:
    """Returns the name of the node that a tensor, or an input of another node, belongs to."""
    return tensor.removeprefix("^").split(":")[0]


def behind(
    names: Iterable[str],
    nodes: Mapping[str, node_def_pb2.NodeDef],
    through: Callable[[node_def_pb2.NodeDef], bool] = lambda node: True,
) -> set[str]:
    """Returns some nodes, and all that they follow from, as far as the nodes in between are looked through."""
    found, left = set(), list(names)
    while left:
        name = left.pop()
        if name not in found:
            found.add(name)
            left.extend(map(node_name, nodes[name].input) if through(nodes[name]) else ())
    return found


def variable(handle: node_def_pb2.NodeDef) -> bytes:
    """Returns the name of the variable that a handle is of."""
    return handle.attr["shared_name"].s or handle.name.encode()
