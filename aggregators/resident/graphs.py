"""Nodes of TensorFlow graphs: what they follow from, and which initial values of variables nothing reads.

A client's work gets the model from the server. TFF's worker nevertheless computes the initial values of the model's
variables for each client, before the work; for the orthogonal matrices of an LSTM this takes a third of a round, or
more.
"""

import collections
import functools
import graphlib
import hashlib
from collections.abc import Callable, Iterable, Mapping

import tensorflow as tf
import tensorflow_federated as tff
from tensorflow.core.framework import node_def_pb2

_ID_BYTES = 8
# Nodes after them may not be executed, or several times.
_CONDITIONAL = ("Switch", "Merge", "Enter")
# They pass a variable's handle on.
_ALIASES = (*_CONDITIONAL, "Identity", "NextIteration", "Exit")


def node_name(tensor: str) -> str:
    """Returns the name of the node that a tensor, or an input of another node, belongs to."""
    return tensor.removeprefix("^").split(":")[0]


def behind(
    names: Iterable[str],
    nodes: Mapping[str, node_def_pb2.NodeDef],
    through: Callable[[node_def_pb2.NodeDef], bool] = lambda node: True,
) -> set[str]:
    """Returns nodes, and all that they follow from; the search does not go `through` nodes for which that is false."""
    reached, left = set(), list(names)
    while left:
        name = left.pop()
        if name not in reached:
            reached.add(name)
            left.extend(map(node_name, nodes[name].input) if through(nodes[name]) else ())
    return reached


def variable(handle: node_def_pb2.NodeDef) -> bytes:
    """Returns the name of the variable that a handle stands for."""
    return handle.attr["shared_name"].s or handle.name.encode()


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
    uses = _Uses(graph.node)
    # Nodes that do nothing but group initializations.
    whole = behind([proto.tensorflow.initialize_op], uses.nodes, through=lambda node: node.op == "NoOp")
    groups = {name for name in whole if uses.nodes[name].op == "NoOp"}
    unneeded = uses.overwritten(groups, _own_handles(graph))
    if not unneeded:
        return computation
    for name in groups:
        inputs = [source for source in uses.nodes[name].input if node_name(source) not in unneeded]
        del uses.nodes[name].input[:]
        uses.nodes[name].input.extend(inputs)
    proto.tensorflow.graph_def.Pack(graph)
    # A worker knows a graph by this number, and would execute the one that it has seen.
    digest = hashlib.sha256(graph.SerializeToString(deterministic=True)).digest()
    proto.tensorflow.cache_key.id = int.from_bytes(digest[:_ID_BYTES], "big")
    return tff.framework.deserialize_computation(proto)


def perhaps_unassigned(graph: tf.compat.v1.GraphDef) -> list[str]:
    """Returns the variables, none of which has two handles, that no unconditional assignment precedes in every use."""
    uses = _Uses(graph.node)
    handles = [node.name for node in graph.node if node.op == "VarHandleOp"]
    return [name for name in handles if not uses.are_assigned_first(uses.of(name))]


def _own_handles(graph: tf.compat.v1.GraphDef) -> list[str]:
    """Returns the names of the handles of variables that no other node, also of a function, has a handle of."""
    node_lists = (graph.node, *(function.node_def for function in graph.library.function))
    handles = [node for nodes in node_lists for node in nodes if node.op == "VarHandleOp"]
    variables = collections.Counter(variable(node) for node in handles)
    return [node.name for node in graph.node if node.op == "VarHandleOp" and variables[variable(node)] == 1]


class _Uses:
    """The nodes of a graph that use variables, and the order in which they do.

    Attributes:
        nodes: The nodes, by name.
    """

    def __init__(self, nodes: Iterable[tf.compat.v1.NodeDef]) -> None:
        self.nodes: Mapping[str, tf.compat.v1.NodeDef] = {node.name: node for node in nodes}
        self._users = collections.defaultdict[str, list[str]](list)
        for node in self.nodes.values():
            for name in {node_name(source) for source in node.input}:
                self._users[name].append(node.name)

    @functools.cached_property
    def _order(self) -> list[str] | None:
        """The nodes, each behind its inputs; loops are cut at `NextIteration`. None if there are other circles."""
        try:
            return list(graphlib.TopologicalSorter({name: self._before(name) for name in self.nodes}).static_order())
        except graphlib.CycleError:
            return None

    @functools.cached_property
    def _conditional(self) -> set[str]:
        return self._after(set(), kinds=_CONDITIONAL)

    def of(self, handle: str) -> list[str]:
        """Returns the nodes that take a handle, directly or from a node that passes it on."""
        passing, left, users = {handle}, [handle], []
        while left:
            name = left.pop()
            for user in self._users[name]:
                if name not in (source.split(":")[0] for source in self.nodes[user].input):
                    continue
                if self.nodes[user].op not in _ALIASES:
                    users.append(user)
                elif user not in passing:
                    passing.add(user)
                    left.append(user)
        return users

    def overwritten(self, groups: set[str], handles: Iterable[str]) -> set[str]:
        """Returns the assignments of initial values, grouped by some nodes, that nothing needs."""
        unneeded = set()
        for uses in map(self.of, handles):
            initial = [use for use in uses if self._assigns(use) and set(self._users[use]) & groups]
            later = [use for use in uses if use not in initial]
            if len(initial) == 1 and set(self._users[initial[0]]) <= groups and self.are_assigned_first(later):
                unneeded.add(initial[0])
        return unneeded

    def are_assigned_first(self, uses: Iterable[str]) -> bool:
        """Returns whether one of some uses is an unconditional assignment that precedes all others."""
        return self._order is not None and any(
            self._assigns(use) and use not in self._conditional and set(uses) <= self._after({use}) for use in uses
        )

    def _assigns(self, name: str) -> bool:
        return self.nodes[name].op == "AssignVariableOp"

    def _before(self, name: str) -> list[str]:
        """Returns the inputs of a node, but for those that come from an earlier iteration of a loop."""
        return [source for source in map(node_name, self.nodes[name].input) if self.nodes[source].op != "NextIteration"]

    def _after(self, begun: set[str], kinds: Iterable[str] = ()) -> set[str]:
        """Returns `begun`, the nodes of some kinds, and the nodes that are executed only after one of these."""
        following = set(begun)
        for name in self._order or ():
            before = [source in following for source in self._before(name)]
            # A merge is executed as soon as one of its inputs is there. A later iteration's input is there later.
            needed = all if self.nodes[name].op == "Merge" else any
            if self.nodes[name].op in kinds or (before and needed(before)):
                following.add(name)
        return following
