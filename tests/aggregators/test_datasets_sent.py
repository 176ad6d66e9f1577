"""Clients' datasets do not accumulate in the worker."""

import functools

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff
from tensorflow.core.framework import graph_pb2

from tff_mf import aggregators
from tff_mf.aggregators.resident import _datasets

NUMBER = tf.TensorSpec([], tf.int64)
_PRIME = 1_000_003


def numbers(texts, *vocabularies):
    """Returns a dataset that looks its strings up in each of the vocabularies."""
    tables = [
        tf.lookup.StaticVocabularyTable(
            tf.lookup.KeyValueTensorInitializer(words, tf.range(len(words), dtype=tf.int64)), num_oov_buckets=1
        )
        for words in vocabularies
    ]
    return tf.data.Dataset.from_tensor_slices(texts).map(lambda text: sum(table.lookup(text) for table in tables))


def serialized(dataset):
    return tf.raw_ops.DatasetToGraphV2(input_dataset=dataset._variant_tensor).numpy()


def table_names(graph):
    return {node.name for node in graph_pb2.GraphDef.FromString(graph).node if node.op == "HashTableV2"}


def all_names(graph):
    return [node.name for node in graph_pb2.GraphDef.FromString(graph).node]


def read(graph):
    variant = tf.raw_ops.DatasetFromGraph(graph_def=graph)
    return list(tf.data.experimental.from_variant(variant, NUMBER).as_numpy_iterator())


def test_tables_are_named_by_their_content():
    one, other = ["a", "b", "c"], ["c", "b", "a"]
    first, again = (_datasets.lightened(serialized(numbers(["b", "c", "?"], one))) for _ in range(2))
    assert table_names(first) == table_names(again)
    assert read(first) == read(again) == [1, 2, 3]
    reverse = _datasets.lightened(serialized(numbers(["b", "c", "?"], other)))
    assert not table_names(first) & table_names(reverse)
    assert read(reverse) == [1, 0, 3]
    assert read(first) == [1, 2, 3]
    twice = _datasets.lightened(serialized(numbers(["b", "c"], one, other, one)))
    assert len(table_names(twice)) == 3
    assert read(twice) == [3, 4]


def test_a_dataset_without_static_tables_is_unchanged():
    plain = serialized(tf.data.Dataset.range(3))
    assert _datasets.lightened(plain) is plain
    table = tf.lookup.experimental.MutableHashTable(tf.string, tf.int64, -1)
    table.insert(["a"], [5])
    mutable = serialized(tf.data.Dataset.from_tensors("a").map(table.lookup))
    assert all_names(_datasets.lightened(mutable)) == all_names(mutable)


@tf.function
def halved(number):
    return tf.while_loop(lambda left: left > 3, lambda left: (left // 2,), (number,))[0]


DATASETS = {
    "map": lambda numbers: numbers.map(lambda number: number + 1),
    "parallel map": lambda numbers: numbers.map(lambda number: number + 1, num_parallel_calls=tf.data.AUTOTUNE),
    "a condition": lambda numbers: numbers.map(lambda n: tf.cond(n % 2 == 0, lambda: n // 2, lambda: 3 * n)),
    "a loop": lambda numbers: numbers.batch(3).map(lambda row: tf.map_fn(lambda number: -number, row)).unbatch(),
    "a function that is called": lambda numbers: numbers.map(lambda number: halved(number) + halved(number + 1)),
    "a called function itself": lambda numbers: numbers.map(halved).map(lambda number: halved(number) + 1),
    "filter": lambda numbers: numbers.filter(lambda number: number % 3 == 1),
    "datasets in a dataset": lambda numbers: numbers.flat_map(
        lambda number: tf.data.Dataset.range(number).map(lambda inner: inner * number)
    ),
    "scan": lambda numbers: numbers.scan(tf.constant(0, tf.int64), lambda so_far, number: (so_far + number, so_far)),
    "interleave": lambda numbers: numbers.interleave(tf.data.Dataset.range, cycle_length=2),
}


@pytest.fixture(scope="module")
def digested():
    """Returns the sum, over clients, of a polynomial with the elements of a client's dataset as coefficients."""

    @tff.tensorflow.computation(tff.SequenceType(np.int64))
    def polynomial(numbers):
        return numbers.reduce(tf.constant(0, tf.int64), lambda so_far, number: (31 * so_far + number) % _PRIME)

    @tff.federated_computation(tff.FederatedType(polynomial.type_signature.parameter, tff.CLIENTS))
    def summed(datasets):
        return tff.federated_sum(tff.federated_map(polynomial, datasets))

    with aggregators.resident_context():
        yield lambda datasets: int(summed(datasets))


@pytest.mark.parametrize("name", DATASETS)
def test_the_worker_reads_the_elements_that_were_sent(digested, name):
    dataset = DATASETS[name](tf.data.Dataset.range(1, 8))
    sent = list(dataset.as_numpy_iterator())
    assert read(_datasets.lightened(serialized(dataset))) == sent
    digest = functools.reduce(lambda so_far, number: (31 * so_far + int(number)) % _PRIME, sent, 0)
    assert digested([dataset, dataset]) == 2 * digest


PAIRS = {
    "two numbers, one int32": (tf.int32, tf.float32),
    "two int32": (tf.int32, tf.int32),
    "one int32": (tf.int32,),
    "one int64": (tf.int64,),
}


def pairs(dtypes):
    """Returns a dataset with a map that recomputes all parts of its elements."""
    dataset = tf.data.Dataset.from_tensor_slices(tuple(tf.range(3, dtype=dtype) for dtype in dtypes))
    return dataset.map(lambda *parts: tuple(part + tf.cast(1, part.dtype) for part in parts))


@pytest.mark.parametrize("dtypes", PAIRS.values(), ids=PAIRS)
def test_functions_of_datasets_are_compiled_for_one_device(dtypes):
    dataset = pairs(dtypes)
    lightened = _datasets.lightened(serialized(dataset))
    (function,) = graph_pb2.GraphDef.FromString(lightened).library.function
    # TensorFlow looks for the attribute by this name (kIntsOnDeviceAttr in its source).
    assert function.attr["experimental_ints_on_device"].b
    variant = tf.raw_ops.DatasetFromGraph(graph_def=lightened)
    again = tf.data.experimental.from_variant(variant, dataset.element_spec)
    assert list(again.as_numpy_iterator()) == list(dataset.as_numpy_iterator())


def test_a_function_that_is_also_called_directly_is_unchanged():
    @tf.function
    def grown(number):
        return number + 1

    function = grown.get_concrete_function(NUMBER)
    dataset = tf.data.Dataset.range(3).map(function).map(lambda n: tf.cond(n > 2, lambda: function(n), lambda: n))
    lightened = _datasets.lightened(serialized(dataset))
    assert read(lightened) == list(dataset.as_numpy_iterator())
