"""Results of the worker: small tensors are read, and large ones stay there; both are passed by reference."""

import functools
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from . import datasets, forms
from .connection import Connection

_SMALL_ELEMENTS = 1024


class Source:
    """The result of a computation in the worker; references point to its parts."""

    def __init__(self, connection: Connection, value: Any, type_spec: tff.Type) -> None:
        self.connection = connection
        self.type_signature = type_spec
        self._value = value

    def part(self, path: tuple[int, ...]) -> Any:
        """Returns the worker's value at `path`."""
        value = self._value
        for index in path:
            value = self.connection.select(value, index)
        return value


class ResidentValue(tff.program.MaterializableValueReference):
    """A tensor of the server that is in the worker: of more than 1,024 elements, since smaller ones are read at once.

    Computations take it by reference. `np.asarray`, TensorFlow and `numpy` read it, as long as the session lasts. It
    keeps the result that it is part of in the worker's memory.

    Args:
        source: The result that it is part of.
        path: Its position in the result.
        type_spec: Type of the tensor.
    """

    def __init__(self, source: Source, path: tuple[int, ...], type_spec: tff.TensorType) -> None:
        self._source, self._path, self._type = source, path, type_spec

    @property
    def type_signature(self) -> tff.TensorType:
        return self._type

    @property
    def origin(self) -> tuple[Source, tuple[int, ...]]:
        """The result that it is part of, and its position there."""
        return self._source, self._path

    @property
    def shape(self) -> tuple[int, ...]:
        fixed = self._type.shape
        return self.numpy().shape if fixed is None or None in fixed else tuple(fixed)

    @property
    def dtype(self) -> np.dtype:
        return np.dtype(self._type.dtype)

    def numpy(self) -> Any:
        """Returns the tensor, read from the worker.

        Raises:
            WorkerLostError: If the worker has ended.
        """
        return self._source.connection.read(self._source.part(self._path))

    async def get_value(self) -> Any:
        """Returns itself, since `tff.program` reads results as a whole.

        A consumer that needs the numbers, such as a release manager that writes a file, reads it later.
        """
        return self

    def __array__(self, dtype: Any = None) -> np.ndarray:
        return np.asarray(self.numpy(), dtype)

    def __repr__(self) -> str:
        return f"<resident {self._type}>"

    def __deepcopy__(self, memo: Any) -> "ResidentValue":
        return self


class _Read(np.ndarray):
    """A small tensor that has been read, and cannot be changed, so that it may be passed by reference."""

    _source: Callable[[], Source | None] | None = None
    _path: tuple[int, ...] = ()

    @classmethod
    def of(cls, value: Any, source: Source, path: tuple[int, ...]) -> "_Read":
        read = np.array(value).view(cls)
        # A metric that a program keeps must not keep the state of its round in the worker.
        read._source, read._path = weakref.ref(source), path
        read.flags.writeable = False
        return read

    @property
    def origin(self) -> tuple[Source, tuple[int, ...]] | None:
        """The result that it is part of and its position there, or `None` if the worker no longer has it."""
        source = None if self._source is None else self._source()
        return None if source is None else (source, self._path)

    def __array_wrap__(self, result: np.ndarray, context: Any = None) -> Any:
        return np.asarray(result)[()]

    def __repr__(self) -> str:
        return repr(np.asarray(self)[()])


def origin(value: object) -> tuple[Source, tuple[int, ...]] | None:
    """Returns the result that a value is part of and its position there, or `None` if the worker does not have it."""
    return value.origin if isinstance(value, ResidentValue | _Read) else None


