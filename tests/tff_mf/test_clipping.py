"""Clipping in exact arithmetic, in floats and to integers of a grid: what was clipped passes again bit for bit, and
nothing gets past the clip norm.
"""

import fractions
import itertools
import math

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

tf = pytest.importorskip("tensorflow")

from tff_mf.queries import clipping  # noqa: E402

# Other records in each run, from a seed that is printed.
SEEDED = {"derandomize": False, "database": None, "print_blob": True}
# Relative errors that the norm of 2³² values can have, added up in the order that is worst.
NORM_ERROR = 2.0**-22
SHAPES = st.lists(st.integers(1, 40), min_size=1, max_size=3)
CLIP_NORMS = st.floats(-20, 20).map(lambda exponent: float(np.float32(10**exponent))) | st.sampled_from(
    [1.0, 0.3, 1e20, 1e-20]
)
# Distances from the clip norm at which a record is passed, is scaled, or might be either: in units of 1e-8.
DISTANCES = st.integers(-150, 50)
BITS = st.integers(1, clipping.LARGEST_BITS)
GRID_TYPES = st.sampled_from([tf.int32, tf.int64])
ON_A_GRID = st.none() | st.tuples(BITS, GRID_TYPES)


def exact_square(leaves):
    """Of integers, or of floats, in fractions."""
    values = np.concatenate([np.ravel(leaf) for leaf in leaves])
    if values.dtype.kind == "i":
        return sum(int(value) ** 2 for value in values)
    return sum(fractions.Fraction(float(value)) ** 2 for value in values.astype(np.float64))


def clip_again(leaves, clip_norm):
    found = clipping.clip_again([tf.constant(leaf) for leaf in leaves], tf.constant(clip_norm, tf.float32))
    assert (
        exact_square([leaf.numpy() for leaf in found.leaves]) <= fractions.Fraction(float(np.float32(clip_norm))) ** 2
    )
    return [leaf.numpy() for leaf in found.leaves], bool(found.scaled), bool(found.zeroed)


def clip_integers_again(leaves, bits):
    found = clipping.clip_integers_again([tf.constant(leaf) for leaf in leaves], bits=bits)
    assert exact_square([leaf.numpy() for leaf in found.leaves]) <= 4**bits
    return [leaf.numpy() for leaf in found.leaves], bool(found.scaled), bool(found.zeroed)


def check(leaves, clip_norm, grid=None):
    """The guarantees of a client and of the server; returns what the client sends, and whether a server would scale.

    On a grid, of bits and a type, the client sends integers.
    """
    if grid is None:
        sent = [leaf.numpy() for leaf in clipping.clip_record(leaves, tf.constant(clip_norm, tf.float32))]
        assert exact_square(sent) <= fractions.Fraction(float(np.float32(clip_norm))) ** 2
        added, *what = clip_again(sent, clip_norm)
        _, scaled, zeroed = clip_again(leaves, clip_norm)
        assert not (scaled and zeroed)
    else:
        bits, dtype = grid
        found = clipping.clip_to_grid(leaves, tf.constant(clip_norm, tf.float32), bits=bits, dtype=dtype)
        assert all(leaf.dtype == dtype for leaf in found)
        sent, scaled = [leaf.numpy() for leaf in found], False
        assert exact_square(sent) <= 4**bits
        added, *what = clip_integers_again(sent, bits)
    assert [leaf.tobytes() for leaf in added] == [leaf.tobytes() for leaf in sent]
    assert what == [False, False]
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
    dtype=st.sampled_from(clipping.LEAF_TYPES),
    clip_norm=CLIP_NORMS,
    distance=DISTANCES,
    grid=st.tuples(BITS, GRID_TYPES),
)
def test_at_the_bound(seed, shapes, dtype, clip_norm, distance, grid):
    record = near(seed, shapes, dtype, clip_norm, distance)
    check(record, clip_norm, grid)
    once, scaled = check(record, clip_norm)
    # Of 16 bits, a record has another norm.
    if dtype.size > 2 and distance < -90:
        assert not scaled
        assert [leaf.tobytes() for leaf in once] == [leaf.numpy().tobytes() for leaf in record]
    assert scaled or distance < -20 or dtype.size == 2
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
# The corners of float32: largest, smallest normal, smallest of all, half of a bit of 1, and what cannot be.
EXTREMES = [3.4e38, -3.4e38, 0.0, -0.0, 1.0, 1 + 2**-23, 2**-12, 2**-24, 2**-126, 2**-149, 1e-20, 1e20, *NOT_FINITE]
VALUES = st.floats(width=32) | st.sampled_from(EXTREMES) | st.integers(-149, 127).map(lambda power: 2.0**power)
# A value, and how often another follows it: none at all, too.
LEAVES = st.tuples(VALUES, VALUES, st.integers(0, 300)).map(lambda leaf: [leaf[0], *[leaf[1]] * leaf[2]])


