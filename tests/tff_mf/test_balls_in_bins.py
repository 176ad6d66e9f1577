"""Bounds and estimates of balls-in-bins sampling, against quadrature and against runs by the definition."""

import dataclasses
import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import tff_mf
from tests.tff_mf import balls_in_bins_oracle as oracle
from tff_mf.accounting import _bins_moments as bounds
from tff_mf.accounting import balls_in_bins
from tff_mf.accounting._bins_moments import (
    Moments,
    _proven,
    central_moments,
    dominating_pair,
    gaussian_delta,
    moment_delta,
)
from tff_mf.accounting.balls_in_bins import Estimator, balls_in_bins_gram
from tff_mf.accounting.betting import Remove, Sampler, best_bets, mean_is_at_most
from tff_mf.numerics import gaussian

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


BANDED = tff_mf.BandedToeplitz(column=[1.0, 0.6, 0.3])


def covariance(bins, sigma, mechanism=BLT):
    return balls_in_bins_gram(mechanism, 12, bins=bins) / sigma**2


def deltas_by_the_pair(matrix, epsilon, *, remove):
    """Returns δ(ε) as the package writes it, E[Z·δ_G(ε − L′)] or E[δ_G(ε + L′)], by trapezoids over all normals."""
    pair = dominating_pair(matrix, relative_error=0.0)
    bins = len(matrix)
    axis = np.linspace(-13, 13, {2: 401, 3: 91, 4: 41}[bins])
    weight = np.exp(-axis * axis / 2) / math.sqrt(2 * math.pi) * (axis[1] - axis[0])
    weights = np.prod(np.meshgrid(*[weight] * bins, indexing="ij"), axis=0).ravel()
    normals = np.stack([grid.ravel() for grid in np.meshgrid(*[axis] * bins, indexing="ij")], axis=1)
    loss = np.log(np.exp(normals @ pair.root.T - pair.variances / 2).mean(axis=1))
    heights = gaussian_delta(epsilon - loss if remove else epsilon + loss, math.sqrt(pair.common))
    return float(weights @ (heights * np.exp(loss) if remove else heights))


def test_certificates_of_a_search_fail_together_with_no_more_than_is_stated(monkeypatch):
    certified, failures = balls_in_bins.certified, []

    def counted(*of, failure, **more):
        failures.append(failure)
        return certified(*of, failure=failure, **more)

    monkeypatch.setattr(balls_in_bins, "certified", counted)
    sampling, samples = tff_mf.BallsInBins(groups=6), 20_000
    tff_mf.calibrate_noise_multiplier(BANDED, 24, sampling, epsilon=4.0, delta=1e-5, samples=samples)
    assert 0 < sum(failures) < 1e-3 * 1e-5, "and some is left to further attempts"


def test_one_bin_is_the_gaussian():
    p = tff_mf.FixedEpoch(min_sep=1, max_participations=12)
    for delta in (1e-2, 1e-6, 1e-12):
        plain = tff_mf.guarantee(BLT, 12, p, noise_multiplier=9.0).epsilon(delta)
        found = tff_mf.guarantee(BLT, 12, tff_mf.BallsInBins(groups=1), noise_multiplier=9.0).at(delta=delta)
        assert found.epsilon == pytest.approx(plain, rel=1e-9)
        assert (found.theorem, found.failure) == ("unamplified", 0.0)


@pytest.mark.parametrize("bins", [2, 3, pytest.param(4, marks=pytest.mark.long)])  # Two and three cover the code.
@pytest.mark.parametrize("remove", [True, False])
@pytest.mark.parametrize("delta", [1e-2, 1e-6, 1e-12])
def test_the_pair_is_that_of_the_definition(bins, remove, delta):
    matrix = covariance(bins, 3.0)
    epsilon = 0.9 * gaussian.epsilon_from_delta(delta, math.sqrt(np.max(matrix)))
    exact = oracle.quadrature(matrix, epsilon, remove=remove)
    assert exact < 3 * delta
    assert deltas_by_the_pair(matrix, epsilon, remove=remove) == pytest.approx(exact, rel=1e-6)


