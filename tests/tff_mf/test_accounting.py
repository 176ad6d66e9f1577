import math
from fractions import Fraction

import dp_accounting
import mpmath
import numpy as np
import pytest
from dp_accounting import pld
from dp_accounting.pld import privacy_loss_mechanism
from hypothesis import assume, example, given
from hypothesis import strategies as st

import tff_mf
from tff_mf.numerics import gaussian

ONCE = tff_mf.SingleParticipation()
FIVE = tff_mf.MinSep(min_sep=447, max_participations=5)
B400 = tff_mf.BLT.production("b400")

deltas = st.floats(-15, -1).map(lambda exponent: 10.0**exponent)
mechanisms = st.sampled_from([tff_mf.Identity(), B400, tff_mf.BLT(theta=[0.3], omega=[1.0])])


def effective(mechanism, schema, sigma):
    """σ / sens_Π(C) of the C that runs."""
    return sigma / tff_mf.sensitivity(mechanism.cast_to_float32(), 2350, schema)


def test_the_effective_noise_multiplier_is_below_that_of_the_sensitivity():
    found = tff_mf.guarantee(B400, 2350, FIVE, noise_multiplier=7.379).effective_noise_multiplier
    assert effective(B400, FIVE, 7.379) * (1 - 1e-11) <= found <= effective(B400, FIVE, 7.379)


def test_rho_is_that_of_the_effective_noise_multiplier():
    rho = tff_mf.zcdp_rho(B400, 2350, FIVE, noise_multiplier=7.379)
    expected = 1 / (2 * effective(B400, FIVE, 7.379) ** 2)
    assert expected <= rho <= expected * (1 + 1e-11)


def test_privacy_is_accounted_for_float32_parameters():
    mechanism = tff_mf.BLT(theta=[1.0, 0.5], omega=[0.1, 0.1 + 1e-9])
    as_float32 = mechanism.cast_to_float32()
    assert as_float32 != mechanism
    assert tff_mf.sensitivity(as_float32, 2350, FIVE) != tff_mf.sensitivity(mechanism, 2350, FIVE)
    for function, more in (
        (tff_mf.zcdp_rho, {"noise_multiplier": 3.0}),
        (tff_mf.epsilon, {"noise_multiplier": 3.0, "delta": 1e-6}),
        (tff_mf.calibrate_noise_multiplier, {"epsilon": 3.0, "delta": 1e-6}),
        (tff_mf.guarantee, {"noise_multiplier": 3.0}),
    ):
        assert function(mechanism, 2350, FIVE, **more) == function(as_float32, 2350, FIVE, **more)


def test_without_noise_nothing_is_private():
    assert tff_mf.zcdp_rho(B400, 2350, FIVE, noise_multiplier=0) == math.inf
    assert tff_mf.epsilon(B400, 2350, FIVE, noise_multiplier=0, delta=1e-6) == math.inf
    event = tff_mf.guarantee(B400, 2350, FIVE, noise_multiplier=0).dp_event()
    assert event == dp_accounting.GaussianDpEvent(0.0)


def test_rho_and_epsilon_at_extreme_noise_multipliers():
    assert tff_mf.zcdp_rho(tff_mf.Identity(), 3, ONCE, noise_multiplier=1e300) > 0
    assert tff_mf.zcdp_rho(tff_mf.Identity(), 3, ONCE, noise_multiplier=5e-324) == math.inf
    assert tff_mf.epsilon(tff_mf.Identity(), 3, ONCE, noise_multiplier=5e-324, delta=1e-6) == math.inf


def exact_delta(mechanism, rounds, schema, sigma, epsilon):
    """Returns δ computed with 60 digits, from parameters in float32 to the Gaussian."""
    theta = [mpmath.mpf(float(np.float32(value))) for value in mechanism.theta]
    omega = [mpmath.mpf(float(np.float32(value))) for value in mechanism.omega]
    column = [mpmath.mpf(1)]
    for i in range(rounds - 1):
        column.append(sum(o * t**i for o, t in zip(omega, theta, strict=True)))
    starts = range(0, schema.max_participations * schema.min_sep, schema.min_sep)
    total = [sum(column[i - start] for start in starts if start <= i) for i in range(rounds)]
    mu = mpmath.sqrt(sum(value**2 for value in total)) / mpmath.mpf(sigma)
    a, b = epsilon / mu - mu / 2, epsilon / mu + mu / 2
    return (mpmath.erfc(a / mpmath.sqrt(2)) - mpmath.exp(epsilon) * mpmath.erfc(b / mpmath.sqrt(2))) / 2


@given(
    st.lists(st.floats(0.01, 1.0), min_size=1, max_size=4),
    st.floats(0.01, 0.99),
    st.integers(1, 9),
    st.integers(1, 5),
    st.floats(-1, 3).map(lambda e: 10.0**e),
    st.floats(-15, -1).map(lambda e: 10.0**e),
)
def test_epsilon_is_never_below_the_exact_value(theta, total, min_sep, max_participations, sigma, delta):
    mechanism = tff_mf.BLT(theta=theta, omega=[total / len(theta)] * len(theta))
    schema = tff_mf.MinSep(min_sep=min_sep, max_participations=max_participations)
    epsilon = tff_mf.epsilon(mechanism, 40, schema, noise_multiplier=sigma, delta=delta)
    with mpmath.workdps(60):
        assert exact_delta(mechanism, 40, schema, sigma, mpmath.mpf(epsilon)) <= delta
        smaller = epsilon * (1 - 1e-9) - 1e-12
        if smaller > 0:
            assert exact_delta(mechanism, 40, schema, sigma, mpmath.mpf(smaller)) > delta


