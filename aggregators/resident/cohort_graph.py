"""The clients of a cohort as one graph: a loop in the worker in place of calls for each client.

Calls cost a client several milliseconds of Python, gRPC and sessions, and a value in the worker keeps all values that
it was computed from, so that sums had to be copied through Python. The loop keeps as many updates as clients run at
once, and one sum.
"""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff
from tensorflow.core.framework import graph_pb2
from tensorflow.python.framework import op_def_registry

from .forms import RoundForm, identified
from .graphs import behind, node_name, perhaps_unassigned, variable

# A handle of this name stands for a new variable each time that it is executed (`ResourceHandle::ANONYMOUS_NAME`). The
# variable ends with the handle.
_ANONYMOUS = b"cd2c89b7-88b7-44c8-ad83-06c2a9158347"
_VARIABLE = "VarHandleOp"
# Operations with side effects or resources that do not outlive one execution of a graph with variables of its own.
_CONFINED = {
    *("ReadVariableOp", "AssignVariableOp", "AssignAddVariableOp", "AssignSubVariableOp", "VariableShape"),
    *("VarIsInitializedOp", "ResourceGather", "ResourceGatherNd", "ResourceStridedSliceAssign"),
    *("ResourceScatterAdd", "ResourceScatterSub", "ResourceScatterUpdate", "ResourceScatterNdAdd"),
    *("ResourceScatterNdSub", "ResourceScatterNdUpdate", "ResourceApplyGradientDescent", "ResourceApplyMomentum"),
    *("ResourceApplyKerasMomentum", "ResourceApplyAdam", "ResourceApplyAdagradV2"),
    *("AnonymousIteratorV3", "MakeIterator", "IteratorGetNext", "IteratorGetNextSync", "IteratorGetNextAsOptional"),
    *("ReduceDataset", "RangeDataset", "TensorDataset", "TensorSliceDataset"),
    *("StatefulPartitionedCall", "If", "While", "Case", "Assert"),
}
# Whether or not TensorFlow lists them as such.
_STATEFUL = ("Shuffle", "Cache", "Table", "SeedGenerator", "RandomDataset", "SamplingDataset")
# Of the loops and conditions of graphs; their nodes cannot wait for nodes outside.
_FRAMES = ("Enter", "Exit", "NextIteration", "Switch", "Merge", "LoopCond")


class NotInOneGraphError(ValueError):
    """Why the clients of a process are called one by one."""


def cohort(form: RoundForm, clients_at_once: int) -> tff.Computation:
    """Returns the sum over a round's clients as one computation, with the result of `work` and `accumulate` in turn.

    It takes a sum, the clients' data (a matrix of strings with one row per client) and the message to the clients, and
    returns the sum with the clients' updates added in their order.

    Each execution of `work` has variables of its own, initialized before everything else, as in a call of its own; and
    updates are added in the order of the clients. The sum is therefore the same, bit for bit, however many clients run
    at once. Clients with random operations that have a state, with lookup tables, or with anything else that outlives
    an execution are not combined.

    Raises:
        NotInOneGraphError: If clients must be called one by one.
    """
    return identified(_loop(form, Part(form.work), Part(form.accumulate), clients_at_once))