@pytest.mark.parametrize("remove", [True, False])
@pytest.mark.parametrize("sigma", [1.5, 4.0])
@pytest.mark.parametrize("delta", [1e-3, 1e-7, 1e-12])
def test_the_deterministic_bound_is_above_quadrature(remove, sigma, delta):
    matrix = covariance(3, sigma, BANDED)
    pair = dominating_pair(matrix, relative_error=1e-12)
    most = gaussian.epsilon_from_delta(delta, math.sqrt(np.max(matrix)))
    ratios = []
    for epsilon in (0.5 * most, 0.8 * most):
        exact = oracle.quadrature(matrix, epsilon, remove=remove)
        ratios.append(moment_delta(pair, Moments.of(pair), epsilon, exact, remove=remove) / exact)
    assert min(ratios) >= 1 - 1e-9
    if sigma == 4.0 and delta == 1e-3:
        assert min(ratios) < 1.1


@pytest.mark.parametrize("remove", [True, False])
@pytest.mark.parametrize("near", [1e-2, 1e-6])
def test_a_polynomial_is_above_the_integrand_everywhere_by_what_is_added_to_it(remove, near):
    """Between few points, and of polynomials that are not above it at all: p + s·(1 + u⁴), beyond the points too."""
    generator, proved = np.random.default_rng(0), 0
    pair = dominating_pair(covariance(3, 2.0), relative_error=0.0)
    moments = Moments.of(pair)
    for _ in range(60):
        epsilon, below = generator.uniform(0.1, 2.5), 0.0 if remove else bounds._smallest(pair, near * 1e-3)[0]
        points = bounds._points(pair, moments, epsilon, below, int(generator.integers(8, 200)))
        heights = bounds._integrand(pair, epsilon, points, below, remove=remove)
        coefficients = bounds._program(moments, points, heights, near) * generator.uniform(0.2, 1.2, 5)
        found = _proven(moments, coefficients, points, heights, below, remove)
        if found == math.inf:
            continue
        proved += 1
        expected = moments.values @ coefficients + moments.errors @ np.abs(coefficients)
        slack = (found - expected) / (1 + moments.values[-1] + moments.errors[-1])
        z = np.concatenate([np.geomspace(1e-9, 3 * points[-1], 20_000), np.linspace(0, 3 * points[-1], 20_000)])
        above = np.polynomial.polynomial.polyval((z - 1) / moments.scale, coefficients)
        above += slack * (1 + ((z - 1) / moments.scale) ** 4)
        assert np.all(above >= bounds._integrand(pair, epsilon, z, below, remove=remove) * (1 - 1e-9) - 1e-18)
    assert proved > 20


@pytest.mark.parametrize("chance", [1e-2, 1e-5, 1e-8])
def test_values_of_z_below_the_smallest_are_as_rare_as_is_claimed(chance):
    pair = dominating_pair(covariance(2, 1.0), relative_error=0.0)
    axis = np.linspace(-9, 9, 1201)
    weights = np.exp(-axis * axis / 2) / math.sqrt(2 * math.pi) * (axis[1] - axis[0])
    vectors = np.stack([each.ravel() for each in np.meshgrid(axis, axis, indexing="ij")], axis=1) @ pair.root.T
    rare, claimed = bounds._smallest(pair, chance)
    exact = np.outer(weights, weights).ravel()[np.exp(vectors - pair.variances / 2).mean(axis=1) < rare].sum()
    # Jensen's inequality loses something, and no more than half of the logarithm.
    assert chance**2 < exact <= claimed * 1.01 <= chance * 1.02


@pytest.mark.parametrize("wrong", [math.nan, math.inf])
def test_a_polynomial_that_cannot_be_verified_bounds_nothing(wrong):
    moments = Moments.of(dominating_pair(covariance(3, 4.0), relative_error=0.0))
    points = np.linspace(0, 30, 200)
    heights = np.zeros(200)
    coefficients = np.array([1.0, 0.0, 0.0, 0.0, 1.0])
    assert _proven(moments, coefficients, points, heights, 0.0, True) < math.inf
    heights[7] = wrong
    assert _proven(moments, coefficients, points, heights, 0.0, True) == math.inf


@pytest.mark.parametrize("order", [2, 3, 4])
def test_moments_are_those_of_the_sum_over_all_indices(order):
    root = np.random.default_rng(order).standard_normal((3, 3)) / 2
    matrix = root @ root.T
    values, errors = central_moments(matrix)
    assert values[order] == pytest.approx(oracle.moment(matrix, order), rel=1e-11)
    assert 0 < errors[order] < 1e-10 * abs(values[order])


