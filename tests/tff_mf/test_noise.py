"""Streamed noise against C⁻¹z computed densely, its distribution, and its keys."""

import numpy as np
import pytest
import scipy.stats
from hypothesis import given
from hypothesis import strategies as st

import tff_mf

tf = pytest.importorskip("tensorflow")
from tff_mf.noise import _keys, build_stream  # noqa: E402

MECHANISMS = {
    "identity": tff_mf.Identity(),
    "b100": tff_mf.BLT.production("b100"),
    "b400": tff_mf.BLT.production("b400"),
    "b1000": tff_mf.BLT.production("b1000"),
    "one buffer": tff_mf.BLT(theta=[1.0], omega=[0.5]),
}
mechanisms = pytest.mark.parametrize("mechanism", MECHANISMS.values(), ids=MECHANISMS)


def rows_of(stream, rounds, step=None):
    step = step or stream.next
    state, rows = stream.init(), []
    for _ in range(rounds):
        row, state = step(state)
        rows.append(row.numpy())
    return np.stack(rows), state


def drawn_again(state, dimension, stddev):
    """The independent rows z, from the keys that the state recorded."""
    return np.stack([_keys.standard_normal(key, dimension).numpy() for key in state.keys]) * stddev


@mechanisms
@pytest.mark.parametrize("seed", [None, 7])
@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "graph"])
def test_stream_is_the_inverse_times_the_recorded_noise(mechanism, seed, compiled):
    stream = build_stream(mechanism, dimension=5, stddev=3.0, insecure_seed=seed)
    step = tf.function(stream.next, reduce_retracing=True) if compiled else None
    rows, state = rows_of(stream, 64, step)
    expected = mechanism.inverse(64) @ drawn_again(state, 5, 3.0)
    np.testing.assert_allclose(rows, expected, rtol=1e-5, atol=1e-5)


@given(
    theta=st.lists(st.floats(1e-3, 1.0), min_size=1, max_size=4),
    scale=st.floats(0.0, 1.0),
    rounds=st.integers(1, 12),
)
def test_any_blt_streams_its_inverse(theta, scale, rounds):
    mechanism = tff_mf.BLT(theta=theta, omega=[scale / len(theta)] * len(theta))
    rows, state = rows_of(build_stream(mechanism, dimension=2, stddev=1.0), rounds)
    expected = mechanism.inverse(rounds) @ drawn_again(state, 2, 1.0)
    np.testing.assert_allclose(rows, expected, rtol=1e-4, atol=1e-4)


def test_identity_is_the_gaussian_bit_for_bit():
    rows, state = rows_of(build_stream(tff_mf.Identity(), dimension=9, stddev=2.0), 4)
    np.testing.assert_array_equal(rows, drawn_again(state, 9, np.float32(2.0)))


def whitened(mechanism, runs, rounds, stddev):
    """Rows of z behind 2,000 independent runs, each with keys of its own, from the noise alone."""
    stream = build_stream(mechanism, dimension=1, stddev=stddev)

    @tf.function
    def one_run():
        state, rows = stream.init(), []
        for _ in range(rounds):
            row, state = stream.next(state)
            rows.append(row[0])
        return tf.stack(rows)

    noise = np.stack([one_run().numpy() for _ in range(runs)]).astype(np.float64)
    return noise @ mechanism.encoder(rounds).T / stddev


@pytest.mark.parametrize("mechanism", [tff_mf.Identity(), MECHANISMS["b100"]], ids=["identity", "b100"])
def test_covariance_over_runs(mechanism):
    runs, rounds = 2000, 6
    white = whitened(mechanism, runs, rounds, stddev=1.7)
    covariance = white.T @ white / runs
    variances = runs * np.diag(covariance)
    correlations = runs * covariance[np.triu_indices(rounds, 1)] ** 2

    def plausible(scale):
        total = variances.sum() / scale**2
        diagonal = 2 * min(scipy.stats.chi2.cdf(total, runs * rounds), scipy.stats.chi2.sf(total, runs * rounds))
        return diagonal > 1e-6 and scipy.stats.chi2.sf(correlations.sum() / scale**4, correlations.size) > 1e-6

    assert plausible(1.0)
    assert not plausible(1.1)
    assert not plausible(0.9)


