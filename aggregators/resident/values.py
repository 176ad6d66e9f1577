"""References to tensors in a worker, which are read only when they are used."""

import functools
import weakref
from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from . import forms
from .connection import Connection

_SMALL_ELEMENTS = 1024


class Source:
    """The result of a computation in a worker; references point to its parts."""

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


class ResidentValue(tff.program.MaterializableValueReference, np.lib.mixins.NDArrayOperatorsMixin):
    """A tensor of the server that is in the worker and behaves like an array.

    Computations take it by reference. NumPy, TensorFlow, arithmetic, `float` and `numpy` read it. A small one (up to
    1,024 elements) is read when its computation ends, so that metrics can be read after the session. A large one can be
    read as long as the session lasts, and keeps the result that it is part of in the worker's memory.

    Args:
        source: The result that it is part of.
        path: Its position in the result.
        type_spec: Type of the tensor.
        value: The tensor, if it has been read.
    """

    def __init__(
        self, source: Source, path: tuple[int, ...], type_spec: tff.TensorType, value: np.ndarray | None = None
    ) -> None:
        self._type = type_spec
        self._value = value
        self._path = path
        # A metric that a program keeps must not keep the state of its round in the worker.
        self._source = (lambda: source) if value is None else weakref.ref(source)

    @property
    def type_signature(self) -> tff.TensorType:
        return self._type

    @property
    def origin(self) -> tuple[Source, tuple[int, ...]] | None:
        """The result that it is part of and its position there, or `None` if the worker no longer has it."""
        source = self._source()
        return None if source is None else (source, self._path)

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
        origin = self.origin
        if self._value is not None or origin is None:
            return self._value
        source, path = origin
        return source.connection.read(source.part(path))

    async def get_value(self) -> Any:
        """Returns the tensor if it is small, and itself otherwise, since `tff.program` reads results as a whole.

        A consumer that needs the numbers of a large one, such as a release manager that writes a file, reads it later.
        """
        return self if self._value is None else self._value

    def __array__(self, dtype: Any = None) -> np.ndarray:
        return np.asarray(self.numpy(), dtype)

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **arguments: Any) -> Any:
        read = [value.numpy() if isinstance(value, ResidentValue) else value for value in inputs]
        return getattr(ufunc, method)(*read, **arguments)

    def __getattr__(self, name: str) -> Any:
        # Other methods of arrays, such as `ravel` or `tolist`, but no protocols, which would read it implicitly.
        if name.startswith("_") or not hasattr(np.ndarray, name):
            raise AttributeError(f"{type(self).__name__!r} has no attribute {name!r}")
        return getattr(np.asarray(self), name)

    def __float__(self) -> float:
        return float(self.numpy())

    def __int__(self) -> int:
        return int(self.numpy())

    def __index__(self) -> int:
        return self.numpy().__index__()

    def __bool__(self) -> bool:
        return bool(self.numpy())

    def __len__(self) -> int:
        return len(self.numpy())

    def __iter__(self) -> Any:
        return iter(self.numpy())

    def __getitem__(self, key: Any) -> Any:
        return self.numpy()[key]

    def __format__(self, specification: str) -> str:
        return format(self.numpy(), specification)

    def __str__(self) -> str:
        return repr(self) if self._value is None else str(self._value)

    def __repr__(self) -> str:
        return f"<resident {self._type}>" if self._value is None else repr(self._value)

    def __deepcopy__(self, memo: Any) -> "ResidentValue":
        return self

    __hash__ = None  # type: ignore[assignment]


def references(connection: Connection, value: Any, result_type: tff.Type) -> Any:
    """Returns a result as references, in the containers of its type.

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
        return ResidentValue(source, path, type_spec, read.get(path))
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
    found: dict[tuple[int, ...], tff.TensorType] = {}
    for index, element in enumerate(type_spec.children()):
        found |= _leaves(element, (*path, index))
    return found


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