@settings(**SEEDED, max_examples=150)
@example(leaves=[[math.nan]], dtype=tf.float32, clip_norm=1.0, grid=None)
@example(leaves=[[0.25], [math.nan]], dtype=tf.float64, clip_norm=1.0, grid=(26, tf.int64))
@example(leaves=[[math.inf, -math.inf]], dtype=tf.float16, clip_norm=1e20, grid=(1, tf.int32))
@example(leaves=[[-math.inf, 0.25], [0.0]], dtype=tf.bfloat16, clip_norm=1e-20, grid=None)
@example(leaves=[[math.inf, math.nan], []], dtype=tf.float32, clip_norm=0.3, grid=(16, tf.int32))
@given(
    leaves=st.lists(LEAVES | st.just([]), min_size=1, max_size=12),
    dtype=st.sampled_from(clipping.LEAF_TYPES),
    clip_norm=CLIP_NORMS,
    grid=ON_A_GRID,
)
def test_whatever_a_client_sends(leaves, dtype, clip_norm, grid):
    """One value that is not finite makes all leaves zero, and is counted."""
    record = [tf.cast(tf.constant(leaf, tf.float64), dtype) for leaf in leaves]
    sent, scaled = check(record, clip_norm, grid)
    if not all(np.isfinite(tf.cast(leaf, tf.float32)).all() for leaf in record):
        assert not any(leaf.any() for leaf in sent)
        assert not scaled
        assert clip_again(record, clip_norm)[1:] == (False, True)


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
    for values, expected in (([10, -12], (False, False)), ([16, 1], (True, False)), ([1] * 257, (False, True))):
        assert clip_integers_again([np.array(values, np.int32)], 4)[1:] == expected


@pytest.mark.parametrize("exponent", [-16, -13.5, -12.25, -12, -11])
@pytest.mark.parametrize("size", [4096, 65536, 2**20 + 77])
def test_squares_that_float32_would_lose(size, exponent):
    """One large value first, and many whose squares are each below half a bit of the sum so far."""
    record = np.full(size, 2.0**exponent * 0.9995, np.float32)
    record[0] = 1
    for scale, clip_norm in itertools.product((1.0, 50.0, 1e30), (1e-3, 1.0)):
        (found,) = clipping.clip_record([tf.constant(record * np.float32(scale))], tf.constant(clip_norm, tf.float32))
        # Of 64 bits of mantissa, so that the oracle rounds by less than what it looks for.
        norm = np.sqrt(np.sum(np.square(np.asarray(found, np.longdouble))))
        assert clip_norm * (1 - 2e-6) <= norm <= np.longdouble(np.float32(clip_norm))


@given(st.floats(1e-20, 1e20))
def test_the_clip_norm_is_never_rounded_up(clip_norm):
    rounded = clipping.checked_clip_norm(clip_norm)
    assert float(rounded) <= clip_norm < float(np.nextafter(rounded, np.float32(np.inf))) * (1 + 1e-15)


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
    added, scaled, zeroed = clip_integers_again([values[:1], values[1:]], bits)
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
    ((sent,), _) = check([tf.fill([size], tf.constant(value, tf.float64 if wide else tf.float32))], 1.0, (bits, dtype))
    # Nothing is lost either: it is about as long as the clip norm or the record, where these are a few units.
    if value * 2**bits > 8:
        assert math.sqrt(exact_square([sent])) >= 0.8 * 2**bits * min(1.0, value * math.sqrt(size))


@pytest.mark.parametrize("bits", [1, 4, 8])
def test_a_record_of_one_value_among_many_keeps_its_length(bits):
    """At few bits, rounding is expected to lengthen it by more than the whole clip norm."""
    ((sent,), _) = check([tf.one_hot(0, 2**16, 3.0)], 1.0, (bits, tf.int32))
    assert sent[0] == 2**bits


@given(seed=st.integers(0, 2**32), bits=st.integers(8, 20), clip_norm=st.sampled_from([1.0, 0.3]))
def test_shorter_records_are_rounded_to_nearest(seed, bits, clip_norm):
    values = np.random.default_rng(seed).normal(size=20).astype(np.float32)
    values *= np.float32(0.8 * clip_norm / np.linalg.norm(values))
    ((sent,), _) = check([tf.constant(values)], clip_norm, (bits, tf.int32))
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


def test_integers_that_all_become_zero_are_counted_in_graphs_of_tff_too():
    """In a graph of TensorFlow 1, as TFF has them, `!=` compares objects and not their values."""
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        clipped = clipping.clip_integers_again([tf.ones([4**8 + 1], tf.int32)], bits=8)
        leaves, *counted = session.run([clipped.leaves, clipped.scaled, clipped.zeroed])
    assert not np.any(leaves[0])
    assert counted == [False, True]