@given(mechanisms, st.floats(-4, 4).map(lambda e: 10.0**e), deltas)
@example(tff_mf.Identity(), 1.0, 1e-6)
def test_calibration_never_overshoots_and_is_tight(mechanism, target, delta):
    sigma = tff_mf.calibrate_noise_multiplier(mechanism, 2350, FIVE, epsilon=target, delta=delta)
    assert tff_mf.epsilon(mechanism, 2350, FIVE, noise_multiplier=sigma, delta=delta) <= target
    less = sigma * (1 - 1e-6)
    assert tff_mf.epsilon(mechanism, 2350, FIVE, noise_multiplier=less, delta=delta) > target


@pytest.mark.parametrize(("target", "delta"), [(1e300, 0.5), (1e-300, 1e-300), (1e-9, 0.999), (5.0, 5e-324)])
def test_calibration_at_the_ends_of_the_range(target, delta):
    sigma = tff_mf.calibrate_noise_multiplier(B400, 2350, FIVE, epsilon=target, delta=delta)
    assert tff_mf.epsilon(B400, 2350, FIVE, noise_multiplier=sigma, delta=delta) <= target


def test_calibration_beyond_float64_is_refused():
    with pytest.raises(tff_mf.InputError, match="epsilon=5e-324"):
        tff_mf.calibrate_noise_multiplier(B400, 2350, FIVE, epsilon=5e-324, delta=1e-300)


@given(st.floats(0.3, 20.0), st.floats(-9, -1).map(lambda exponent: 10.0**exponent))
def test_closed_form_of_dp_accounting(sigma, delta):
    epsilon = tff_mf.epsilon(tff_mf.Identity(), 10, ONCE, noise_multiplier=sigma, delta=delta)
    assume(epsilon > 0)
    theirs = privacy_loss_mechanism.GaussianPrivacyLoss(sigma).get_delta_for_epsilon(epsilon)
    # dp-accounting subtracts two tails, and is only accurate to their rounding error.
    assert theirs == pytest.approx(delta, rel=1e-9, abs=1e-15)


@pytest.mark.parametrize("sigma", [0.5, 1.0, 4.22468, 20.0])
def test_pld_of_the_event_rounds_up(sigma):
    accountant = pld.PLDAccountant(value_discretization_interval=1e-4)
    accountant.compose(tff_mf.guarantee(B400, 2350, FIVE, noise_multiplier=sigma * 5).dp_event())
    theirs = accountant.get_epsilon(1e-6)
    ours = tff_mf.epsilon(B400, 2350, FIVE, noise_multiplier=sigma * 5, delta=1e-6)
    assert ours * (1 - 1e-6) <= theirs <= ours + 1e-3


def test_epsilon_falls_with_noise_and_delta():
    by_noise = [tff_mf.epsilon(B400, 2350, FIVE, noise_multiplier=s, delta=1e-6) for s in np.geomspace(0.1, 1e4, 40)]
    by_delta = [tff_mf.epsilon(B400, 2350, FIVE, noise_multiplier=5, delta=d) for d in np.geomspace(1e-300, 0.9, 40)]
    assert by_noise == sorted(by_noise, reverse=True)
    assert by_delta == sorted(by_delta, reverse=True)


@given(st.integers(1, 9), st.floats(1e-3, 1e3), st.integers(1, 6))
def test_an_event_never_has_more_noise_than_the_run(max_participations, sigma, decades):
    """With exact fractions: the identity's sensitivity is √k."""
    schema = tff_mf.MinSep(min_sep=1, max_participations=max_participations)
    event = tff_mf.guarantee(tff_mf.Identity(), 9, schema, noise_multiplier=sigma * 10**decades).dp_event()
    exact = Fraction(sigma * 10**decades) ** 2 / max_participations
    assert exact * (1 - Fraction(1, 10**11)) < Fraction(event.noise_multiplier) ** 2 <= exact
    assert tff_mf.guarantee(tff_mf.Identity(), 9, schema, noise_multiplier=0.0).dp_event().noise_multiplier == 0


@pytest.mark.parametrize("grid", [None, tff_mf.Grid(bits=16, max_clients=100)])
@pytest.mark.parametrize("epsilon", [0.1, 2.0, 20.0])
def test_calibrated_noise_is_enough_where_the_sensitivity_is_rounded_otherwise(epsilon, grid):
    schema, more = tff_mf.MinSep(min_sep=4, max_participations=5), {"grid": grid, "dimension": grid and 1000}
    for mechanism in (tff_mf.Tree(20), tff_mf.BLT(theta=[0.9], omega=[0.1]), tff_mf.Identity()):
        sigma = tff_mf.calibrate_noise_multiplier(mechanism, 20, schema, epsilon=epsilon, delta=1e-7, **more)
        assert gaussian.rounded_sigma(sigma) == sigma
        for elsewhere in (1 + 2.0**-40, 1 - 2.0**-40):
            # A larger sensitivity is the same as less noise.
            found = tff_mf.guarantee(mechanism, 20, schema, noise_multiplier=sigma / elsewhere, **more).epsilon(1e-7)
            assert epsilon * (1 - 1e-9) <= found <= epsilon


@given(sigma=st.floats(0.0, 1e300))
def test_rounded_noise_is_never_less_and_hardly_more(sigma):
    rounded = gaussian.rounded_sigma(sigma)
    assert sigma <= rounded <= max(sigma * (1 + 2.0**-31), sigma)
    assert gaussian.rounded_sigma(rounded) == rounded
