"""Clipping in NumPy, on Flower, is that of the queries in TensorFlow."""

import importlib.util
import pathlib

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies

tf = pytest.importorskip("tensorflow")

from tff_mf.queries import clipping as of_queries  # noqa: E402

# The package itself needs Flower, which is not in this environment.
FILE = pathlib.Path(__file__).parents[2] / "experiments" / "flower" / "clipping.py"
SPEC = importlib.util.spec_from_file_location("flower_clipping", FILE)
of_flower = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(of_flower)

FINITE = strategies.floats(width=32, allow_nan=True, allow_infinity=True)


@hypothesis.settings(max_examples=100)
@hypothesis.given(values=strategies.lists(FINITE, min_size=1, max_size=5), exponent=strategies.integers(-60, 60))
def test_records_are_clipped_as_in_the_queries(values, exponent):
    bound = of_flower.checked_clip_norm(10.0 ** (exponent / 10))
    assert bound == of_queries.checked_clip_norm(10.0 ** (exponent / 10))
    leaves = [np.float32(values), np.float32([0.5, -2.0])]
    ours, theirs = of_flower.clip_again(leaves, bound), of_queries.clip_again(list(map(tf.constant, leaves)), bound)
    assert (ours.scaled, ours.zeroed) == (bool(theirs.scaled), bool(theirs.zeroed))
    for one, other in zip(ours.leaves, theirs.leaves, strict=True):
        # TensorFlow reads values below 2**-126 as zero where it multiplies.
        np.testing.assert_allclose(one, other.numpy(), rtol=0, atol=2.0**-126)
    exact = sum(float(value) ** 2 for leaf in ours.leaves for value in leaf)
    assert exact <= float(bound) ** 2
