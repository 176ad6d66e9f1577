"""Takes computations apart into parts without placements, which the worker runs for any number of clients."""

import dataclasses
from collections.abc import Mapping, Sequence

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from . import graphs
from .session import simulated

# The state of a round whose server has no arguments.
NOTHING = tff.TensorType(np.int32)
_CANNOT = (TypeError, ValueError, tff.backends.mapreduce.compiler.MapReduceFormCompilationError)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ServerForm:
    """A computation on the server alone, or without placements.

    Attributes:
        run: From the arguments, without placements, to the result.
        one_by_one: Whether `run` takes a structure of the arguments, or the same parameter as the computation.
    """

    run: tff.Computation
    one_by_one: bool


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class RoundForm:
    """A round as TFF's map-reduce form, each part ready for a worker.

    The form's state is the structure of the server's arguments (a number if there are none); its output is the result
    of the computation.

    Attributes:
        server_arguments: Indices of the computation's arguments at the server.
        client_arguments: Indices of those at the clients; at least one.
        client_type: Type of one client's arguments.
        prepare: From the server's arguments to the message for the clients.
        work: From one client's arguments and the message to the client's update.
        accumulate: Adds one client's update to a sum, which `zero` returns empty.
        report: From the sum to the report for the server.
        update: From the server's arguments and the report to the arguments again and the result.
    """

    server_arguments: tuple[int, ...]
    client_arguments: tuple[int, ...]
    client_type: tff.Type
    prepare: tff.Computation
    work: tff.Computation
    zero: tff.Computation
    accumulate: tff.Computation
    report: tff.Computation
    update: tff.Computation


@dataclasses.dataclass(frozen=True, kw_only=True)
class PlacedForm:
    """A computation that cannot be taken apart, for example because its aggregations depend on each other."""

    run: tff.Computation


Form = ServerForm | RoundForm | PlacedForm


def take_apart(computation: tff.Computation) -> Form:
    """Returns the parts of a computation that have no placements; secure sums are simulated."""
    signature = computation.type_signature
    if not tff.program.contains_only_server_placed_data(signature.result):
        raise ValueError(
            f"A federated context returns only structures and tensors of the server; this result is {signature.result}."
        )
    computation = simulated(computation)
    if tff.types.contains(signature.result, lambda inner: isinstance(inner, tff.SequenceType)):
        return PlacedForm(run=_ready(computation))
    try:
        if not any(_is_placed(type_spec) for type_spec in (signature.parameter, signature.result)):
            return ServerForm(run=_local(computation), one_by_one=False)
        if all(_is_placed(type_spec, tff.SERVER) for type_spec in argument_types(signature.parameter)):
            return _server_form(computation)
        return _round_form(computation)
    except _CANNOT:
        return PlacedForm(run=_ready(computation))


def argument_types(parameter: tff.Type | None) -> list[tff.Type]:
    """Returns the types of the arguments in a parameter."""
    if parameter is None:
        return []
    return list(parameter.children()) if isinstance(parameter, tff.StructType) else [parameter]


def member(type_spec: tff.Type) -> tff.Type:
    """Returns a type without its outermost placement."""
    return type_spec.member if isinstance(type_spec, tff.FederatedType) else type_spec


def stripped(type_spec: tff.Type) -> tff.Type:
    """Returns a type without placements and Python containers, as a worker knows it."""
    type_spec = member(type_spec)
    if isinstance(type_spec, tff.StructType):
        return tff.StructType([(name, stripped(inner)) for name, inner in tff.structure.iter_elements(type_spec)])
    return type_spec


def _server_form(computation: tff.Computation) -> ServerForm:
    types = argument_types(computation.type_signature.parameter)
    if not types:
        alone = tff.federated_computation(lambda: _zipped(computation()))
    else:

        @tff.federated_computation(tff.FederatedType(_members(types), tff.SERVER))
        def alone(server: tff.Value) -> object:
            return _zipped(_applied(computation, {index: server[index] for index in range(len(types))}))

    return ServerForm(run=_local(alone), one_by_one=True)


def _local(computation: tff.Computation) -> tff.Computation:
    block = tff.backends.mapreduce.consolidate_and_extract_local_processing(
        computation.to_building_block(), as_written()
    )
    return identified(tff.framework.ConcreteComputation.from_building_block(block))


def _round_form(computation: tff.Computation) -> RoundForm:
    types = argument_types(computation.type_signature.parameter)
    server = tuple(index for index, type_spec in enumerate(types) if _is_placed(type_spec, tff.SERVER))
    clients = tuple(index for index in range(len(types)) if index not in server)
    if any(types[index].all_equal for index in clients):
        raise TypeError("A value that all clients share does not tell their number.")
    client_type = _members([types[index] for index in clients])
    server_type = _members([types[index] for index in server]) if server else NOTHING

    @tff.federated_computation(tff.FederatedType(server_type, tff.SERVER), tff.FederatedType(client_type, tff.CLIENTS))
    def one_round(server_value: tff.Value, client_value: tff.Value) -> object:
        values = {index: client_value[position] for position, index in enumerate(clients)}
        values |= {index: server_value[position] for position, index in enumerate(server)}
        return server_value, _zipped(_applied(computation, values))

    form = tff.backends.mapreduce.get_map_reduce_form_for_computation(one_round, as_written())
    return RoundForm(
        server_arguments=server,
        client_arguments=clients,
        client_type=client_type,
        prepare=identified(form.prepare),
        work=graphs.without_overwritten(_ready(form.work)),
        zero=_ready(form.zero),
        accumulate=_ready(form.accumulate),
        report=_ready(form.report),
        update=identified(form.update),
    )


def _applied(computation: tff.Computation, values: Mapping[int, tff.Value]) -> object:
    parameter = computation.type_signature.parameter
    if not isinstance(parameter, tff.StructType):
        return computation(values[0])
    names = tff.structure.name_list_with_nones(parameter)
    return computation(tff.structure.Struct([(name, values[index]) for index, name in enumerate(names)]))


def _zipped(result: tff.Value) -> tff.Value:
    return result if isinstance(result.type_signature, tff.FederatedType) else tff.federated_zip(result)


def _members(types: Sequence[tff.FederatedType]) -> tff.StructType:
    return tff.StructType([type_spec.member for type_spec in types])


def _is_placed(type_spec: tff.Type | None, placement: tff.framework.PlacementLiteral | None = None) -> bool:
    """Returns whether a type as a whole has the given placement, or anything in it has one if none is given."""
    if placement is not None:
        return isinstance(type_spec, tff.FederatedType) and type_spec.placement is placement
    return type_spec is not None and tff.types.contains(type_spec, lambda inner: isinstance(inner, tff.FederatedType))


def as_written() -> tf.compat.v1.ConfigProto:
    """Returns the configuration that leaves graphs unoptimized; `_ready` optimizes the clients' graphs."""
    configuration = tf.compat.v1.ConfigProto()
    configuration.graph_options.rewrite_options.disable_meta_optimizer = True
    return configuration


def _ready(computation: tff.Computation) -> tff.Computation:
    """Returns a computation compiled as TFF's ordinary context compiles it."""
    return tff.backends.native.desugar_and_transform_to_native(computation)


def identified(computation: tff.Computation) -> tff.Computation:
    """Returns a computation with the identifier under which a worker caches its graph between rounds.

    Its graph is not optimized: TensorFlow's optimizer allocates every input in this process, and the server's inputs
    are the whole state.
    """
    return tff.backends.native.transform_to_native_form(computation)