class Part:
    """A computation whose graph can be executed repeatedly as a part of another.

    If it is `confined`, executions must not affect one another, not even by random numbers of one generator.
    """

    def __init__(self, computation: tff.Computation, *, confined: bool = True) -> None:
        proto = tff.framework.serialize_computation(computation)
        if proto.WhichOneof("computation") != "tensorflow":
            raise NotInOneGraphError("a part of the round is not a TensorFlow graph")
        self._graph = graph_pb2.GraphDef()
        proto.tensorflow.graph_def.Unpack(self._graph)
        self._parameter = _tensor_names(proto.tensorflow.parameter)
        self._result = _tensor_names(proto.tensorflow.result)
        if proto.tensorflow.initialize_op:
            _initialize_first(self._graph, proto.tensorflow.initialize_op, map(node_name, self._parameter))
        needed = behind(map(node_name, self._result), {node.name: node for node in self._graph.node})
        nodes = [node for node in self._graph.node if node.name in needed]
        del self._graph.node[:]
        self._graph.node.extend(nodes)
        if confined:
            check_confined(self._graph)
        if perhaps_unassigned(self._graph):
            # Without a name, it would be empty instead of an error.
            raise NotInOneGraphError("a variable may be read before it has a value")
        for node in self._graph.node:
            if node.op == _VARIABLE:
                node.attr["shared_name"].s = _ANONYMOUS
        self._nodes = {node.name for node in self._graph.node}

    def apply(self, values: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """Adds the graph to the current one, and returns its result."""
        inputs = {}
        for name, value in zip(self._parameter, values, strict=True):
            if node_name(name) in self._nodes:
                inputs[name] = tf.identity(value)
                # Calls of functions wait for parameters that they do not take.
                inputs[f"^{node_name(name)}"] = inputs[name]
        return tf.graph_util.import_graph_def(self._graph, input_map=inputs, return_elements=self._result, name="")


def _loop(form: RoundForm, work: Part, accumulate: Part, clients_at_once: int) -> tff.Computation:
    leaves = tff.structure.flatten(form.client_type)
    total_type, sent_type = form.zero.type_signature.result, form.work.type_signature.parameter[1]
    updates = len(tff.structure.flatten(form.accumulate.type_signature.parameter[1]))
    shapes = [tf.TensorShape(leaf.shape) for leaf in tff.structure.flatten(total_type)]
    data_type = tff.TensorType(np.str_, [None, len(leaves)])

    @tff.tensorflow.computation(total_type, data_type, sent_type)
    def summed(total: object, data: tf.Tensor, sent: object) -> object:
        message = tff.structure.flatten(sent)

        def add(number: tf.Tensor, so_far: list[tf.Tensor]) -> tuple[tf.Tensor, list[tf.Tensor]]:
            own = [_decoded(data[number, index], leaf) for index, leaf in enumerate(leaves)]
            added = accumulate.apply([*so_far, *work.apply([*own, *message])[:updates]])
            return number + 1, [tf.ensure_shape(total, shape) for total, shape in zip(added, shapes, strict=True)]

        _, sums = tf.while_loop(
            lambda number, _: number < tf.shape(data)[0],
            add,
            (tf.constant(0), tff.structure.flatten(total)),
            # Only the sums depend on the previous client's sums.
            parallel_iterations=clients_at_once,
        )
        return tff.structure.pack_sequence_as(total, sums)

    return summed


def _decoded(data: tf.Tensor, type_spec: tff.Type) -> tf.Tensor:
    """Returns one client's tensor, or the variant of its dataset."""
    if isinstance(type_spec, tff.SequenceType):
        return tf.raw_ops.DatasetFromGraph(graph_def=data)
    return tf.ensure_shape(tf.io.parse_tensor(data, tf.as_dtype(type_spec.dtype)), type_spec.shape)


def check_confined(graph: graph_pb2.GraphDef) -> None:
    """Refuses a graph with an operation whose state, or random numbers, executions would share."""
    variables = [variable(node) for node in graph.node if node.op == _VARIABLE]
    if len(set(variables)) < len(variables):
        raise NotInOneGraphError("a variable has two handles")
    functions = {function.signature.name for function in graph.library.function}
    inside = [node for function in graph.library.function for node in function.node_def]
    if any(node.op == _VARIABLE for node in inside):
        raise NotInOneGraphError("a function has a variable of its own")
    for node in (*graph.node, *inside):
        if node.op in functions or node.op in _CONFINED or node.op == _VARIABLE:
            continue
        definition = op_def_registry.get(node.op)
        if definition is None or definition.is_stateful or any(kind in node.op for kind in _STATEFUL):
            raise NotInOneGraphError(f"the clients' work contains the operation {node.op}, which has a state")


def _initialize_first(graph: graph_pb2.GraphDef, initialize_op: str, parameters: Iterable[str]) -> None:
    """Makes every node wait for the initialization of variables, except those that take part in it."""
    nodes = {node.name: node for node in graph.node}
    taking_part = behind([initialize_op], nodes)
    if any(nodes[name].op in _FRAMES for name in taking_part):
        raise NotInOneGraphError("initial values are computed by loops or conditions")
    ready = taking_part.union(parameters)
    for node in graph.node:
        # Every other node follows from one of these. A node inside a loop has an input from the loop.
        if node.name not in taking_part and ready.issuperset(map(node_name, node.input)):
            node.input.append(f"^{initialize_op}")


def _tensor_names(binding: Any) -> list[str]:
    """Returns the names of the tensors of a parameter, if there is one, or result, datasets as variants, in order."""
    kind = binding.WhichOneof("binding")
    if kind is None:
        return []
    if kind == "struct":
        return [name for element in binding.struct.element for name in _tensor_names(element)]
    if kind == "tensor":
        return [binding.tensor.tensor_name]
    return [binding.sequence.variant_tensor_name]
