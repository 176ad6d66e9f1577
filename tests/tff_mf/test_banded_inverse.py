"""The optimizer of banded inverses, compared with simple matrices, jax_privacy and brute force."""

import math
from fractions import Fraction

import numpy as np
import pytest
import scipy.optimize
from hypothesis import given, settings
from hypothesis import strategies as st

import tff_mf
from tff_mf.mechanisms import series
from tff_mf.optimize import _descent, banded_inverse
from tff_mf.optimize._descent import _STATIONARY_IF_ENDED, Value
from tff_mf.optimize.banded_inverse import InverseLoss

from .oracles import largest_norm, schemas, slopes

SGDM = {
    "rounds": 150,
    "participation": tff_mf.MinSep(min_sep=21, max_participations=8),
    "workload": tff_mf.Momentum(momentum=0.9),
}
WIDE = {"rounds": 2000, "participation": tff_mf.MinSep(min_sep=1088, max_participations=2)}
# Results of optimize_banded_inverse_toeplitz of jax_privacy at 8967688 in the setting WIDE.
PEER = {
    "rms": [1.0, -0.513068093152983, -0.1023871347504713, -0.06604551552443122, -0.2846617515486706],
    "max": [1.0, -0.5192712075097498, -0.11404725878309376, 0.017370486607022104, -0.35934130201629616],
}


def loss_of(inverse, optimized_for, objective):
    loss = tff_mf.rms_loss if objective == "rms" else tff_mf.max_loss
    mechanism = tff_mf.BandedInverse(inverse_column=inverse)
    return loss(mechanism, optimized_for.rounds, optimized_for.participation, optimized_for.workload)


@st.composite
def cases(draw):
    rounds = draw(st.integers(2, 12))
    schema = draw(schemas(rounds))
    momentum = draw(st.sampled_from([0.0, 0.5, 0.9, 0.99]))
    workload = tff_mf.Momentum(momentum=momentum) if momentum else tff_mf.PrefixSum()
    optimized_for = tff_mf.OptimizedFor(rounds=rounds, participation=schema, workload=workload)
    return optimized_for, draw(st.integers(2, min(rounds, 6))), draw(st.sampled_from(["rms", "max"]))


def searched(optimized_for, bands, objective):
    return tff_mf.optimize_banded_inverse(
        rounds=optimized_for.rounds,
        bands=bands,
        participation=optimized_for.participation,
        workload=optimized_for.workload,
        objective=objective,
    )


@pytest.mark.parametrize("objective", ["rms", "max"])
def test_prefix_sums_are_no_worse_than_those_of_jax_privacy(objective):
    result = tff_mf.optimize_banded_inverse(**WIDE, bands=5, objective=objective)
    assert result.optimized_for.search.loss <= loss_of(PEER[objective], tff_mf.OptimizedFor(**WIDE), objective) * 1.001
    assert result.optimized_for.converged


@pytest.mark.once
@settings(max_examples=40)
@given(cases())
def test_no_simple_matrix_has_a_smaller_loss(case):
    optimized_for, bands, objective = case
    result = searched(*case)
    inverse = np.array(result.inverse_column)
    assert inverse[0] == 1.0
    assert result.optimized_for.search.loss == loss_of(inverse, optimized_for, objective)
    easy = [tff_mf.BandedInverse.square_root(bands).inverse_column, [1.0]]
    easy += [[1.0, -ratio] for ratio in np.linspace(-0.5, 1.5, 41)]
    assert result.optimized_for.search.loss <= min(loss_of(each, optimized_for, objective) for each in easy) * (
        1 + 1e-7
    )
    # The cast to float32 hardly changes the matrix.
    as_float32 = result.cast_to_float32().inverse_column
    assert loss_of(as_float32, optimized_for, objective) == pytest.approx(result.optimized_for.search.loss, rel=1e-5)


@settings(max_examples=30)
@given(cases())
def test_sensitivity_of_the_result_is_never_below_brute_force(case):
    optimized_for, _, _ = case
    mechanism = searched(*case)
    for each in (mechanism, mechanism.cast_to_float32()):
        found = tff_mf.sensitivity(each, optimized_for.rounds, optimized_for.participation)
        patterns = optimized_for.participation.patterns(optimized_for.rounds)
        assert found >= largest_norm(each.encoder(optimized_for.rounds), patterns) * (1 - 1e-12)


@given(cases(), st.integers(0, 2**32 - 1))
def test_losses_of_the_search_bound_the_public_ones(case, seed):
    optimized_for, bands, objective = case
    loss = InverseLoss(optimized_for, objective)
    rounds, schema = optimized_for.rounds, optimized_for.participation
    for scale in (0.1, 1.0):
        inverse = np.append(1.0, scale * np.random.default_rng(seed).standard_normal(bands - 1))
        public = loss_of(inverse, optimized_for, objective)
        found = np.exp(loss(inverse).value)
        assert found >= public * (1 - 1e-9)
        column = tff_mf.BandedInverse(inverse_column=inverse).coefficients(rounds)
        if schema.max_participations == 1 or (np.all(column >= 0) and np.all(np.diff(column) <= 0)):
            assert found == pytest.approx(public, rel=1e-9)
    square_root = tff_mf.BandedInverse.square_root(bands).inverse_column
    expected = loss_of(square_root, optimized_for, objective)
    assert np.exp(loss(np.array(square_root)).value) == pytest.approx(expected, rel=1e-9)


