"""Client data of every shape: types of elements, structures of them, and what pipelines do with them."""

import collections
import dataclasses
import itertools
from collections.abc import Callable, Iterator

import numpy as np
import tensorflow as tf

EXAMPLES = 7
_LIST = "a list"
_WORDS = ("", "a", "bb", "ccc", "é", "to be", "x" * 40)


def _numbers(dtype: type) -> Callable[[int], np.ndarray]:
    return lambda client: (np.arange(EXAMPLES) * 3 % 5 + client).astype(dtype)


def _matrix(client: int) -> np.ndarray:
    return np.arange(EXAMPLES * 6, dtype=np.float32).reshape(EXAMPLES, 2, 3) / 7 + client


def _ragged(client: int) -> tf.RaggedTensor:
    rows = [list(range(client, client + length)) for length in (2, 0, 3, 1, 4, 1, 2)]
    return tf.ragged.constant(rows, dtype=tf.int32, ragged_rank=1)


# From the number of a client to its examples, along the first dimension.
TYPES: dict[str, Callable[[int], object]] = {
    "int32": _numbers(np.int32),
    "int64": _numbers(np.int64),
    "uint8": _numbers(np.uint8),
    "bool": lambda client: np.arange(EXAMPLES) % (2 + client) == 0,
    "float16": lambda client: _numbers(np.float16)(client) / np.float16(3),
    "float32": lambda client: _numbers(np.float32)(client) / np.float32(3),
    "float64": lambda client: _numbers(np.float64)(client) / 3,
    "string": lambda client: np.array([word + str(client) for word in _WORDS]),
    "int32 vector": lambda client: np.arange(EXAMPLES * 2, dtype=np.int32).reshape(EXAMPLES, 2) + client,
    "matrix": _matrix,
}

STRUCTURES: dict[str, Callable[[object], object]] = {
    "one tensor": lambda value: value,
    "tuple": lambda value: (value, np.arange(EXAMPLES, dtype=np.int32)),
    "dict": lambda value: collections.OrderedDict(b=value, a=np.arange(EXAMPLES, dtype=np.int64)),
    "nested": lambda value: (collections.OrderedDict(x=(value, value), z=np.ones(EXAMPLES, bool)), value),
}


def _changed(tensor: tf.Tensor) -> tf.Tensor:
    """Returns another tensor of the same type, computed so that no map is an identity."""
    if tensor.dtype == tf.string:
        return tf.strings.join([tensor, "!"])
    if tensor.dtype == tf.bool:
        return tf.logical_not(tensor)
    return tensor * tf.cast(2, tensor.dtype) + tf.cast(1, tensor.dtype)


def _map(*element: object) -> object:
    return tf.nest.map_structure(_changed, element[0] if len(element) == 1 else element)


def _first(*element: object) -> tf.Tensor:
    return tf.strings.to_hash_bucket_fast(tf.io.serialize_tensor(tf.nest.flatten(element)[0]), 3)


def _interleave(dataset: tf.data.Dataset) -> tf.data.Dataset:
    return tf.data.Dataset.range(2).interleave(
        lambda number: dataset.skip(number).map(_map), cycle_length=2, block_length=2
    )


def _padded(dataset: tf.data.Dataset) -> tf.data.Dataset:
    def grown(*element: object) -> object:
        parts = element[0] if len(element) == 1 else element
        return tf.nest.map_structure(lambda part: tf.repeat(tf.reshape(part, [-1])[:1], 1 + _first(parts)), parts)

    return dataset.map(grown).padded_batch(3)


