"""The matrix G of balls-in-bins sampling, and estimates of ε from it."""

import numpy as np
import pytest

import tff_mf
from tff_mf.accounting import BallsInBinsEstimator, balls_in_bins_gram

BLT = tff_mf.BLT(theta=[0.9, 0.5], omega=[0.1, 0.2])
MECHANISMS = {
    "blt": BLT,
    "banded": tff_mf.Banded(values=[[1.0] * 30, [0.5] * 30, [0.25] * 30]),
    "tree": tff_mf.Tree(30, variant="full"),
    "identity": tff_mf.Identity(),
}


@pytest.mark.parametrize("name", MECHANISMS)
@pytest.mark.parametrize("bins", [1, 7, 30])
def test_the_gram_matrix_is_that_of_the_dense_matrix(name, bins):
    encoder = MECHANISMS[name].cast_to_float32().encoder(30)
    columns = np.stack([encoder[:, group::bins].sum(axis=1) for group in range(bins)], axis=1)
    found = balls_in_bins_gram(MECHANISMS[name], 30, bins=bins)
    np.testing.assert_allclose(found, columns.T @ columns, rtol=1e-13)


@pytest.mark.parametrize(
    "mechanism",
    [
        tff_mf.BandedToeplitz(column=[1.0, 0.5, -0.25]),
        tff_mf.Banded(values=[[1.0] * 4, [0.5, 0.5, -0.125, 0.0]]),
        tff_mf.Dense(matrix=np.eye(4) - 0.5 * np.eye(4, k=-2)),
    ],
    ids=lambda mechanism: mechanism.kind,
)
def test_entries_below_zero_count_as_if_they_were_above(mechanism):
    columns = np.abs(mechanism.encoder(4)) @ np.tile(np.eye(2), 2).T
    assert balls_in_bins_gram(mechanism, 4, bins=2) == pytest.approx(columns.T @ columns, rel=1e-12)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("epsilon", [1e-3, 100.0, 1e4])
def test_extreme_estimates_do_not_overflow(epsilon):
    estimator = BallsInBinsEstimator(balls_in_bins_gram(tff_mf.Identity(), 60, bins=20))
    sigma = estimator.noise_multiplier(epsilon=epsilon, delta=1e-6)
    found = estimator.epsilon(noise_multiplier=sigma, delta=1e-6)
    assert found.epsilon == pytest.approx(epsilon, rel=1e-5)
    assert np.all(np.isfinite(found.gradient))


def test_the_gradient_is_the_derivative():
    gram = balls_in_bins_gram(BLT, 60, bins=10)
    generator = np.random.default_rng(0)
    direction = generator.uniform(size=(10, 4))
    direction = direction @ direction.T / 20

    def epsilon(step):
        return BallsInBinsEstimator(gram + step * direction).epsilon(noise_multiplier=1.5, delta=1e-5)

    slope = (epsilon(0.1).epsilon - epsilon(-0.1).epsilon) / 0.2
    assert np.sum(epsilon(0.0).gradient * direction) == pytest.approx(slope, rel=0.05)