@pytest.mark.parametrize(
    "tilts",
    [
        {"powers": (1.0, 0.0, 0.0, 0.0), "tilt": 1.0},
        {"powers": (0.1, 0.9, 0.0, 0.0), "tilt": 1.0},
        {"powers": (0.1, 0.0, 0.9, 0.0), "tilt": 1.0},
        {"powers": (0.1, 0.0, 0.0, 0.9), "tilt": 1.0},
        {"powers": (0.1, 0.1, 0.2, 0.2), "tilt": 2.5},
    ],
)
def test_every_proposal_has_the_mean_and_the_range_that_is_computed(tilts):
    matrix = covariance(3, 2.0)
    pair = dominating_pair(matrix, relative_error=0.0)
    direction = Remove(sampler=Sampler(pair), **tilts)
    epsilon = 1.5
    values = direction.values(direction.sample(20_000, np.random.default_rng(1)), epsilon)
    exact = oracle.quadrature(matrix, epsilon, remove=True)
    assert abs(values.mean() - exact) < 5 * values.std() / math.sqrt(len(values))
    assert values.max() <= direction.most(epsilon)


@pytest.mark.parametrize("sigma", [1.0, 3.0])
@pytest.mark.parametrize("delta", [1e-2, 1e-6, 1e-12])
def test_epsilon_by_jensen_is_above_quadrature(sigma, delta):
    for bins, mechanism in ((2, BLT), (3, BANDED)):
        matrix = covariance(bins, sigma, mechanism)
        epsilon = dominating_pair(matrix, relative_error=0.0).by_jensen(delta)
        assert oracle.quadrature(matrix, epsilon, remove=False) <= delta * (1 + 1e-9)
        # It is not vacuous.
        assert oracle.quadrature(matrix, 0.7 * epsilon, remove=False) > delta


def test_the_range_bounds_every_value_of_a_fine_grid():
    """The range of a single group is attained at L′ = a − K′/2, which a fine grid goes through."""
    matrix = np.array([[1.5]])
    pair = dataclasses.replace(dominating_pair(matrix, relative_error=0.0), common=0.5)
    loss = np.linspace(-20, 20, 200_001)
    tilts = {"powers": (0.2, 0.1, 0.1, 0.1), "tilt": 2.5}
    direction = Remove(sampler=Sampler(pair), **tilts)
    density = direction.log_density(loss, direction.tilt * loss)
    values = gaussian_delta(2.0 - loss, math.sqrt(0.5)) * np.exp(loss - density)
    assert values.max() <= direction.most(2.0) <= 1.05 * values.max()


@given(st.integers(1, 6), st.integers(1, 8), st.sampled_from([0.0, 1e-12, 1e-6]), st.integers(0, 2**32 - 1))
def test_the_dominating_pair_is_above_k_in_every_entry(bins, rank, error, seed):
    """In exact fractions, also of matrices that are singular."""
    columns = np.random.default_rng(seed).uniform(0.1, 2.0, (rank, bins))
    gram = columns.T @ columns
    pair = dominating_pair(gram, relative_error=error)
    root = [[Fraction(value) for value in row] for row in pair.root]
    for i in range(bins):
        for j in range(bins):
            product = sum(x * y for x, y in zip(root[i], root[j], strict=True))
            assert product + Fraction(pair.common) >= Fraction(gram[i, j]) * (1 + Fraction(error))
            assert abs(product - Fraction(pair.covariance[i, j])) <= Fraction(pair.rounding)


def test_a_bet_is_lost_where_the_claim_is_false():
    """Of 400 false claims at most 5 % may be certified; more than 35 would have a probability of 1e-3."""
    generator = np.random.default_rng(7)
    pilot = generator.binomial(1, 0.02, size=400) * 1.0
    bets = best_bets(pilot, 0.0199, 1.0)
    wrong = sum(mean_is_at_most(generator.binomial(1, 0.02, size=400) * 1.0, 0.0199, bets, 0.05) for _ in range(400))
    assert wrong <= 35
    assert mean_is_at_most(generator.binomial(1, 0.005, size=2000) * 1.0, 0.0199, bets, 0.05)


def test_the_estimate_is_close_to_quadrature():
    matrix = covariance(3, 1.0)
    for sigma in (1.0, 3.0):
        for value, remove in zip(Estimator(matrix).epsilons(sigma, 1e-6), (True, False), strict=True):
            assert oracle.quadrature(matrix / sigma**2, value, remove=remove) == pytest.approx(1e-6, rel=0.2)


def test_errors_of_moments_include_those_of_the_covariance():
    root = np.random.default_rng(0).standard_normal((4, 4)) / 3
    matrix = root @ root.T
    values, errors = central_moments(matrix, rounding=1e-6)
    for sign in (1, -1):
        moved, _ = central_moments(matrix + sign * 1e-6)
        assert np.all(np.abs(moved - values) <= errors)
    assert np.all(errors < 1e-3)
