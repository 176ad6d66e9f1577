"""Clipping in exact arithmetic: what was clipped passes again bit for bit, and nothing gets past the clip norm."""

import fractions
import itertools
import math

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import tff_mf

tf = pytest.importorskip("tensorflow")

from tff_mf import queries  # noqa: E402
from tff_mf.queries import clipping  # noqa: E402

# Other records in each run, from a seed that is printed.
SEEDED = {"derandomize": False, "database": None, "print_blob": True}

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


@pytest.mark.parametrize("errors", itertools.product([-1, 0, 1], repeat=2))
@pytest.mark.parametrize("dtype", [tf.float32, tf.float64])
def test_norms_that_are_off_by_as_much_as_they_can_be(errors, dtype, monkeypatch):
    """As if the record had 2³² values, which the client and the server add up in other orders."""
    norm, client_and_server = clipping.norm, itertools.cycle((*errors, errors[1]))
    monkeypatch.setattr(clipping, "norm", lambda leaves: norm(leaves) * (1 + next(client_and_server) * NORM_ERROR))
    for seed, distance in itertools.product(range(3), (-104, -80, -56, -54, -30, -6, 0, 24, 10**8)):
        check(near(seed, [30], dtype, 1.0, distance), 1.0)


NOT_FINITE = [math.nan, math.inf, -math.inf]
SENT = (
    st.floats(width=32)
    | st.sampled_from([3.4e38, -3.4e38, 1e-40, -1e-45, 1.2e-38, 0.0, -0.0])
    | st.sampled_from(NOT_FINITE)
)


@settings(**SEEDED, max_examples=100)
@example(leaves=[[math.nan]], dtype=tf.float32, clip_norm=1.0)
@example(leaves=[[0.25], [math.nan]], dtype=tf.float64, clip_norm=1.0)
@example(leaves=[[math.inf, -math.inf]], dtype=tf.float16, clip_norm=1e20)
@example(leaves=[[-math.inf, 0.25], [0.0]], dtype=tf.bfloat16, clip_norm=1e-20)
@example(leaves=[[math.inf, math.nan], []], dtype=tf.float32, clip_norm=0.3)
@given(
    leaves=st.lists(st.lists(SENT, max_size=6), min_size=1, max_size=3),
    dtype=st.sampled_from(clipping.LEAF_TYPES),
    clip_norm=CLIP_NORMS,
)
def test_whatever_a_client_sends(leaves, dtype, clip_norm):
    """One value that is not finite makes all leaves zero, and is counted."""
    record = [tf.cast(tf.constant(leaf, tf.float64), dtype) for leaf in leaves]
    once, scaled = check(record, clip_norm)
    if not all(np.isfinite(tf.cast(leaf, tf.float32)).all() for leaf in record):
        assert not any(leaf.any() for leaf in once)
        assert not scaled
        assert clip_again(record, clip_norm)[1:] == (False, True)


LARGEST = float(np.finfo(np.float32).max)
# The corners of float32: largest, smallest normal, smallest of all, half of a bit of 1, and what cannot be.
EXTREMES = [0.0, -0.0, 1.0, 1 + 2**-23, 2**-12, 2**-24, 2**-126, 2**-149, 1e-20, 1e20, LARGEST, -LARGEST]
EXTREMES += NOT_FINITE

clip = tf.function(
    lambda leaf, clip_norm: clipping.clip_record([leaf], clip_norm)[0],
    input_signature=[tf.TensorSpec([None]), tf.TensorSpec([])],
)


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


def exact_norm(leaves):
    # Of 64 bits of mantissa, so that the oracle rounds by less than what it looks for.
    squares = [np.sum(np.square(np.asarray(leaf, np.longdouble))) for leaf in leaves]
    return np.sqrt(np.sum(squares))


def assert_bounded(leaves, clip_norm):
    for leaf in leaves:
        assert np.all(np.isfinite(leaf))
    assert exact_norm(leaves) <= np.longdouble(np.float32(clip_norm))


@pytest.mark.parametrize("exponent", [-16, -13.5, -12.25, -12, -11])
@pytest.mark.parametrize("size", [4096, 65536, 2**20 + 77])
def test_squares_that_float32_would_lose(size, exponent):
    """One large value first, and many whose squares are each below half a bit of the sum so far."""
    record = np.full(size, 2.0**exponent * 0.9995, np.float32)
    record[0] = 1
    for scale, clip_norm in itertools.product((1.0, 50.0, 1e30), (1e-3, 1.0)):
        found = clip(record * np.float32(scale), clip_norm).numpy()
        assert_bounded([found], clip_norm)
        assert exact_norm([found]) >= clip_norm * (1 - 2e-6)


@pytest.mark.parametrize("dtype", [tf.float16, tf.bfloat16])
def test_values_of_16_bits_are_not_rounded_past_the_bound(dtype):
    for size, clip_norm in itertools.product((10, 1000, 10**6), (1e-3, 1e-6)):
        for value in np.linspace(0.5, 1, 9):
            found = clipping.clip_record([tf.cast(tf.fill([size], value), dtype)], tf.constant(clip_norm, tf.float32))
            assert_bounded(found, clip_norm)


def test_a_sum_of_16_bits_does_not_overflow():
    query = queries.build_query(
        tff_mf.Identity(), record_specs=tf.TensorSpec([2], tf.float16), clip_norm=1e4, noise_multiplier=1.0
    )
    state, total = query.initial_global_state(), query.initial_sample_state()
    for _ in range(100):
        total = query.accumulate_record(query.derive_sample_params(state), total, tf.constant([3e4, 0], tf.float16))
    # Whatever is released has been noised before it is rounded to 16 bits.
    assert total.dtype == tf.float32
    assert np.isfinite(total.numpy()).all()
    assert query.get_noised_result(total, state)[0].dtype == tf.float16


value = st.sampled_from(EXTREMES) | st.floats(width=32) | st.integers(-149, 127).map(lambda power: 2.0**power)


@given(
    leaves=st.lists(st.tuples(value, value, st.integers(0, 300)), min_size=1, max_size=40),
    power=st.integers(-66, 66),
    wide=st.booleans(),
)
def test_records_of_many_leaves(leaves, power, wide):
    """Leaves of one value and a run of another, empty ones too, in float32 or mixed with float64."""
    record = [
        np.array([first, *[rest] * count][: count + 1 if count else 0], np.float32) for first, rest, count in leaves
    ]
    tensors = [tf.constant(leaf, tf.float64 if wide and index % 2 else tf.float32) for index, leaf in enumerate(record)]
    clip_norm = 2.0**power
    found = clipping.clip_record(tensors, tf.constant(clip_norm, tf.float32))
    assert_bounded(found, clip_norm)
    if not all(np.isfinite(leaf).all() for leaf in record):
        assert not any(leaf.numpy().any() for leaf in found)


@pytest.mark.parametrize("clip_norm", [1e-21, 1e-40, 1e21, 3e38])
def test_clip_norms_without_room_in_float32_are_refused(clip_norm):
    with pytest.raises(tff_mf.InputError, match="clip_norm="):
        queries.build_query(
            tff_mf.Identity(), record_specs=tf.TensorSpec([2]), clip_norm=clip_norm, noise_multiplier=1.0
        )


@given(st.floats(1e-20, 1e20))
def test_the_clip_norm_is_never_rounded_up(clip_norm):
    rounded = clipping.checked_clip_norm(clip_norm)
    assert float(rounded) <= clip_norm < float(np.nextafter(rounded, np.float32(np.inf))) * (1 + 1e-15)
