"""Results of the worker: small tensors are read, and large ones are references, which both are passed by reference."""

import functools
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from . import forms
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
    leaves = _leaves(result_type)
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


def _leaves(type_spec: tff.Type, path: tuple[int, ...] = ()) -> dict[tuple[int, ...], tff.TensorType]:
    type_spec = forms.member(type_spec)
    if not isinstance(type_spec, tff.StructType):
        return {path: type_spec}
    leaves: dict[tuple[int, ...], tff.TensorType] = {}
    for index, element in enumerate(type_spec.children()):
        leaves |= _leaves(element, (*path, index))
    return leaves


@functools.lru_cache(maxsize=128)
def _selection(type_spec: tff.Type, paths: tuple[tuple[int, ...], ...]) -> tff.Computation:
    """Returns the computation that selects some tensors of a structure in one call."""
    whole = tff.framework.Reference("whole", type_spec)

    def selected(path: tuple[int, ...]) -> tff.framework.ComputationBuildingBlock:
        part = whole
        for index in path:
            part = tff.framework.Selection(part, index=index)
        return part

    body = tff.framework.Struct([selected(path) for path in paths])
    return tff.framework.ConcreteComputation.from_building_block(tff.framework.Lambda("whole", type_spec, body))


@functools.lru_cache(maxsize=128)
def _size(type_spec: tff.TensorType) -> tff.Computation:
    return forms.identified(tff.tensorflow.computation(lambda tensor: tf.size(tensor), type_spec))


def _as_tensor(value: ResidentValue, dtype: Any = None, name: Any = None, as_ref: bool = False) -> tf.Tensor:
    del as_ref
    return tf.convert_to_tensor(value.numpy(), dtype=dtype, name=name)


tf.register_tensor_conversion_function(ResidentValue, _as_tensor)
