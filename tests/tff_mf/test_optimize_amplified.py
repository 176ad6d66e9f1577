"""Mechanisms made for balls-in-bins sampling: the search is exact where it claims to be, and what it finds is best."""

import functools

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest

import tff_mf
from tff_mf.mechanisms import OptimizedFor
from tff_mf.optimize.amplified import AmplifiedSearch, BLTFamily, best_column, quadratic_form

from .oracles import slopes

ROUNDS, BINS, DELTA = 64, 16, 1e-5
SETTING = {"rounds": ROUNDS, "bins": BINS, "delta": DELTA}


def error_at(mechanism, epsilon, objective="rms", rounds=ROUNDS, bins=BINS):
    """σ·error, estimated from the mechanism alone."""
    estimator = tff_mf.BallsInBinsEstimator(tff_mf.balls_in_bins_gram(mechanism, rounds, bins=bins))
    error = tff_mf.rms_error if objective == "rms" else tff_mf.max_error
    return estimator.noise_multiplier(epsilon=epsilon, delta=DELTA) * error(mechanism, rounds)


@functools.cache
def found(kind, epsilon, objective="rms", count=None):
    if kind == "blt":
        return tff_mf.optimize_amplified_blt(**SETTING, epsilon=epsilon, objective=objective, buffers=count)
    return tff_mf.optimize_amplified_banded_toeplitz(**SETTING, epsilon=epsilon, objective=objective, bands=count)


@hypothesis.given(
    rounds=st.integers(1, 12), bins=st.integers(1, 12), length=st.integers(1, 12), seed=st.integers(0, 99)
)
def test_the_quadratic_form_is_that_of_the_dense_gram_matrix(rounds, bins, length, seed):
    bins, length = min(bins, rounds), min(length, rounds)
    generator = np.random.default_rng(seed)
    weights, column = generator.random((bins, bins)), generator.random(length)
    weights += weights.T
    encoder = sum(value * np.eye(rounds, k=-lag) for lag, value in enumerate(column))
    indicators = (np.arange(rounds)[:, np.newaxis] % bins == np.arange(bins)).astype(float)
    gram = (encoder @ indicators).T @ (encoder @ indicators)
    assert column @ quadratic_form(weights, rounds, length) @ column == pytest.approx(np.vdot(weights, gram))


@pytest.mark.parametrize("objective", ["rms", "max"])
def test_gradients_are_those_of_finite_differences(objective):
    schema = tff_mf.FixedEpoch(min_sep=4, max_participations=3)
    search = AmplifiedSearch(OptimizedFor(rounds=12, participation=schema), objective, epsilon=2.0, delta=1e-5)
    search.measure(np.array([1.0, 0.5, 0.25]))
    of_column = search.surrogate(12)
    of_variables = BLTFamily(search.optimized_for).loss(of_column, 2)
    generator = np.random.default_rng(0)
    for loss, at in ((of_column, generator.random(12)), (of_variables, generator.normal(-1, 1, 4))):
        expected = slopes(lambda point, loss=loss: loss(point)[0], at)
        np.testing.assert_allclose(loss(at)[1], expected, rtol=1e-5, atol=1e-8)


@pytest.mark.once
@pytest.mark.parametrize(("epsilon", "objective"), [(0.5, "rms"), (4.0, "max")])
def test_no_other_column_is_better(epsilon, objective):
    result = found("toeplitz", epsilon, objective, BINS)
    mechanism, least = result.mechanism, result.estimated_error
    column = np.array(mechanism.column)
    assert mechanism.optimized_for.converged
    assert column.min() >= 0
    assert mechanism.bands <= BINS
    assert least == pytest.approx(error_at(mechanism, epsilon, objective), rel=1e-6)
    generator = np.random.default_rng(1)
    for size in (0.003, 0.03, 0.3):
        for _ in range(2):
            other = column * np.exp(size * generator.standard_normal(len(column)))
            assert error_at(tff_mf.BandedToeplitz(column=other.tolist()), epsilon, objective) > least * (1 - 5e-4)


@pytest.mark.once
def test_it_beats_mechanisms_made_without_amplification():
    epsilon = 0.5
    made = [found("toeplitz", epsilon), found("blt", epsilon)]
    schema = tff_mf.FixedEpoch(min_sep=BINS, max_participations=4)
    others = [tff_mf.Identity(), tff_mf.optimize_blt(rounds=ROUNDS, participation=schema, objective="rms")]
    others += [tff_mf.optimize_banded_toeplitz(rounds=ROUNDS, bands=bands, participation=schema) for bands in (4, 16)]
    least = min(error_at(other, epsilon) for other in others)
    for result in made:
        assert error_at(result.mechanism, epsilon) < 0.99 * least
        assert result.estimated_noise_multiplier == pytest.approx(
            result.estimated_error / tff_mf.rms_error(result.mechanism, ROUNDS), rel=1e-9
        )
    # A BLT is a Toeplitz matrix too.
    assert made[1].estimated_error > made[0].estimated_error * 0.995


@pytest.mark.once
def test_the_choice_of_bands_costs_little_and_saves_many():
    chosen, all_of_them = found("toeplitz", 0.5), found("toeplitz", 0.5, "rms", BINS)
    assert chosen.mechanism.bands < all_of_them.mechanism.bands
    assert chosen.estimated_error < all_of_them.estimated_error * 1.01


@pytest.mark.once
def test_more_buffers_and_more_bands_are_no_worse():
    chosen = found("blt", 0.5).mechanism.buffers
    assert found("blt", 0.5).estimated_error <= found("blt", 0.5, "rms", chosen - 1 or 1).estimated_error * 1.001
    assert found("toeplitz", 0.5, "rms", BINS).estimated_error < found("toeplitz", 0.5, "rms", 2).estimated_error


def test_one_bin_is_the_guarantee_without_amplification():
    result = tff_mf.optimize_amplified_banded_toeplitz(rounds=24, bins=1, epsilon=2.0, delta=DELTA)
    every_round = tff_mf.FixedEpoch(min_sep=1, max_participations=24)
    sigma = tff_mf.calibrate_noise_multiplier(result.mechanism, 24, every_round, epsilon=2.0, delta=DELTA)
    assert result.estimated_noise_multiplier == pytest.approx(sigma, rel=1e-4)
    best = tff_mf.optimize_banded_toeplitz(rounds=24, bands=24, participation=every_round)
    # That search also has columns that rise, or are below 0.
    assert result.estimated_error <= 1.001 * error_at(best, 2.0, rounds=24, bins=1)


@pytest.mark.once
def test_another_workload_has_another_optimum():
    momentum = tff_mf.Momentum(momentum=0.9)
    result = tff_mf.optimize_amplified_banded_toeplitz(**SETTING, epsilon=0.5, bands=BINS, workload=momentum)
    sigma = result.estimated_noise_multiplier
    assert result.estimated_error == pytest.approx(sigma * tff_mf.rms_error(result.mechanism, ROUNDS, momentum))
    plain = found("toeplitz", 0.5, "rms", BINS)
    at_plain = plain.estimated_noise_multiplier * tff_mf.rms_error(plain.mechanism, ROUNDS, momentum)
    assert result.estimated_error < at_plain


def test_the_best_column_is_found_on_the_boundary():
    def loss(column):
        return (column - [1.0, 0.5, -0.5]) @ (column - [1.0, 0.5, -0.5]), 2 * (column - [1.0, 0.5, -0.5])

    best = best_column(loss, np.ones(3))
    assert best.column == pytest.approx([1, 0.5, 0], abs=1e-6)
    assert best.gradient_norm < 1e-6
