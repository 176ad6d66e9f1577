"""Computations taken apart into parts without placements, which a worker runs for any number of clients."""

import dataclasses
from collections.abc import Mapping, Sequence

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from . import secure

# The state of a round whose server has none.
NOTHING = tff.TensorType(np.int32)
_CANNOT = (TypeError, ValueError, tff.backends.mapreduce.compiler.MapReduceFormCompilationError)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ServerForm:
    """A computation on the server alone, or without placements.

    Attributes:
        run: From the arguments, without placements, to the result.
        one_by_one: Whether `run` takes the structure of the arguments, or what the computation takes.
    """

    run: tff.Computation
    one_by_one: bool


@dataclasses.dataclass(frozen=True, kw_only=True)
class RoundForm:
    """A round as TFF's map-reduce form, each part ready for a worker.

    The form's state is the structure of the server's arguments (a number if there are none), and its
    output the result of the computation.

    Attributes:
        server_arguments: Which arguments of the computation are the server's.
        client_arguments: Which are the clients'; at least one.
        client_type: Type of one client's arguments.
        prepare: From the server's arguments to what the clients are sent.
        work: From one client's arguments, and what it was sent, to what it returns.
        zero: Returns a sum of nothing.
        accumulate: Adds what one client returned to a sum.
        merge: Adds two sums.
        report: From the sum to what the server is given.
        update: From the server's arguments and the report to the arguments again and the result.
    """

    server_arguments: tuple[int, ...]
    client_arguments: tuple[int, ...]
    client_type: tff.Type
    prepare: tff.Computation
    work: tff.Computation
    zero: tff.Computation
    accumulate: tff.Computation
    merge: tff.Computation
    report: tff.Computation
    update: tff.Computation


@dataclasses.dataclass(frozen=True, kw_only=True)
class PlacedForm:
    """A computation that cannot be taken apart, such as one whose aggregations depend on each other.

    Attributes:
        run: The computation, with its placements.
    """

    run: tff.Computation


Form = ServerForm | RoundForm | PlacedForm


def take_apart(computation: tff.Computation) -> Form:
    """Returns the parts of a computation that have no placements; secure sums are simulated.

    Raises:
        ValueError: If the result is not of the server's structures and tensors alone, as
            `tff.program.FederatedContext` demands.
    """
    signature = computation.type_signature
    if not tff.program.contains_only_server_placed_data(signature.result):
        raise ValueError(
            f"A federated context returns structures and tensors of the server; this result is {signature.result}."
        )
    computation = secure.simulated(computation)
    if tff.types.contains(signature.result, lambda part: isinstance(part, tff.SequenceType)):
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
    """Returns the types of the arguments that a parameter is made of."""
    if parameter is None:
        return []
    return list(parameter.children()) if isinstance(parameter, tff.StructType) else [parameter]


def member(type_spec: tff.Type) -> tff.Type:
    """Returns a type without its outermost placement."""
    return type_spec.member if isinstance(type_spec, tff.FederatedType) else type_spec


def stripped(type_spec: tff.Type) -> tff.Type:
    """Returns a type without placements and containers: what a worker knows of it."""
    type_spec = member(type_spec)
    if isinstance(type_spec, tff.StructType):
        return tff.StructType([(name, stripped(part)) for name, part in tff.structure.iter_elements(type_spec)])
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
    return _identified(tff.framework.ConcreteComputation.from_building_block(block))


def _round_form(computation: tff.Computation) -> RoundForm:
    types = argument_types(computation.type_signature.parameter)
    server = tuple(index for index, type_spec in enumerate(types) if _is_placed(type_spec, tff.SERVER))
    clients = tuple(index for index in range(len(types)) if index not in server)
    if any(types[index].all_equal for index in clients):
        raise TypeError("A value that all clients share does not say how many there are.")
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
        prepare=_identified(form.prepare),
        work=_ready(form.work),
        zero=_ready(form.zero),
        accumulate=_ready(form.accumulate),
        merge=_ready(form.merge),
        report=_ready(form.report),
        update=_identified(form.update),
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
    """Returns whether a type is placed: anything in it if no placement is named, as a whole if one is."""
    if placement is not None:
        return isinstance(type_spec, tff.FederatedType) and type_spec.placement is placement
    return type_spec is not None and tff.types.contains(type_spec, lambda part: isinstance(part, tff.FederatedType))


def as_written() -> tf.compat.v1.ConfigProto:
    """Returns the configuration that leaves graphs alone; those of clients are optimized by `_ready`."""
    configuration = tf.compat.v1.ConfigProto()
    configuration.graph_options.rewrite_options.disable_meta_optimizer = True
    return configuration


def _ready(computation: tff.Computation) -> tff.Computation:
    """Returns a computation as TFF's ordinary context would run it."""
    return tff.backends.native.desugar_and_transform_to_native(computation)


def _identified(computation: tff.Computation) -> tff.Computation:
    """Returns a computation with the identity under which a worker keeps its graph ready between rounds.

    Its graph is not optimized: TensorFlow's optimizer allocates every input in this process, and
    the inputs of the server are the whole state.
    """
    return tff.backends.native.transform_to_native_form(computation)
