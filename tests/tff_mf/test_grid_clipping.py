"""Records as integers of a grid, in exact arithmetic: the bound holds for every input, and is tight."""

import fractions
import math

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

tf = pytest.importorskip("tensorflow")

from tff_mf.queries import clipping  # noqa: E402

# Other records in each run, from a seed that is printed.
SEEDED = {"derandomize": False, "database": None, "print_blob": True}
BITS = st.integers(1, clipping.LARGEST_BITS)
CLIP_NORMS = st.sampled_from([1.0, 0.3, 1e-20, 1e20, 7.25])


def exact_square(leaves):
    return sum(int(value) ** 2 for leaf in leaves for value in np.ravel(leaf))


def on_grid(leaves, clip_norm, bits, dtype=tf.int32):
    found = clipping.clip_to_grid(leaves, tf.constant(clip_norm, tf.float32), bits=bits, dtype=dtype)
    assert all(leaf.dtype == dtype for leaf in found)
    return [leaf.numpy() for leaf in found]


def again(leaves, bits):
    found = clipping.clip_integers_again([tf.constant(leaf) for leaf in leaves], bits=bits)
    assert exact_square(leaf.numpy() for leaf in found.leaves) <= 4**bits
    return [leaf.numpy() for leaf in found.leaves], bool(found.scaled), bool(found.zeroed)


def check(leaves, clip_norm, bits, dtype=tf.int32):
    """The guarantees on the client and on the server; returns what the client sends."""
    sent = on_grid(leaves, clip_norm, bits, dtype)
    assert exact_square(sent) <= 4**bits
    added, *what = again(sent, bits)
    assert [leaf.tobytes() for leaf in added] == [leaf.tobytes() for leaf in sent]
    assert what == [False, False]
    return sent


SENT = (
    st.floats(width=32)
    | st.sampled_from([3.4e38, 1e-45, -1e-20, 1e20, -1.0])
    | st.sampled_from([math.nan, math.inf, -math.inf])
)
GRID_TYPES = st.sampled_from([tf.int32, tf.int64])


@settings(**SEEDED, max_examples=100)
@example(leaves=[[math.nan]], leaf_type=tf.float32, clip_norm=1.0, bits=16, dtype=tf.int32)
@example(leaves=[[0.25], [math.nan]], leaf_type=tf.float64, clip_norm=1.0, bits=26, dtype=tf.int64)
@example(leaves=[[math.inf, -math.inf]], leaf_type=tf.float16, clip_norm=0.3, bits=1, dtype=tf.int32)
@example(leaves=[[-math.inf, 0.25], [0.0]], leaf_type=tf.bfloat16, clip_norm=1e20, bits=8, dtype=tf.int64)
@example(leaves=[[math.inf, math.nan], []], leaf_type=tf.float32, clip_norm=1e-20, bits=16, dtype=tf.int32)
@given(
    leaves=st.lists(st.lists(SENT, max_size=6), min_size=1, max_size=3),
    leaf_type=st.sampled_from(clipping.LEAF_TYPES),
    clip_norm=CLIP_NORMS,
    bits=BITS,
    dtype=GRID_TYPES,
)
def test_any_record_of_a_client(leaves, leaf_type, clip_norm, bits, dtype):
    """One value that is not finite makes all leaves zero."""
    record = [tf.cast(tf.constant(leaf, tf.float64), leaf_type) for leaf in leaves]
    sent = check(record, clip_norm, bits, dtype)
    if not all(np.isfinite(tf.cast(leaf, tf.float32)).all() for leaf in record):
        assert not any(leaf.any() for leaf in sent)


def filled(values, bits):
    """Returns values that, with others before them, have a sum of squares of exactly 4^bits: greedily, by roots."""
    rest = 4**bits - sum(value * value for value in values)
    while rest:
        values = [*values, math.isqrt(rest)]
        rest -= values[-1] ** 2
    return values