@given(cases(), st.integers(0, 2**32 - 1))
def test_gradients_are_those_of_finite_differences(case, seed):
    optimized_for, bands, objective = case
    loss = InverseLoss(optimized_for, objective)
    inverse = np.append(1.0, 0.3 * np.random.default_rng(seed).standard_normal(bands - 1))
    value, expected = loss(inverse), slopes(lambda rest: loss(np.append(1.0, rest)).value, inverse[1:])
    np.testing.assert_allclose(value.gradient[1:], expected, atol=1e-4, rtol=1e-4)
    slope = loss.slope(inverse, np.eye(bands - 1))
    assert slope <= np.abs(value.gradient[1:]).max() * (1 + 1e-3) + 1e-3


@pytest.mark.parametrize("objective", ["rms", "max"])
def test_squared_errors_are_quadratic_in_the_inverse(objective):
    loss = InverseLoss(tff_mf.OptimizedFor(**SGDM), objective)
    inverse = np.array([1.0, -0.5, 0.25, -0.3])
    assert inverse @ loss._gram(4) @ inverse == pytest.approx(loss.error(inverse) ** 2, rel=1e-12)
    whitening = loss.whitening(4)
    np.testing.assert_allclose(whitening.T @ loss._gram(4)[1:, 1:] @ whitening, np.eye(3), atol=1e-6)


def test_matrices_at_the_old_boundary_are_not_called_stationary():
    """The search among log-convex prefix sums ended at [1, −1], where its own variables were flat."""
    loss = InverseLoss(tff_mf.OptimizedFor(**SGDM), "rms")
    scaled = loss.whitening(2) * loss.error(np.array([1.0, -1.0]))
    assert loss.slope(np.array([1.0, -1.0]), scaled) > 100 * _STATIONARY_IF_ENDED
    assert loss.slope(np.array([1.0, -0.937928]), loss.whitening(2)) < _STATIONARY_IF_ENDED


@pytest.mark.parametrize("bands", [3, 6])
def test_slopes_at_kinks_are_those_of_sampled_gradients(bands):
    """Burke, Lewis and Overton (2005): the shortest vector in the hull of gradients sampled close by."""
    schema = tff_mf.MinSep(min_sep=2, max_participations=4)
    optimized_for = tff_mf.OptimizedFor(rounds=8, participation=schema)
    loss = InverseLoss(optimized_for, "rms")
    best = np.array(searched(optimized_for, bands, "rms").inverse_column)
    generator = np.random.default_rng(0)

    def sampled(inverse):
        points = inverse[1:] + 1e-5 * generator.uniform(-1, 1, (400, bands - 1))
        gradients = np.array([loss(np.append(1.0, point)).gradient[1:] for point in points])
        weights, _ = scipy.optimize.nnls(
            np.vstack([gradients.T, np.full(len(gradients), 1e3)]), np.append(np.zeros(bands - 1), 1e3)
        )
        return np.abs(gradients.T @ weights).max(), np.abs(gradients).max()

    shortest, largest = sampled(best)
    assert largest > 0.05
    assert shortest < 5e-3
    assert loss.slope(best, np.eye(bands - 1)) < 5e-3
    away = best + np.append(0.0, 0.05 * generator.standard_normal(bands - 1))
    assert loss.slope(away, np.eye(bands - 1)) == pytest.approx(sampled(away)[0], rel=0.1, abs=1e-2)


def test_fixed_epochs_are_never_worse_than_min_sep():
    optimized_for = {"rounds": 60, "workload": tff_mf.Momentum(momentum=0.9), "bands": 6}
    apart, epochs = (
        tff_mf.optimize_banded_inverse(
            **optimized_for, participation=kind(min_sep=6, max_participations=10)
        ).optimized_for.search.loss
        for kind in (tff_mf.MinSep, tff_mf.FixedEpoch)
    )
    assert epochs <= apart * (1 + 1e-5)


def test_a_search_with_too_few_iterations_reports_it(monkeypatch):
    brief = banded_inverse._Effort(iterations=2, tolerance=1e-8)
    monkeypatch.setattr(banded_inverse, "_BRIEF", brief)
    monkeypatch.setattr(banded_inverse, "_FULL", brief)
    monkeypatch.setattr(banded_inverse, "_RESTARTS", 1)
    result = tff_mf.optimize_banded_inverse(**SGDM, bands=12)
    assert result.optimized_for.converged is False
    assert result.optimized_for.search.message == "Not at a stationary point: iteration limit reached"
    assert result.optimized_for.search.gradient_norm > _STATIONARY_IF_ENDED


def test_bands_beyond_the_maximum_are_left_out(monkeypatch):
    monkeypatch.setattr("tff_mf.optimize.banded_inverse.MOST_BANDS", 3)
    assert tff_mf.optimize_banded_inverse(**SGDM, bands=5).bands == 3


