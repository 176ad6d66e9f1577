"""Normals whose error is proved, in TensorFlow: the bits of NumPy, and what an adversary learns from pairs."""

import numpy as np
import pytest

tf = pytest.importorskip("tensorflow")
from tff_mf.noise.tensorflow import _normals, exact_normal, in_parts  # noqa: E402
from tff_mf.numerics import normals  # noqa: E402

KEY = np.array([0x0123456789ABCDEF, -(2**62) - 12345], np.int64)


def drawn(key, dimension, **options):
    return tf.function(lambda key: exact_normal(key, dimension), autograph=False, **options)(tf.constant(key)).numpy()


@pytest.fixture
def small_parts(monkeypatch):
    monkeypatch.setattr(normals, "PART", 2**11)
    monkeypatch.setattr(normals._philox, "PART", 2**11)


@pytest.mark.parametrize("dimension", [1, 2, 2**11, 5 * 2**11 + 3])
def test_tensorflow_and_numpy_give_the_same_bits(dimension, small_parts):
    np.testing.assert_array_equal(drawn(KEY, dimension), normals.draw(KEY, dimension))


def test_the_graph_optimizer_changes_nothing():
    expected = normals.draw(KEY, 10_000)
    before = tf.config.optimizer.get_experimental_options()
    try:
        for options in ({"disable_meta_optimizer": True}, {"remapping": True, "constant_folding": True}):
            tf.config.optimizer.set_experimental_options(options)
            np.testing.assert_array_equal(drawn(KEY, 10_000), expected)
    finally:
        tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": False, **before})


def test_xla_refuses_the_sampler_and_changes_none_of_its_arithmetic():
    """The number of values that no layer covers is known to no compiler."""
    with pytest.raises((tf.errors.InvalidArgumentError, tf.errors.UnimplementedError)):
        drawn(KEY, 10_000, jit_compile=True)
    constants, words = _normals._Constants(normals.tables()), normals.words(KEY, 0, 14_000)
    compiled = tf.function(lambda words: _normals._covered(words, constants)[0], jit_compile=True, autograph=False)
    np.testing.assert_array_equal(compiled(tf.constant(words)), _normals._covered(tf.constant(words), constants)[0])
    pieces = tf.function(
        lambda words: _normals._of_pieces(words, constants, tf.constant(0)), jit_compile=True, autograph=False
    )
    expected = normals._arithmetic._of_pieces(words.reshape(7, -1), normals.tables(), 0)
    np.testing.assert_array_equal(pieces(tf.constant(words.reshape(7, -1)))[0], expected[0])


def test_the_words_are_those_of_tensorflow():
    for key in (KEY, np.array([0, 0], np.int64), np.array([-1, 2**63 - 1], np.int64)):
        words = tf.random.stateless_uniform([1001], key, minval=None, maxval=None, dtype=tf.int64, alg="philox")
        np.testing.assert_array_equal(normals.words(key, 0, 1001), words)
        generator = _normals._Generator(tf.constant(key))
        for block in (7, 2**32 - 3, 6 << 61):
            # The generator reads its counter as unsigned.
            signed = np.array(block, np.uint64).view(np.int64)
            np.testing.assert_array_equal(normals.words(key, block, 50), generator.words(signed, [50]))


@pytest.mark.parametrize("level", range(normals.tables().levels))
def test_every_level_gives_the_bits_of_numpy(level):
    words = np.random.default_rng(level).integers(-(2**63), 2**63, (7, 2000))
    words[0, :100] = 2**63 - 1
    words[1:, 100:200] = -(2**63)
    words[1:, 200:300] = 2**63 - 1
    magnitudes, descends = normals._arithmetic._of_pieces(words, normals.tables(), level)
    found = _normals._of_pieces(tf.constant(words), _normals._Constants(normals.tables()), tf.constant(level))
    np.testing.assert_array_equal(found[0], magnitudes)
    np.testing.assert_array_equal(found[1], descends)
    assert descends[:100].all()


def test_values_that_descend_are_drawn_again_from_the_next_level(monkeypatch):
    """One in 10⁹: the tables of this test descend from the first level nearly always."""
    table = normals.tables()
    low = np.full_like(table.cumulative[0], -(2**63) + 2**60)
    changed = normals.Tables(layers=table.layers, edges=table.edges, cumulative=(low, *table.cumulative[1:]))
    for module in (normals, normals._arithmetic):
        monkeypatch.setattr(module, "tables", lambda: changed)
    found = drawn(KEY, 50_000)
    np.testing.assert_array_equal(found, normals.draw(KEY, 50_000))
    assert 100 < (np.abs(found) > 5.5).sum() < 500


def test_parts_come_with_their_bounds(small_parts):
    dimension = 3 * 2**11 + 5
    whole, places = in_parts(
        tf.constant(KEY),
        dimension,
        lambda part, begin, end: (tf.cast(part * 1024, tf.int64), tf.range(begin, end)),
        [tf.int64, tf.int32],
    )
    np.testing.assert_array_equal(places, np.arange(dimension))
    np.testing.assert_array_equal(whole, np.trunc(normals.draw(KEY, dimension) * 1024))