def references(connection: Connection, value: Any, result_type: tff.Type) -> Any:
    """Returns a result, its large tensors as references, in the containers of its type.

    Waits for the result, so that errors are raised here and rounds do not pile up.
    """
    source = Source(connection, value, result_type)
    leaves = _types(result_type)
    sizes = {path: tff.types.num_elements_in_shape(type_spec.shape) for path, type_spec in leaves.items()}
    small = [path for path, size in sizes.items() if size is not None and size <= _SMALL_ELEMENTS]
    read: dict[tuple[int, ...], Any] = {}
    if small:
        selected = connection.call(_selection(forms.stripped(result_type), tuple(small)), value)
        read = dict(zip(small, connection.read(selected), strict=True))
    elif leaves:
        path, type_spec = next(iter(leaves.items()))
        connection.read(connection.call(_size(type_spec), source.part(path)))

    return tff.types.type_to_py_container(_structure(source, (), result_type, read), result_type)


# Not nested in `references`: a nested recursive function is a reference cycle, and would keep the source until the next
# garbage collection, which may be many rounds away.
def _structure(source: Source, path: tuple[int, ...], type_spec: tff.Type, read: dict[tuple[int, ...], Any]) -> Any:
    type_spec = forms.member(type_spec)
    if not isinstance(type_spec, tff.StructType):
        return _Read.of(read[path], source, path) if path in read else ResidentValue(source, path, type_spec)
    return tff.structure.Struct(
        [
            (name, _structure(source, (*path, index), element, read))
            for index, (name, element) in enumerate(tff.structure.iter_elements(type_spec))
        ]
    )


def _types(type_spec: tff.Type, path: tuple[int, ...] = ()) -> dict[tuple[int, ...], tff.TensorType]:
    type_spec = forms.member(type_spec)
    if not isinstance(type_spec, tff.StructType):
        return {path: type_spec}
    leaves: dict[tuple[int, ...], tff.TensorType] = {}
    for index, element in enumerate(type_spec.children()):
        leaves |= _types(element, (*path, index))
    return leaves


@functools.lru_cache(maxsize=128)
def _selection(type_spec: tff.Type, paths: tuple[tuple[int, ...], ...]) -> tff.Computation:
    """Returns the computation that selects some tensors of a structure in one call."""
    whole = tff.framework.Reference("whole", type_spec)

    def selected(path: tuple[int, ...]) -> tff.framework.ComputationBuildingBlock:
        element = whole
        for index in path:
            element = tff.framework.Selection(element, index=index)
        return element

    body = tff.framework.Struct([selected(path) for path in paths])
    return tff.framework.ConcreteComputation.from_building_block(tff.framework.Lambda("whole", type_spec, body))


@functools.lru_cache(maxsize=128)
def _size(type_spec: tff.TensorType) -> tff.Computation:
    return forms.identified(tff.tensorflow.computation(lambda tensor: tf.size(tensor), type_spec))


def _as_tensor(value: ResidentValue, dtype: Any = None, name: Any = None, as_ref: bool = False) -> tf.Tensor:
    del as_ref
    return tf.convert_to_tensor(value.numpy(), dtype=dtype, name=name)


tf.register_tensor_conversion_function(ResidentValue, _as_tensor)


def ingest(connection: Connection, value: object, type_spec: tff.Type) -> Any:
    """Returns the worker's value for an argument.

    A structure that is a complete part of one result (for example the state that a round returned) is passed as one
    reference, whatever the number of its tensors. Of any other structure, tensors in the worker are passed by reference
    and only the rest is sent.
    """
    type_spec = forms.member(type_spec)
    whereabouts = _whereabouts(connection, value, type_spec)
    if whereabouts is not None:
        source, path = whereabouts
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
        source, path = origin(leaf) or (None, ())
        before = len(path) - len(inside)
        if source is None or source.connection is not connection or path[before:] != inside:
            return None
        places.add((source, path[:before]))
    if len(places) != 1:
        return None
    ((source, path),) = places
    inner_type = source.type_signature
    for index in path:
        inner_type = forms.member(forms.member(inner_type)[index])
    return (source, path) if type_spec.is_assignable_from(forms.member(inner_type)) else None


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