PIPELINES: dict[str, Callable[[tf.data.Dataset], tf.data.Dataset]] = {
    "as it is": lambda dataset: dataset,
    "map": lambda dataset: dataset.map(_map),
    "parallel map": lambda dataset: dataset.map(_map, num_parallel_calls=tf.data.AUTOTUNE),
    "two maps": lambda dataset: dataset.map(_map).map(_map),
    "batch": lambda dataset: dataset.batch(3),
    "batch and map": lambda dataset: dataset.batch(3).map(_map).prefetch(2),
    "map and batch": lambda dataset: dataset.map(_map).batch(3, drop_remainder=True),
    "padded_batch": _padded,
    "shuffle": lambda dataset: dataset.shuffle(5, seed=1).map(_map),
    "repeat": lambda dataset: dataset.map(_map).repeat(3),
    "shuffle and repeat": lambda dataset: dataset.shuffle(5, seed=1, reshuffle_each_iteration=True).repeat(2).map(_map),
    "take": lambda dataset: dataset.map(_map).take(4),
    "skip": lambda dataset: dataset.skip(2).map(_map),
    "prefetch": lambda dataset: dataset.map(_map).prefetch(tf.data.AUTOTUNE),
    "interleave": _interleave,
    "flat_map": lambda dataset: tf.data.Dataset.range(3).flat_map(lambda number: dataset.take(number).map(_map)),
    "cache": lambda dataset: dataset.map(_map).cache().repeat(2),
    "filter": lambda dataset: dataset.filter(lambda *element: _first(*element) > 0).map(_map),
    "take_while": lambda dataset: dataset.map(_map).take_while(lambda *element: _first(*element) < 2),
    "zip": lambda dataset: tf.data.Dataset.zip((dataset.map(_map), dataset.skip(1))),
    "concatenate": lambda dataset: dataset.map(_map).concatenate(dataset),
    "window": lambda dataset: dataset.enumerate().map(lambda number, element: element).map(_map),
    "unbatch": lambda dataset: dataset.batch(3).map(_map).unbatch(),
    "group_by_window": lambda dataset: dataset.group_by_window(
        lambda *element: _first(*element), lambda _, group: group.batch(4).map(_map), window_size=4
    ),
    "private threads": lambda dataset: _with_options(dataset.map(_map).batch(2), "private_threadpool_size"),
    "one thread each": lambda dataset: _with_options(dataset.map(_map).batch(2), "max_intra_op_parallelism"),
    "out of order": lambda dataset: _with_options(dataset.map(_map, num_parallel_calls=2), "deterministic"),
    "slack": lambda dataset: _with_options(dataset.map(_map).prefetch(2), "slack"),
    "fused maps": lambda dataset: _with_options(dataset.map(_map).map(_map).batch(2), "map_fusion"),
    _LIST: lambda dataset: dataset.map(_map).batch(4),
}


def _with_options(dataset: tf.data.Dataset, option: str) -> tf.data.Dataset:
    options = tf.data.Options()
    if option == "deterministic":
        options.deterministic = True
    elif option == "map_fusion":
        options.experimental_optimization.map_fusion = True
        options.experimental_optimization.filter_fusion = True
        options.experimental_optimization.map_and_filter_fusion = True
    elif option == "slack":
        options.experimental_slack = True
    else:
        setattr(options.threading, option, 1)
    return dataset.with_options(options)


RAGGED: dict[str, Callable[[tf.data.Dataset], tf.data.Dataset]] = {
    "padded in a map": lambda dataset: dataset.batch(3).map(lambda rows: (rows.to_tensor(), rows.row_lengths())),
    "padded_batch": lambda dataset: dataset.map(lambda row: row + 1).padded_batch(3),
    "dense_to_ragged_batch": lambda dataset: dataset.ragged_batch(2).map(lambda rows: rows.to_tensor(shape=[None, 5])),
    "reduced": lambda dataset: dataset.map(lambda row: tf.reduce_sum(row)),
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Shape:
    """One kind of client data.

    Attributes:
        name: What it is.
        client: From the number of a client to its dataset.
        as_list: Whether a list of the elements is sent in place of the dataset.
    """

    name: str
    client: Callable[[int], tf.data.Dataset]
    as_list: bool = False

    def clients(self) -> list[object]:
        """Returns the data of three clients, the last of which has none."""
        datasets = [self.client(0), self.client(1), self.client(0).take(0)]
        return [list(dataset.as_numpy_iterator()) for dataset in datasets] if self.as_list else datasets


def shapes() -> Iterator[Shape]:
    """Yields every combination of type, structure and pipeline, and ragged ones."""
    for dtype, structure, pipeline in itertools.product(TYPES, STRUCTURES, PIPELINES):

        def client(number: int, parts: tuple[str, str, str] = (dtype, structure, pipeline)) -> tf.data.Dataset:
            dtype, structure, pipeline = parts
            value = STRUCTURES[structure](TYPES[dtype](number))
            return PIPELINES[pipeline](tf.data.Dataset.from_tensor_slices(value))

        yield Shape(name=f"{dtype}, {structure}, {pipeline}", client=client, as_list=pipeline == _LIST)
    for pipeline in RAGGED:

        def ragged(number: int, pipeline: str = pipeline) -> tf.data.Dataset:
            return RAGGED[pipeline](tf.data.Dataset.from_tensor_slices(_ragged(number)))

        yield Shape(name=f"ragged, {pipeline}", client=ragged)


def sample() -> list[Shape]:
    """Returns one shape for each pipeline and the ragged ones.

    Neighbours have the same type and structure: what their elements have in common is traced once.
    """
    every = list(shapes())
    width, count = len(STRUCTURES) * len(PIPELINES), len(PIPELINES)
    together = -(-count // len(TYPES))
    groups = [number // together for number in range(count)]
    chosen = [every[group * width + (group % len(STRUCTURES)) * count + n] for n, group in enumerate(groups)]
    return [*chosen, *every[-len(RAGGED) :]]
