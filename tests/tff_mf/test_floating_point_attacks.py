"""Attacks on floating point, by an adversary who knows all other records: they succeed without a grid, and not on one.

Each attack is a statement about a released number that no run without the victim could give.
"""

import ctypes

import numpy as np
import pytest

import tff_mf

tf = pytest.importorskip("tensorflow")

from tff_mf import queries  # noqa: E402
from tff_mf.numerics import normals  # noqa: E402

GRID = tff_mf.Grid(bits=16, max_clients=10_000)


def query(grid, dimension, *, dtype=tf.float32, noise_multiplier=0.0, mechanism=None):
    return queries.build_query(
        mechanism or tff_mf.Identity(),
        record_specs=tf.TensorSpec([dimension], dtype),
        clip_norm=1.0,
        noise_multiplier=noise_multiplier,
        grid=grid,
    )


def sum_of(made, records, counts):
    """The sum of records, each of which is added as often as `counts` says, one after another."""
    params = made.derive_sample_params(made.initial_global_state())
    sample = made.initial_sample_state()

    @tf.function(autograph=False)
    def repeated(sample, record, count):
        def add(index, sample):
            return index + 1, made.accumulate_preprocessed_record(sample, record)

        return tf.while_loop(lambda index, _: index < count, add, (0, sample), parallel_iterations=1)[1]

    for record, count in zip(records, counts, strict=True):
        sample = repeated(sample, made.preprocess_record(params, tf.constant(record)), count)
    result, _, _ = made.get_noised_result(sample, made.initial_global_state())
    return result.numpy().astype(np.float64)


def test_one_record_moves_a_sum_of_6500_by_more_than_the_clip_norm():
    """Others bring the sum to just below 2¹⁰. With the victim, it is above, where float32 has half the precision.

    All that is then subtracted, 0.9 units of the precision below at a time, is lost above and rounded up below.
    """
    dimension, clients, unit = 16, 6500, 2.0**-14
    large = np.full(dimension, 0.2499, np.float32)
    build_up = int(2**10 / large[0])
    rest = np.full(dimension, 2**10 - 4 * unit - build_up * float(large[0]), np.float32)
    victim, later = large, np.full(dimension, -0.9 * unit, np.float32)
    moved = {}
    for grid in (None, GRID):
        made = query(grid, dimension)
        subtracting = clients - build_up - 2
        # Running sums of float32 are not exact: `rest` is chosen for what the sum is by then.
        before = sum_of(made, [large], [build_up])
        rest = (2**10 - 4 * unit - before).astype(np.float32)
        with_victim, without = (
            sum_of(made, [large, rest, one, later], [build_up, 1, 1, subtracting])
            for one in (victim, np.zeros_like(victim))
        )
        moved[grid] = np.linalg.norm(with_victim - without)
    assert moved[None] > 1.5
    assert moved[GRID] <= 1


def released(made, others, victim):
    """What an adversary sees beyond the sum of the others: one release, in the precision of the model."""
    params = made.derive_sample_params(made.initial_global_state())
    sample = made.initial_sample_state()
    for record in (others, victim):
        sample = made.accumulate_record(params, sample, tf.constant(record))
    result, _, _ = made.get_noised_result(sample, made.initial_global_state())
    return result.numpy().astype(np.float64)


def by_library(name, values):
    """A float32 function of the C library, as TensorFlow calls it: NumPy's own differ in the last bit."""
    function = getattr(ctypes.CDLL("libm.so.6"), name)
    function.restype, function.argtypes = ctypes.c_float, [ctypes.c_float]
    return np.array([function(float(value)) for value in values], np.float32)


def largest_of_box_muller():
    """The largest pairs of `BoxMullerFloat` in TensorFlow's random_distributions.h, whose uniform is at least 1e-7."""
    length = np.sqrt(np.float32(-2) * by_library("logf", [1e-7])[0])
    turned = (2 * np.pi * np.arange(2**10) / 2**10).astype(np.float32)
    return np.abs([by_library("sinf", turned), by_library("cosf", turned)]).max() * length


def test_the_tail_that_float32_normals_do_not_have():
    """A value beyond 5.68 standard deviations proves that something was added, where noise ends there."""
    last, stddev, trials = 5.6778, 0.15, 40
    largest = largest_of_box_muller()
    assert 5.6 < largest < last
    made = query(None, 1, noise_multiplier=stddev)
    seen = [abs(released(made, np.zeros(1, np.float32), np.full(1, 0.999, np.float32))[0]) for _ in range(trials)]
    # Each time with probability Φ(6.66 − 5.68) = 0.84.
    assert sum(value > last * stddev for value in seen) > trials / 2

    # Noise on a grid goes on: no value up to 13 standard deviations is impossible without the victim.
    def descending(levels):
        return lambda level, count: np.full([7, count], 2**63 - 1 if level < levels else -(2**63) + 1, np.int64)

    outer = np.array([2**62 + 2**normals.INDEX_BITS - 1])
    found = [normals.from_words(outer, descending(levels))[0] for levels in range(normals.tables().levels + 1)]
    assert found == sorted(found)
    assert found[-1] > 13
    assert sum(value > last for value in found) > 3
    made = query(GRID, 1, noise_multiplier=stddev)
    for row in found:
        # What the recursion makes of such a normal is a release like any other.
        total = made.initial_sample_state()
        assert np.isfinite(made._noised(total, tf.constant([np.floor(row * stddev * 2**16)]), np.float32(1)).numpy()[0])
