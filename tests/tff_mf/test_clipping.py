"""Clipping in exact arithmetic: the bound holds, and what was clipped passes a second time bit for bit."""

import fractions
import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

tf = pytest.importorskip("tensorflow")

from tff_mf.queries import clipping  # noqa: E402

# Relative errors that the norm of 2³² values can have, added up in the order that is worst.
NORM_ERROR = 2.0**-22
SHAPES = st.lists(st.integers(1, 40), min_size=1, max_size=3)
CLIP_NORMS = st.floats(-20, 20).map(lambda exponent: float(np.float32(10**exponent))) | st.sampled_from(
    [1.0, 0.3, 1e20]
)
# Distances from the clip norm at which a record is passed, is scaled, or might be either: in units of 1e-8.
DISTANCES = st.integers(-150, 50)


def exact_square(leaves):
    return sum(fractions.Fraction(float(value)) ** 2 for leaf in leaves for value in np.ravel(leaf).astype(np.float64))


def clip_again(leaves, clip_norm):
    found = clipping.clip_again(leaves, tf.constant(clip_norm, tf.float32))
    return [leaf.numpy() for leaf in found.leaves], bool(found.scaled), bool(found.zeroed)


def check(leaves, clip_norm):
    """The guarantee of `clip_record` on a client and of `clip_again` on the server; returns what the client sends."""
    bound = fractions.Fraction(float(np.float32(clip_norm))) ** 2
    sent = [leaf.numpy() for leaf in clipping.clip_record(leaves, tf.constant(clip_norm, tf.float32))]
    assert exact_square(sent) <= bound
    added, *what = clip_again([tf.constant(leaf) for leaf in sent], clip_norm)
    assert [leaf.tobytes() for leaf in added] == [leaf.tobytes() for leaf in sent]
    assert what == [False, False]
    hostile, scaled, zeroed = clip_again(leaves, clip_norm)
    assert exact_square(hostile) <= bound
    assert not (scaled and zeroed)
    return sent, scaled


def near(seed, shapes, dtype, clip_norm, distance):
    """A record whose norm is the clip norm, but for some 1e-8 of it, as near as its type comes."""
    generator = np.random.default_rng(seed)
    values = [generator.normal(size=shape) for shape in shapes]
    norm = math.sqrt(sum(float(np.sum(np.square(value))) for value in values))
    scale = float(np.float32(clip_norm)) * (1 + distance * 1e-8) / norm
    return [tf.cast(tf.constant(value * scale), dtype) for value in values]


@given(
    seed=st.integers(0, 2**32),
    shapes=SHAPES,
    dtype=st.sampled_from([tf.float32, tf.float64]),
    clip_norm=CLIP_NORMS,
    distance=DISTANCES,
)
def test_at_the_bound(seed, shapes, dtype, clip_norm, distance):
    record = near(seed, shapes, dtype, clip_norm, distance)
    once, scaled = check(record, clip_norm)
    if distance < -90:
        assert not scaled
        assert [leaf.tobytes() for leaf in once] == [leaf.numpy().tobytes() for leaf in record]
    assert scaled or distance < -20
    twice = clipping.clip_record([tf.constant(leaf) for leaf in once], tf.constant(clip_norm, tf.float32))
    assert [leaf.numpy().tobytes() for leaf in twice] == [leaf.tobytes() for leaf in once]


@given(seed=st.integers(0, 2**32), shapes=SHAPES, dtype=st.sampled_from(clipping.LEAF_TYPES), factor=st.floats(0.5, 4))
def test_leaves_of_all_types(seed, shapes, dtype, factor):
    record = near(seed, shapes, dtype, factor, 0)
    sent, _ = check(record, 1.0)
    if factor < 0.98:
        for leaf, given_leaf in zip(sent, record, strict=True):
            np.testing.assert_array_equal(leaf, tf.cast(given_leaf, leaf.dtype))


@pytest.mark.parametrize("errors", itertools.product([-1, 0, 1], repeat=2))
@pytest.mark.parametrize("dtype", [tf.float32, tf.float64])
def test_norms_that_are_off_by_as_much_as_they_can_be(errors, dtype, monkeypatch):
    """As if the record had 2³² values, which the client and the server add up in other orders."""
    norm, client_and_server = clipping.norm, itertools.cycle((*errors, errors[1]))
    monkeypatch.setattr(clipping, "norm", lambda leaves: norm(leaves) * (1 + next(client_and_server) * NORM_ERROR))
    for seed, distance in itertools.product(range(3), (-104, -80, -56, -54, -30, -6, 0, 24, 10**8)):
        check(near(seed, [30], dtype, 1.0, distance), 1.0)


@given(
    record=st.lists(
        st.floats(width=32, allow_nan=True, allow_infinity=True)
        | st.sampled_from([3.4e38, -3.4e38, 1e-40, -1e-45, 1.2e-38, 0.0, -0.0]),
        min_size=1,
        max_size=8,
    ),
    clip_norm=CLIP_NORMS,
)
def test_whatever_a_client_sends(record, clip_norm):
    values = np.array(record, np.float32)
    once, scaled = check([tf.constant(values)], clip_norm)
    if not np.all(np.isfinite(values)):
        assert not once[0].any()
        assert not scaled


def test_values_that_float32_holds_in_part_pass_as_they_are():
    values = np.array([1e-40, -1e-45, -0.0, 0.25], np.float32)
    for leaves in ([tf.constant(values)], [tf.constant(values, tf.float64)]):
        once, scaled = check(leaves, 1.0)
        assert once[0].tobytes() == leaves[0].numpy().tobytes()
        assert not scaled


def test_what_is_scaled_and_what_is_zeroed():
    for values, expected in (
        ([0.3, 0.4], (False, False)),
        ([3.0, 4.0], (True, False)),
        ([3.0, math.nan], (False, True)),
        ([math.inf, -math.inf], (False, True)),
    ):
        assert clip_again([tf.constant(values)], 1.0)[1:] == expected
    # Above 2¹²⁶ times the clip norm.
    assert clip_again([tf.constant([3e38])], 1.0)[1:] == (False, True)
    assert clip_again([tf.constant(1e300, tf.float64)], 1.0)[1:] == (False, True)