@st.composite
def integers(draw):
    """Any integers, or integers whose squares add up to 4^bits within a few units, in any order and with any signs."""
    bits, dtype = draw(BITS), draw(st.sampled_from([np.int32, np.int64]))
    if draw(st.booleans()):
        ends = np.iinfo(dtype)
        record = draw(st.lists(st.integers(ends.min, ends.max) | st.integers(-(2**27), 2**27), min_size=1, max_size=8))
        return record, bits, dtype
    some = draw(st.lists(st.integers(0, 2**bits // 3), max_size=6))
    values = filled(some, bits) + draw(st.sampled_from([[], [0], [1], [1, 1], [2]]))
    place, step = draw(st.integers(0, len(values) - 1)), draw(st.sampled_from([0, 0, 1, -1]))
    values[place] += step
    return [draw(st.sampled_from([1, -1])) * value for value in draw(st.permutations(values))], bits, dtype


@settings(**SEEDED, max_examples=150)
@example(given_integers=([2**26], 26, np.int32))
@example(given_integers=([2**26, 1], 26, np.int32))
@example(given_integers=([1, -(2**26)], 26, np.int64))
@example(given_integers=([-(2**31)] * 4, 26, np.int32))
@example(given_integers=([-(2**63), 2**63 - 1], 26, np.int64))
@example(given_integers=([1, 1, 1, 1, 1], 1, np.int64))
@given(given_integers=integers())
def test_integers_pass_the_server_exactly_if_their_squares_add_up_to_4_to_the_bits(given_integers):
    record, bits, dtype = given_integers
    values = np.array(record, dtype)
    added, scaled, zeroed = again([values[:1], values[1:]], bits)
    passes = exact_square([values]) <= 4**bits
    assert (scaled or zeroed) == (not passes)
    assert not (scaled and zeroed)
    if passes:
        np.testing.assert_array_equal(np.concatenate(added), values)
    if zeroed:
        assert not np.concatenate(added).any()


@st.composite
def flat_records(draw):
    """Bits, a number of equal values, and their size in units: near half of a unit, or at the edge of what passes."""
    bits, size = draw(BITS), draw(st.integers(1, 2**14) | st.integers(2**14, 2**16))
    whole = 2**bits / math.sqrt(size)
    if draw(st.booleans()):
        return bits, size, math.floor(whole) + draw(st.floats(0.4, 0.6))
    return bits, size, whole * (1 - draw(st.floats(7.5e-7, 12e-7)))


def at_the_edge(size):
    """Of a record that passes as it is: for these sizes, its integers are longer than the clip norm by 4e-7 at most."""
    return 26, size, 2**26 / math.sqrt(size) * (1 - 9e-7)


@settings(**SEEDED, max_examples=60)
@example(record=at_the_edge(40_002), dtype=tf.int32, wide=True)
@example(record=at_the_edge(33_140), dtype=tf.int32, wide=True)
@example(record=at_the_edge(36_956), dtype=tf.int64, wide=True)
@example(record=at_the_edge(51_641), dtype=tf.int32, wide=True)
@given(record=flat_records(), dtype=GRID_TYPES, wide=st.booleans())
def test_values_that_all_round_to_one_side(record, dtype, wide):
    """About the worst that rounding can do to a norm."""
    bits, size, value = record[0], record[1], record[2] / 2 ** record[0]
    (sent,) = check([tf.fill([size], tf.constant(value, tf.float64 if wide else tf.float32))], 1.0, bits, dtype)
    # Nothing is lost either: it is about as long as the clip norm or the record, where these are a few units.
    if value * 2**bits > 8:
        assert math.sqrt(exact_square([sent])) >= 0.8 * 2**bits * min(1.0, value * math.sqrt(size))


@given(seed=st.integers(0, 2**32), size=st.integers(1, 60), bits=BITS, factor=st.floats(0.9, 1.1), flat=st.booleans())
def test_near_the_bound(seed, size, bits, factor, flat):
    values = np.ones(size) if flat else np.random.default_rng(seed).normal(size=size)
    values *= factor / np.linalg.norm(values)
    for dtype in (tf.float32, tf.float64):
        check([tf.cast(values, dtype)], 1.0, bits)


@given(seed=st.integers(0, 2**32), bits=st.integers(8, 20), clip_norm=st.sampled_from([1.0, 0.3]))
def test_shorter_records_are_rounded_to_nearest(seed, bits, clip_norm):
    values = np.random.default_rng(seed).normal(size=20).astype(np.float32)
    values *= np.float32(0.8 * clip_norm / np.linalg.norm(values))
    (sent,) = check([tf.constant(values)], clip_norm, bits)
    unit = fractions.Fraction(float(np.float32(clip_norm))) / 2**bits
    for value, integer in zip(values, sent, strict=True):
        distance = abs(fractions.Fraction(float(value)) / unit - int(integer))
        assert distance <= fractions.Fraction(1, 2) + fractions.Fraction(1, 2**20)


def test_the_comparison_is_exact_where_integers_of_64_bits_wrap_around():
    bits = clipping.LARGEST_BITS
    largest = np.full(2**12, 2**bits, np.int64)
    # The sum of the squares is 2^64, which is 0 for int64: a sum of integers would pass.
    assert int(np.sum(largest**2)) == 0
    assert not clipping.within([tf.constant(largest, tf.float64)], bits)
    tail = [1.0] * 100
    for values in ([2.0**bits - 1, 11585.0], [11585.0, 2.0**bits - 1], [*tail, 2.0**bits], [2.0**bits, 0.0]):
        expected = sum(int(value) ** 2 for value in values) <= 4**bits
        assert bool(clipping.within([tf.constant(values, tf.float64)], bits)) is expected
    # Each one that is added to 2⁵³ is lost, and none makes the sum smaller than that.
    assert not clipping.within([tf.constant([2.0**27, *tail], tf.float64)], bits)
    assert not clipping.within([tf.constant([math.nan, 0.0], tf.float64)], bits)
    assert not clipping.within([tf.constant([-(2.0**1000), 0.0], tf.float64)], bits)


def test_values_that_all_round_up_are_rounded_toward_zero():
    size, bits = 2**14 + 100, 10
    (sent,) = check([tf.ones([size])], 1.0, bits)
    exact = 2**bits / math.sqrt(size)
    assert 7.9 < exact * (1 - 2.0 ** (1 - bits)) < exact < 8
    assert exact_square([np.full(size, 8)]) > 4**bits
    np.testing.assert_array_equal(sent, 7)


def test_counts_of_scaled_and_zeroed_records():
    bits = 4
    for values, expected in (([10, -12], (False, False)), ([16, 1], (True, False)), ([1] * 257, (False, True))):
        assert again([np.array(values, np.int32)], bits)[1:] == expected