def test_bfgs_follows_kinks():
    """Lewis and Overton (2013), section 5: the nonsmooth Rosenbrock function, least at (1, 1)."""

    def rosenbrock(point):
        bend = point[1] - point[0] ** 2
        sign = np.sign(bend)
        gradient = np.array([2 * (point[0] - 1) / 4 - 2 * point[0] * sign * 8, 8 * sign])
        return Value(8 * abs(bend) + (point[0] - 1) ** 2 / 4, gradient)

    path = _descent.bfgs(rosenbrock, np.array([-1.0, 1.3]), iterations=1000, tolerance=1e-10)
    np.testing.assert_allclose(path.variables, 1.0, atol=1e-3)
    assert np.all(np.diff(path.values) <= 0)


def test_bfgs_stays_where_the_function_is_finite():
    def falling_to_a_wall(point):
        return Value(np.inf if point[0] >= 1 else -point[0], np.array([-1.0]))

    path = _descent.bfgs(falling_to_a_wall, np.zeros(1), iterations=100, tolerance=1e-10)
    assert path.ended
    assert 0.9 < path.variables[0] < 1
    assert np.isfinite(path.values[-1])


GROWING = [(2, 3000), (4, 300), (4, 1100), (4, 2500), (5, 2099), (14, 60), (14, 128)]
REFUSED = [(4, 2500), (5, 2099), (14, 128)]


@pytest.mark.parametrize("scaled", [False, True])
@pytest.mark.parametrize(("order", "rounds"), GROWING)
def test_c_that_grows_is_accounted_for_as_it_is_or_refused(order, rounds, scaled):
    """C = (1 − x)^−order has binomial coefficients, of which sums of float64 lose all digits."""
    inverse_column = [(-1.0) ** lag * math.comb(order, lag) for lag in range(order + 1)]
    mechanism = tff_mf.BandedInverse(inverse_column=inverse_column)
    if scaled:
        mechanism = tff_mf.ScaledInverse(inverse_column=inverse_column, scales=[1.0] * rounds)
    once = tff_mf.SingleParticipation()
    if (order, rounds) in REFUSED:
        with pytest.raises(tff_mf.InputError, match="coefficients of C"):
            tff_mf.sensitivity(mechanism, rounds, once)
        return
    exact = math.sqrt(sum(math.comb(t + order - 1, order - 1) ** 2 for t in range(rounds)))
    assert exact * (1 - 1e-12) <= tff_mf.sensitivity(mechanism, rounds, once) <= exact * (1 + 1e-5)


@pytest.mark.parametrize("scaled", [False, True])
def test_observed_rounds_and_restarts_are_of_the_exact_c_too(scaled):
    """What rounding may add was in the sensitivity of a schema alone; of 96 rounds it is 1e-8 of the others."""
    order, rounds = 12, 96
    mechanism = tff_mf.BandedInverse(inverse_column=[(-1.0) ** lag * math.comb(order, lag) for lag in range(order + 1)])
    if scaled:
        mechanism = tff_mf.ScaledInverse(inverse_column=mechanism.inverse_column, scales=[1.0] * rounds)
    exact = math.sqrt(sum(math.comb(t + order - 1, order - 1) ** 2 for t in range(rounds)))
    twice = tff_mf.MinSep(min_sep=rounds, max_participations=2)
    for found, expected in (
        (tff_mf.pattern_sensitivity(mechanism, rounds, [(0,)]), exact),
        (tff_mf.restart_sensitivity(mechanism, 2 * rounds, twice, restart_every=rounds), exact * math.sqrt(2)),
    ):
        assert expected * (1 - 1e-12) <= found.value <= expected * (1 + 1e-5)
        assert not found.exact
    for sampling in (tff_mf.BallsInBins(groups=4), tff_mf.BMinSep(min_sep=8, probability=0.1)):
        with pytest.raises(tff_mf.InputError, match="coefficients of C that lose digits"):
            tff_mf.guarantee(mechanism, rounds, sampling, noise_multiplier=exact)


@pytest.mark.parametrize("seed", range(20))
def test_the_error_of_c_is_bounded_against_exact_fractions(seed):
    generator = np.random.default_rng(seed)
    inverse_column = [1.0, *generator.uniform(-2.5, 1, size=generator.integers(1, 5))]
    rounds, exact = 40, [Fraction(1)]
    for t in range(1, rounds):
        lags = range(1, min(t, len(inverse_column) - 1) + 1)
        exact.append(-sum((Fraction(inverse_column[lag]) * exact[t - lag] for lag in lags), Fraction(0)))
    # A few are off by more than their rounding.
    computed = np.array([float(each) for each in exact]) * (1 + generator.choice([0, 1e-12, 1e-7]))
    computed[generator.integers(rounds)] *= 1 + generator.choice([0, 1e-9])
    bound = series.error_of_reciprocal(inverse_column, computed)
    off = np.cumsum([float((Fraction(each) - one) ** 2) for each, one in zip(computed, exact, strict=True)])
    assert np.max(np.sqrt(off / np.cumsum(np.square(computed)))) <= bound
    assert bound < 1