def test_covariance_test_rejects_independent_noise():
    white = np.random.default_rng(0).normal(size=(2000, 6)) @ MECHANISMS["b100"].encoder(6).T
    correlations = 2000 * (white.T @ white / 2000)[np.triu_indices(6, 1)] ** 2
    assert scipy.stats.chi2.sf(correlations.sum(), correlations.size) < 1e-6


@mechanisms
def test_one_state_stepped_twice_never_repeats_noise(mechanism):
    stream = build_stream(mechanism, dimension=4, stddev=1.0)
    _, state = rows_of(stream, 3)
    for step in (stream.next, tf.function(stream.next)):
        first, after_first = step(state)
        second, after_second = step(state)
        assert not np.any(first.numpy() == second.numpy())
        np.testing.assert_array_equal(after_first.keys[:3], after_second.keys[:3])
        assert not np.any(after_first.keys[3].numpy() == after_second.keys[3].numpy())


def test_two_streams_never_share_noise():
    firsts = [rows_of(build_stream(tff_mf.Identity(), dimension=4, stddev=1.0), 1)[0] for _ in range(2)]
    assert not np.any(firsts[0] == firsts[1])


def test_insecure_seeds_repeat_and_do_not_overlap():
    def values(seed):
        return rows_of(build_stream(tff_mf.Identity(), dimension=3, stddev=1.0, insecure_seed=seed), 6)[0]

    np.testing.assert_array_equal(values(7), values(7))
    streams = np.concatenate([values(seed).ravel() for seed in range(6)])
    assert len(np.unique(streams)) == streams.size


def test_float32_drift_of_the_prefix_sum():
    mechanism = MECHANISMS["b400"]
    stream = build_stream(mechanism, dimension=16, stddev=1.0, insecure_seed=1)
    rounds = 1000
    rows, state = rows_of(stream, rounds, tf.function(stream.next, reduce_retracing=True))
    exact = mechanism.as_run().inverse(rounds) @ drawn_again(state, 16, 1.0).astype(np.float64)
    drift = np.abs(np.cumsum(rows, axis=0, dtype=np.float64) - np.cumsum(exact, axis=0))
    assert drift.max() < 1e-4 * np.abs(np.cumsum(exact, axis=0)).max()


def test_standard_deviation_is_never_rounded_down():
    for stddev in (0.1, 1 / 3, 7.379, 1e-30):
        stream = build_stream(tff_mf.Identity(), dimension=1, stddev=stddev)
        assert stddev <= float(stream._stddev) <= stddev * (1 + 2e-7)


def test_a_mechanism_with_an_end_refuses_the_next_round():
    class Ends(tff_mf.Identity):
        @property
        def max_rounds(self):
            return 3

    from tff_mf.noise.identity import IdentityStream

    stream = IdentityStream(Ends(), dimension=2, stddev=1.0)
    for step in (stream.next, tf.function(stream.next, reduce_retracing=True)):
        _, state = rows_of(stream, 3, step)
        with pytest.raises(tf.errors.InvalidArgumentError, match="defined for 3 rounds"):
            step(state)


@pytest.mark.parametrize(
    ("arguments", "field"),
    [
        ({"dimension": 0}, "dimension"),
        ({"dimension": 2.5}, "dimension"),
        ({"stddev": -1.0}, "stddev"),
        ({"stddev": float("nan")}, "stddev"),
        ({"stddev": 1e39}, "stddev"),
        ({"insecure_seed": -1}, "insecure_seed"),
        ({"insecure_seed": 2**63}, "insecure_seed"),
        ({"insecure_seed": "7"}, "insecure_seed"),
        ({"mechanism": "blt"}, "mechanism"),
    ],
)
def test_bad_arguments(arguments, field):
    with pytest.raises(tff_mf.InputError, match=field):
        build_stream(**{"mechanism": tff_mf.Identity(), "dimension": 2, "stddev": 1.0, **arguments})
