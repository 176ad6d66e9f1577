"""Spares a worker the initial values of variables that a computation overwrites before it reads them.

A client's work gets the model from the server. TFF's worker nevertheless computes the initial values of the model's
variables for each client, before the work; for the orthogonal matrices of an LSTM this takes a third of a round, or
more (`benchmarks/initial_values.py`).
"""

import collections
import hashlib
from collections.abc import Iterable, Mapping

import tensorflow as tf
import tensorflow_federated as tff

from .graphs import in_order, node_name, variable

_ID_BYTES = 8
# Nodes after them may not be executed, or several times.
_CONDITIONAL = ("Switch", "Merge", "Enter")
# They pass a variable's handle on.
_ALIASES = (*_CONDITIONAL, "Identity", "NextIteration", "Exit")


def without_overwritten(computation: tff.Computation) -> tff.Computation:
    """Returns a computation without the initialization of variables that it overwrites before every read.

    A variable qualifies if one unconditional assignment precedes, by data or control edges, every other use of its
    handle. Others keep their initial values: variables of metrics, for example, and all variables of a graph with
    functions that were not inlined. The results are the same, bit for bit.
    """
    proto = tff.framework.serialize_computation(computation)
    if proto.WhichOneof("computation") != "tensorflow" or not proto.tensorflow.initialize_op:
        return computation
    graph = tf.compat.v1.GraphDef()
    proto.tensorflow.graph_def.Unpack(graph)
    nodes = {node.name: node for node in graph.node}
    groups = _groups(nodes, proto.tensorflow.initialize_op)
    unneeded = _overwritten(nodes, groups, _handles(graph))
    if not unneeded:
        return computation
    for name in groups:
        kept = [given for given in nodes[name].input if node_name(given) not in unneeded]
        del nodes[name].input[:]
        nodes[name].input.extend(kept)
    proto.tensorflow.graph_def.Pack(graph)
    # A worker knows a graph by this number, and would execute the one that it has seen.
    digest = hashlib.sha256(graph.SerializeToString(deterministic=True)).digest()
    proto.tensorflow.cache_key.id = int.from_bytes(digest[:_ID_BYTES], "big")
    return tff.framework.deserialize_computation(proto)


def perhaps_unassigned(graph: tf.compat.v1.GraphDef) -> list[str]:
    """Returns the names of the variables that no unconditional assignment precedes in every use.

    Args:
        graph: A graph in which no variable has two handles.
    """
    nodes = {node.name: node for node in graph.node}
    handles = [node.name for node in graph.node if node.op == "VarHandleOp"]
    users = _users(nodes)
    order = in_order(nodes) if handles else None
    if order is None:
        return handles
    conditional = _after(set(), nodes, order, kinds=_CONDITIONAL)
    return [name for name in handles if _first_assignment(_uses(name, nodes, users), nodes, order, conditional) is None]


def _groups(nodes: Mapping[str, tf.compat.v1.NodeDef], initialize_op: str) -> set[str]:
    """Returns the names of the nodes that do nothing but group initializations."""
    found, left = set(), [initialize_op]
    while left:
        name = left.pop()
        if nodes[name].op == "NoOp" and name not in found:
            found.add(name)
            left.extend(map(node_name, nodes[name].input))
    return found


def _handles(graph: tf.compat.v1.GraphDef) -> list[str]:
    """Returns the names of the handles of variables that no other node, also of a function, has a handle of."""
    parts = (graph.node, *(function.node_def for function in graph.library.function))
    every = [node for part in parts for node in part if node.op == "VarHandleOp"]
    variables = collections.Counter(variable(node) for node in every)
    return [node.name for node in graph.node if node.op == "VarHandleOp" and variables[variable(node)] == 1]


def _overwritten(nodes: Mapping[str, tf.compat.v1.NodeDef], groups: set[str], handles: Iterable[str]) -> set[str]:
    """Returns the names of the assignments of initial values that nothing needs."""
    users = _users(nodes)
    order = in_order(nodes)
    if order is None:
        return set()
    conditional = _after(set(), nodes, order, kinds=_CONDITIONAL)
    found = set()
    for handle in handles:
        uses = _uses(handle, nodes, users)
        initial = [use for use in uses if _assigns(nodes[use]) and set(users[use]) & groups]
        others = [use for use in uses if use not in initial]
        if (
            len(initial) == 1
            and set(users[initial[0]]) <= groups
            and _first_assignment(others, nodes, order, conditional) is not None
        ):
            found.add(initial[0])
    return found


def _first_assignment(
    uses: Iterable[str], nodes: Mapping[str, tf.compat.v1.NodeDef], order: list[str], conditional: set[str]
) -> str | None:
    """Returns an unconditional assignment that all other uses come after."""
    for use in uses:
        if _assigns(nodes[use]) and use not in conditional and set(uses) <= _after({use}, nodes, order):
            return use
    return None


def _users(nodes: Mapping[str, tf.compat.v1.NodeDef]) -> Mapping[str, list[str]]:
    users = collections.defaultdict(list)
    for node in nodes.values():
        for name in {node_name(given) for given in node.input}:
            users[name].append(node.name)
    return users


def _uses(handle: str, nodes: Mapping[str, tf.compat.v1.NodeDef], users: Mapping[str, list[str]]) -> list[str]:
    """Returns the nodes that take a handle, directly or from a node that passes it on."""
    passing, left = {handle}, [handle]
    found = []
    while left:
        name = left.pop()
        for user in users[name]:
            if name not in (given.split(":")[0] for given in nodes[user].input):
                continue
            if nodes[user].op not in _ALIASES:
                found.append(user)
            elif user not in passing:
                passing.add(user)
                left.append(user)
    return found


def _after(
    begun: set[str], nodes: Mapping[str, tf.compat.v1.NodeDef], order: list[str], kinds: Iterable[str] = ()
) -> set[str]:
    """Returns `begun`, the nodes of some kinds, and the nodes that are executed only after one of these."""
    found = set(begun)
    for name in order:
        node = nodes[name]
        before = [node_name(given) in found for given in node.input if nodes[node_name(given)].op != "NextIteration"]
        # A merge is executed as soon as one of its inputs is there. A later iteration's input is there later.
        needed = all if node.op == "Merge" else any
        if node.op in kinds or (before and needed(before)):
            found.add(name)
    return found


def _assigns(node: tf.compat.v1.NodeDef) -> bool:
    return node.op == "AssignVariableOp"
