"""Clients' elements as lists: sent as datasets without functions, with the same elements."""

import collections

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff
from tensorflow.core.framework import graph_pb2

from tff_mf import aggregators
from tff_mf.aggregators.resident import _arguments, _datasets, _summing

PAIR = tff.StructType([(np.int64, [None, 3]), (np.float32, [None])])
ALONE = tff.TensorType(np.float32, [None, 2])
NESTED = tff.StructType(
    [tff.StructWithPythonType([("x", ALONE), ("y", np.int32)], collections.OrderedDict), np.float32]
)
GENERATOR = np.random.default_rng(0)


def pair(rows):
    return GENERATOR.integers(0, 9, (rows, 3)), GENERATOR.normal(size=rows).astype(np.float32)


def alone(rows):
    return GENERATOR.normal(size=(rows, 2)).astype(np.float32)


def nested(rows):
    return collections.OrderedDict(x=alone(rows), y=np.int32(rows)), np.float32(rows)


def spec_of(element_type):
    if isinstance(element_type, tff.TensorType):
        return tf.TensorSpec(element_type.shape, element_type.dtype.type)
    pairs = [(name, spec_of(each)) for name, each in tff.structure.to_elements(element_type)]
    return collections.OrderedDict(pairs) if pairs[0][0] else tuple(each for _, each in pairs)


def read(graph, element_type):
    spec = spec_of(element_type)
    variant = tf.raw_ops.DatasetFromGraph(graph_def=graph)
    return list(tf.data.experimental.from_variant(variant, spec).as_numpy_iterator())


@pytest.mark.parametrize("rows", [[4], [4, 4, 1], [2, 5, 5, 2], [0, 3], []], ids=str)
@pytest.mark.parametrize(
    ("element_type", "make"), [(PAIR, pair), (ALONE, alone), (NESTED, nested)], ids=["pairs", "arrays", "nested"]
)
def test_a_worker_reads_the_elements_of_a_list(element_type, make, rows):
    for _ in range(2):  # The second has the same shapes and other numbers.
        elements = [make(number) for number in rows]
        graph = _datasets.of_elements(elements, element_type)
        found = read(graph, element_type)
        assert len(found) == len(elements)
        for one, other in zip(tf.nest.flatten(found), tf.nest.flatten(elements), strict=True):
            assert one.dtype == other.dtype
            np.testing.assert_array_equal(one, other)
        assert not graph_pb2.GraphDef.FromString(graph).library.function


NAMED = tff.StructWithPythonType([("x", ALONE)], collections.OrderedDict)
UNSORTED = tff.StructWithPythonType([("y", ALONE), ("x", ALONE)], collections.OrderedDict)


@pytest.mark.parametrize(
    ("elements", "element_type"),
    [
        ([collections.OrderedDict(z=alone(1))], NAMED),
        ([collections.OrderedDict(y=alone(1), x=alone(1))], UNSORTED),
        ([[[1.0, 2.0]]], ALONE),
        ([alone(2).astype(np.float64)], ALONE),
        ([np.zeros((2, 3), np.float32)], ALONE),
        ([pair(2)[:1]], PAIR),
        ([list(pair(2))], PAIR),
        ([np.array(["a"])], tff.TensorType(np.str_, [None])),
    ],
    ids=[
        "other names",
        "names that TensorFlow sorts",
        "Python numbers",
        "another type",
        "another shape",
        "too few",
        "a list in a list",
        "texts",
    ],
)
def test_other_lists_are_left_to_tff(elements, element_type):
    assert _datasets.of_elements(elements, element_type) is None


def test_elements_of_another_shape_are_refused():
    parameter = tff.StructType([tff.SequenceType(ALONE)])
    with pytest.raises(TypeError, match=r"\[2,3\]|\(2, 3\)"):
        _arguments.encoded_client(tff.structure.Struct([(None, [np.zeros((2, 3), np.float32)])]), parameter)


def test_a_round_of_lists_is_one_of_datasets(monkeypatch):
    @tff.tensorflow.computation(tff.SequenceType(ALONE))
    def work(elements):
        return elements.reduce(tf.zeros([2]), lambda total, rows: 2 * total + tf.reduce_sum(rows, axis=0))

    @tff.federated_computation(tff.FederatedType(tff.SequenceType(ALONE), tff.CLIENTS))
    def summed(clients):
        return tff.federated_sum(tff.federated_map(work, clients))

    lists = [[alone(4), alone(4), alone(1)], [], [alone(2)], [alone(3), alone(1)], [alone(4)]]
    datasets = [
        tf.data.Dataset.from_generator(lambda each=each: iter(each), output_signature=tf.TensorSpec([None, 2]))
        for each in lists
    ]
    found = []
    with aggregators.resident_context():
        # As one computation, and client by client.
        for fewest in (1, 10**9):
            monkeypatch.setattr(_summing, "_FEWEST", fewest)
            found.append(np.asarray(summed(lists)))
    expected = sum(
        (np.asarray(each.reduce(tf.zeros([2]), lambda total, rows: 2 * total + tf.reduce_sum(rows, axis=0))))
        for each in datasets
    )
    np.testing.assert_array_equal(found[0], found[1])
    np.testing.assert_allclose(found[0], expected, rtol=1e-6)
