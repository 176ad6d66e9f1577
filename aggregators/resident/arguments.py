"""Passes arguments to the worker: by reference if the worker has them, and otherwise by value."""

from collections.abc import Iterator, Sequence
from typing import Any

import tensorflow as tf
import tensorflow_federated as tff

from . import datasets, forms, values
from .connection import Connection
from .values import ResidentValue, Source


def ingest(connection: Connection, value: object, type_spec: tff.Type) -> Any:
    """Returns the worker's value for an argument.

    A structure that is a complete part of one result (for example the state that a round returned) is passed as one
    reference, whatever the number of its tensors. Of any other structure, tensors in the worker are passed by reference
    and only the rest is sent.
    """
    type_spec = forms.member(type_spec)
    known = _whereabouts(connection, value, type_spec)
    if known is not None:
        source, path = known
        return source.part(path)
    if isinstance(type_spec, tff.StructType):
        return connection.struct(
            tff.structure.Struct(
                (name, ingest(connection, element, element_type))
                for name, element, element_type in _elements(value, type_spec)
            )
        )
    return connection.create(_sendable(value), type_spec)


def server_value(
    connection: Connection, arguments: Sequence[object], parameter: tff.Type, server: Sequence[int]
) -> Any:
    """Returns the worker's structure of the server's arguments, or a number if there are none."""
    if not server:
        return connection.create(0, forms.NOTHING)
    types = forms.argument_types(parameter)
    return connection.pack(*(ingest(connection, arguments[index], types[index]) for index in server))


def arguments(argument: object, parameter: tff.Type) -> list[object]:
    """Returns the arguments of a call as a list; TFF may have packed them into one."""
    if isinstance(parameter, tff.StructType):
        return [element for _, element, _ in _elements(argument, parameter)]
    return [argument]


def clients(arguments: Sequence[object], indices: Sequence[int]) -> list[tff.structure.Struct]:
    """Returns the arguments of each client."""
    columns = [_list_of_clients(arguments[index]) for index in indices]
    if len({len(column) for column in columns}) > 1:
        raise ValueError(f"Arguments placed at clients have different lengths: {[len(column) for column in columns]}.")
    return [tff.structure.Struct([(None, value) for value in row]) for row in zip(*columns, strict=True)]


def placed(argument: object, parameter: tff.Type | None) -> tuple[object, int]:
    """Returns an argument with every reference read, and its number of clients."""
    if parameter is None:
        return None, 0
    of_clients = [
        len(_list_of_clients(value))
        for value, type_spec in zip(arguments(argument, parameter), forms.argument_types(parameter), strict=True)
        if isinstance(type_spec, tff.FederatedType) and not type_spec.all_equal
    ]
    return materialized(argument, parameter), max(of_clients, default=0)


def _list_of_clients(value: object) -> Sequence[object]:
    if not isinstance(value, list | tuple):
        raise TypeError(
            f"An argument placed at clients must be a list with one value per client; found {type(value).__name__}."
        )
    return value


def encoded_client(value: object, type_spec: tff.Type) -> list[bytes]:
    """Returns each tensor (`tf.io.parse_tensor` reads it) and each dataset of a client's argument as a string."""
    return list(_encoded(value, type_spec))


def _encoded(value: object, type_spec: tff.Type) -> Iterator[bytes]:
    if isinstance(type_spec, tff.StructType):
        for _, element, element_type in _elements(value, type_spec):
            yield from _encoded(element, element_type)
        return
    listed = isinstance(type_spec, tff.SequenceType) and isinstance(value, list)
    graph = datasets.of_elements(value, type_spec.element) if listed else None
    if graph is not None:
        yield graph
        return
    sent, _ = tff.framework.serialize_value(materialized(value, type_spec), type_spec)
    yield from _strings(sent)


def _strings(value: Any) -> Iterator[bytes]:
    kind = value.WhichOneof("value")
    if kind == "struct":
        for element in value.struct.element:
            yield from _strings(element.value)
    elif kind == "sequence":
        yield datasets.lightened(value.sequence.serialized_graph_def)
    else:
        tensor, type_spec = tff.framework.deserialize_value(value)
        yield tf.make_tensor_proto(tensor, tf.as_dtype(type_spec.dtype)).SerializeToString()


def materialized(value: object, type_spec: tff.Type) -> Any:
    """Returns an argument with every reference read, as `tff.structure.Struct`s that TFF can send."""
    if isinstance(type_spec, tff.FederatedType) and not type_spec.all_equal:
        return [materialized(element, type_spec.member) for element in _list_of_clients(value)]
    type_spec = forms.member(type_spec)
    if isinstance(type_spec, tff.StructType):
        return tff.structure.Struct(
            (name, materialized(element, element_type)) for name, element, element_type in _elements(value, type_spec)
        )
    return _sendable(value)


def _whereabouts(connection: Connection, value: object, type_spec: tff.Type) -> tuple[Source, tuple[int, ...]] | None:
    """Returns the result of which the whole value is one part, and the part's position; `None` if there is none."""
    places = set()
    for inside, leaf in _leaves(value, type_spec):
        source, path = values.origin(leaf) or (None, ())
        before = len(path) - len(inside)
        if source is None or source.connection is not connection or path[before:] != inside:
            return None
        places.add((source, path[:before]))
    if len(places) != 1:
        return None
    ((source, path),) = places
    there = source.type_signature
    for index in path:
        there = forms.member(forms.member(there)[index])
    return (source, path) if type_spec.is_assignable_from(forms.member(there)) else None


def _leaves(value: object, type_spec: tff.Type, path: tuple[int, ...] = ()) -> Iterator[tuple[tuple[int, ...], object]]:
    """Yields the position and the value of each tensor."""
    if not isinstance(type_spec, tff.StructType):
        yield path, value
        return
    for index, (_, element, element_type) in enumerate(_elements(value, type_spec)):
        yield from _leaves(element, forms.member(element_type), (*path, index))


def _elements(value: object, type_spec: tff.StructType) -> list[tuple[str | None, object, tff.Type]]:
    elements = tff.structure.to_elements(tff.structure.from_container(value, recursive=False))
    types = tff.structure.to_elements(type_spec)
    fits = len(elements) == len(types) and all(
        name in (None, expected) for (name, _), (expected, _) in zip(elements, types, strict=True)
    )
    if not fits:
        raise TypeError(f"A value of type {type_spec} is needed; found {value!r}.")
    return [(name, element, element_type) for (name, element_type), (_, element) in zip(types, elements, strict=True)]


def _sendable(value: object) -> object:
    if isinstance(value, ResidentValue | tf.Tensor | tf.Variable):
        return value.numpy()
    return value
