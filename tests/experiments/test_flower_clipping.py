"""Clipping in NumPy, on Flower, is that of the queries in TensorFlow: in floats, and in integers of a grid."""

import importlib.util
import pathlib
import sys

import hypothesis
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import strategies

from tff_mf.queries import clipping as of_queries

# The package itself needs Flower, which is not in this environment. Apps copy these files alone, too.
FOLDER = pathlib.Path(__file__).parents[2] / "experiments" / "flower"


def loaded(name):
    spec = importlib.util.spec_from_file_location(name, FOLDER / f"{name.split('.')[-1]}.py")
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


package = sys.modules["of_flower"] = type(sys)("of_flower")
package.__path__ = []
of_flower = integers = loaded("of_flower.clipping")

FINITE = strategies.floats(width=32, allow_nan=True, allow_infinity=True)
SPECIAL = strategies.sampled_from([3.4e38, 1e-45, -1e-20, 1e20, -1.0])


def clip_norms(exponent):
    return of_queries.checked_clip_norm(10.0 ** (exponent / 10))


def exact_square(leaves):
    return sum(int(value) ** 2 for leaf in leaves for value in np.ravel(leaf))


@hypothesis.settings(max_examples=100)
@hypothesis.given(values=strategies.lists(FINITE, min_size=1, max_size=5), exponent=strategies.integers(-60, 60))
def test_records_are_clipped_as_in_the_queries(values, exponent):
    bound = clip_norms(exponent)
    leaves = [np.float32(values), np.float32([0.5, -2.0])]
    tensors = list(map(tf.constant, leaves))
    ours, theirs = of_flower.clip_again(leaves, bound), of_queries.clip_again(tensors, bound)
    assert (ours.scaled, ours.zeroed) == (bool(theirs.scaled), bool(theirs.zeroed))
    for one, other in zip(ours.leaves, theirs.leaves, strict=True):
        # TensorFlow reads values below 2**-126 as zero where it multiplies.
        np.testing.assert_allclose(one, other.numpy(), rtol=0, atol=2.0**-126)
    exact = sum(float(value) ** 2 for leaf in ours.leaves for value in leaf)
    assert exact <= float(bound) ** 2
    first = [leaf.numpy() for leaf in of_queries.clip_record(tensors, bound)]
    assert [leaf.tobytes() for leaf in of_flower.clip_again(first, bound).leaves] == [leaf.tobytes() for leaf in first]


@hypothesis.settings(max_examples=100)
@hypothesis.given(
    values=strategies.lists(FINITE | SPECIAL, min_size=1, max_size=8),
    exponent=strategies.integers(-20, 20),
    bits=strategies.integers(1, of_queries.LARGEST_BITS),
)
def test_nodes_send_the_integers_of_the_queries(values, exponent, bits):
    bound = clip_norms(exponent)
    leaves = [np.float32(values), np.float32([0.5, -2.0])]
    ours = integers.clip_to_grid(leaves, bound, bits=bits)
    theirs = of_queries.clip_to_grid(list(map(tf.constant, leaves)), bound, bits=bits, dtype=tf.int64)
    for one, other in zip(ours.leaves, theirs, strict=True):
        np.testing.assert_array_equal(one, other.numpy())
    assert exact_square(ours.leaves) <= 4**bits
    again = integers.clip_integers_again(ours.leaves, bits=bits)
    assert not again.scaled
    assert not again.zeroed


@pytest.mark.parametrize("flat", [False, True])
def test_records_near_the_bound_are_rounded_as_in_the_queries(flat):
    generator = np.random.default_rng(0)
    # The last size is that of values that all round up, and are rounded toward zero.
    for size, bits in ((20, 14), (60, 8), (2**14 + 100, 10)):
        values = np.ones(size) if flat else generator.normal(size=size)
        for factor in (0.5, 0.9999, 1.0, 1.1, 40.0):
            leaf = np.float32(values * factor / np.linalg.norm(values))
            ours = integers.clip_to_grid([leaf], np.float32(1), bits=bits).leaves[0]
            (theirs,) = of_queries.clip_to_grid([tf.constant(leaf)], tf.constant(1.0), bits=bits, dtype=tf.int64)
            np.testing.assert_array_equal(ours, theirs.numpy())
            assert exact_square([ours]) <= 4**bits
    if flat:
        np.testing.assert_array_equal(ours, 7)


@hypothesis.settings(max_examples=100)
@hypothesis.given(
    record=strategies.lists(
        strategies.integers(-(2**63), 2**63 - 1) | strategies.integers(-(2**27), 2**27), min_size=1, max_size=8
    ),
    bits=strategies.integers(1, of_queries.LARGEST_BITS),
    wide=strategies.booleans(),
)
def test_any_integers_at_the_server_are_clipped_as_in_the_queries(record, bits, wide):
    values = np.array(record, np.int64).astype(np.int64 if wide else np.int32)
    ours = integers.clip_integers_again([values[:1], values[1:]], bits=bits)
    theirs = of_queries.clip_integers_again([tf.constant(values[:1]), tf.constant(values[1:])], bits=bits)
    assert (ours.scaled, ours.zeroed) == (bool(theirs.scaled), bool(theirs.zeroed))
    for one, other in zip(ours.leaves, theirs.leaves, strict=True):
        assert one.dtype == np.int64
        np.testing.assert_array_equal(one, other.numpy())
    assert exact_square(ours.leaves) <= 4**bits
    assert (ours.scaled or ours.zeroed) == (exact_square([values]) > 4**bits)


def test_the_comparison_is_exact_where_integers_of_64_bits_wrap_around():
    bits = of_queries.LARGEST_BITS
    largest = np.full(2**12, 2**bits, np.int64)
    # The sum of the squares is 2^64, which is 0 for int64: a sum of integers would pass.
    assert int(np.sum(largest**2)) == 0
    assert not integers.within([largest.astype(np.float64)], bits)
    tail = [1.0] * 100
    for values in ([2.0**bits - 1, 11585.0], [*tail, 2.0**bits], [2.0**bits, 0.0], [2.0**27, *tail]):
        expected = sum(int(value) ** 2 for value in values) <= 4**bits
        assert integers.within([np.array(values)], bits) is expected
    for value in (np.nan, np.inf, -(2.0**1000)):
        assert not integers.within([np.array([value, 0.0])], bits)
