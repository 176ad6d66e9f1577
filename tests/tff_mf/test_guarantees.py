"""(ε, δ) of Gaussian releases, guarantees, calibration, restarts and compositions, against slow oracles."""

import math
from fractions import Fraction

import mpmath
import numpy as np
import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

import tff_mf
from tff_mf.numerics import gaussian

RELATIVE, ABSOLUTE = 1e-9, 1e-14

any_mus = st.floats(-6, 3).map(lambda exponent: 10.0**exponent)
epsilons = st.floats(-6, 5).map(lambda exponent: 10.0**exponent)
any_deltas = st.one_of(
    st.floats(-300, -0.01).map(lambda exponent: 10.0**exponent),
    st.floats(-12, -3).map(lambda exponent: 10.0**exponent),
    st.floats(0.01, 0.99),
)


def exact_delta(epsilon, mu):
    """Balle and Wang (2018), theorem 8, term by term."""
    with mpmath.workdps(60):
        epsilon, mu = mpmath.mpf(epsilon), mpmath.mpf(mu)
        a, b = epsilon / mu - mu / 2, epsilon / mu + mu / 2
        digits = 60 + int(min(a**2 / 4, 300)) if a < 0 else 60
        with mpmath.workdps(digits):
            return mpmath.erfc(a / mpmath.sqrt(2)) / 2 - mpmath.exp(epsilon) * mpmath.erfc(b / mpmath.sqrt(2)) / 2


@given(epsilons, any_mus)
@example(1e-6, 1e3)
@example(1e5, 1e3)
@example(1e-6, 1e-6)
def test_log_delta(epsilon, mu):
    # Beyond that, δ is smaller than any float.
    assume(epsilon / mu - mu / 2 < 38)
    exact = exact_delta(epsilon, mu)
    a, b = epsilon / mu - mu / 2, epsilon / mu + mu / 2
    # The effect of rounding ε on log δ, and the rounding error of the formula.
    slope = float(mpmath.exp(epsilon) * mpmath.erfc(b / math.sqrt(2)) / 2 / exact)
    tolerance = 1e-14 * (1 + abs(a) * (abs(a) + abs(b))) + slope * (1e-14 + 1e-15 * epsilon)
    assert gaussian._log_delta(epsilon, mu, slack=0.0) == pytest.approx(
        float(mpmath.log(exact)), rel=1e-14, abs=tolerance
    )


@given(any_deltas, any_mus)
@example(0.99, 1e3)
@example(0.99, 5.15)
@example(1e-300, 1e3)
@example(1e-300, 1e-6)
@example(0.38292492254802624, 1.0)
def test_epsilon_is_a_tight_upper_bound(delta, mu):
    epsilon = gaussian.epsilon_from_delta(delta, mu)
    assert exact_delta(epsilon, mu) <= delta
    smaller = epsilon / (1 + RELATIVE) - ABSOLUTE
    if smaller > 0:
        assert exact_delta(smaller, mu) > delta


@given(st.one_of(st.floats(-324, -307), st.floats(-300, -0.01)), any_mus)
@example(-317.0, 0.0277)
def test_delta_is_a_tight_upper_bound(exponent, mu):
    """Also where floats have few digits."""
    epsilon = gaussian.epsilon_from_delta(max(10.0**exponent, 5e-324), mu)
    delta, exact = gaussian.delta_from_epsilon(epsilon, mu), exact_delta(epsilon, mu)
    assert exact <= delta <= exact * (1 + 1e-6) + 2e-323


@given(any_deltas, epsilons)
@example(0.99, 1e5)
@example(1e-300, 1e-6)
def test_mu_is_a_tight_lower_bound(delta, epsilon):
    mu = gaussian.mu_from(epsilon, delta)
    assert exact_delta(epsilon, mu) <= delta
    larger = mu * (1 + RELATIVE + ABSOLUTE / epsilon)
    assert exact_delta(epsilon, larger) > delta


@given(st.floats(0, 80))
@example(1e-300)
@example(1.0)
@example(np.nextafter(math.sqrt(2), 0))
def test_scaled_tail_is_within_its_error_bound(x):
    with mpmath.workdps(60):
        exact = mpmath.exp(mpmath.mpf(x) ** 2 / 2) * mpmath.erfc(mpmath.mpf(x) / mpmath.sqrt(2))
        error = abs(gaussian._scaled_tail(x) / exact - 1)
    assert error <= 0.75 * gaussian._SLACK


def test_extremes_of_epsilon_and_mu():
    assert gaussian.epsilon_from_delta(1e-6, 0.0) == 0.0
    assert gaussian.epsilon_from_delta(1e-6, math.inf) == math.inf
    assert gaussian.epsilon_from_delta(1e-6, 1e200) == math.inf
    assert gaussian.epsilon_from_delta(5e-324, 1e6) >= 5e11
    assert 0 < gaussian.epsilon_from_delta(1e-300, 1e-300) < 1e-297
    assert 0 < gaussian.mu_from(1e308, 1e-6) < 1.5e154
    assert 0 < gaussian.mu_from(1e-300, 1e-300) < 1e-300


ONCE = tff_mf.SingleParticipation()
FIVE = tff_mf.MinSep(min_sep=447, max_participations=5)
B400 = tff_mf.BLT.production("b400")

mechanisms = st.sampled_from([tff_mf.Identity(), B400, tff_mf.BLT(theta=[0.3], omega=[1.0])])


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


def exact_mu(mechanism, rounds, schema, sigma):
    """Returns sens_Π(C)/σ with 60 digits, from parameters in float32."""
    theta = [mpmath.mpf(float(np.float32(value))) for value in mechanism.theta]
    omega = [mpmath.mpf(float(np.float32(value))) for value in mechanism.omega]
    column = [mpmath.mpf(1)]
    for i in range(rounds - 1):
        column.append(sum(o * t**i for o, t in zip(omega, theta, strict=True)))
    starts = range(0, schema.max_participations * schema.min_sep, schema.min_sep)
    total = [sum(column[i - start] for start in starts if start <= i) for i in range(rounds)]
    return mpmath.sqrt(sum(value**2 for value in total)) / mpmath.mpf(sigma)


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
        mu = exact_mu(mechanism, 40, schema, sigma)
        assert exact_delta(epsilon, mu) <= delta
        smaller = epsilon * (1 - 1e-9) - 1e-12
        if smaller > 0:
            assert exact_delta(smaller, mu) > delta


@given(mechanisms, st.floats(-4, 4).map(lambda e: 10.0**e), st.floats(-15, -1).map(lambda e: 10.0**e))
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


mus = st.floats(-3, 1.5).map(lambda exponent: 10.0**exponent)
deltas = st.floats(-12, -2).map(lambda exponent: 10.0**exponent)


@given(mus, st.floats(-24, -3).map(lambda exponent: 10.0**exponent), deltas, st.floats(0, 8))
@example(0.5, 1e-9, 1e-9, 2.0)
@example(3.0, 1e-3, 1e-2, 8.0)
def test_a_tail_counts_on_both_data_sets(mu, tail, delta, epsilon):
    """δ grows by (1 + e^ε)·tail, and ε is the inverse."""
    found = tff_mf.Guarantee(mu=mu, tail=tail, exact=True)
    assert found.bound == "proved"

    def least(epsilon):
        return exact_delta(epsilon, mu) + (1 + mpmath.exp(mpmath.mpf(epsilon))) * mpmath.mpf(tail)

    with mpmath.workdps(60):
        assert min(1, least(epsilon)) <= found.delta(epsilon) <= least(epsilon) * (1 + 1e-9) + 1e-30
        for stated in (found.epsilon(delta), found.epsilon_by_pld(delta), found.epsilon_from_zcdp(delta)):
            assert stated == math.inf or least(stated) <= delta * (1 + 1e-9)
        assert found.epsilon(delta) == math.inf or least(found.epsilon(delta)) <= delta


@given(mus, deltas)
def test_privacy_measures_agree(mu, delta):
    found = tff_mf.Guarantee(mu=mu)
    assert found.zcdp_rho == pytest.approx(mu * mu / 2, rel=1e-12)
    assert found.zcdp_rho >= mu * mu / 2
    assert found.effective_noise_multiplier <= 1 / mu
    epsilon = found.epsilon(delta)
    assert found.delta(epsilon) <= delta * (1 + 1e-9)
    assert epsilon <= found.epsilon_from_zcdp(delta) + 1e-12
    assert found.epsilon_by_pld(delta) == pytest.approx(epsilon, rel=1e-6, abs=1e-9)


def test_ends_of_the_range():
    none = tff_mf.guarantee(tff_mf.Identity(), 3, ONCE, noise_multiplier=0)
    assert (none.zcdp_rho, none.epsilon(1e-6), none.epsilon_by_pld(1e-6), none.delta(5.0)) == (math.inf,) * 3 + (1.0,)
    assert none.epsilon_from_zcdp(1e-6) == math.inf
    nothing = tff_mf.Guarantee(mu=0)
    assert (nothing.zcdp_rho, nothing.epsilon(1e-6), nothing.epsilon_by_pld(1e-6), nothing.delta(0)) == (0, 0, 0, 0)
    assert tff_mf.Guarantee(mu=1e-3).delta(100.0) > 0
    assert tff_mf.Guarantee(mu=1e-300).epsilon_from_zcdp(1e-6) == 0
    # With almost no noise, exponentials of dp-accounting overflow, and no order above 1 can be represented.
    little = tff_mf.Guarantee(mu=1e30)
    assert little.epsilon(1e-6) > 1e59
    assert little.epsilon_by_pld(1e-6) == little.epsilon_from_zcdp(1e-6) == math.inf


@given(st.lists(mus, min_size=1, max_size=4), st.lists(st.just(0.0) | st.floats(1e-30, 1e-9), min_size=4, max_size=4))
def test_a_composition_has_the_sums_of_squares_and_of_tails(several, tails):
    parts = [tff_mf.Guarantee(mu=mu, tail=tail) for mu, tail in zip(several, tails, strict=False)]
    together = tff_mf.compose_guarantees(*parts)
    for found, exact in (
        (Fraction(together.mu) ** 2, sum(Fraction(each.mu) ** 2 for each in parts)),
        (Fraction(together.tail), sum(Fraction(each.tail) for each in parts)),
    ):
        assert exact <= found <= exact * (1 + Fraction(1, 10**11))
    assert together.replace_one().tail == together.tail


def test_replacing_a_client_doubles_the_sensitivity():
    zero_out = tff_mf.guarantee(tff_mf.Tree(40), 40, ONCE, noise_multiplier=3)
    replace = tff_mf.guarantee(tff_mf.Tree(40), 40, ONCE, noise_multiplier=3, adjacency="replace-one")
    assert replace.mu == 2 * zero_out.mu
    assert replace == zero_out.replace_one() == replace.replace_one()
    run = {"mechanism": tff_mf.Tree(40), "rounds": 40, "sampling": ONCE, "epsilon": 2.0, "delta": 1e-6}
    enough, twice = (tff_mf.calibrate_noise_multiplier(**run, adjacency=each) for each in ("zero-out", "replace-one"))
    assert twice == pytest.approx(2 * enough, rel=1e-9)
    with pytest.raises(tff_mf.InputError, match="adjacencies"):
        tff_mf.compose_guarantees(zero_out, replace)


def test_the_counts_of_adaptive_clipping():
    """Andrew et al. (2021), theorem 1, of σ_b and not of 2σ_b: a client that is set to zero is still counted."""
    schema = tff_mf.MinSep(min_sep=10, max_participations=4)
    for adjacency in ("zero-out", "replace-one"):
        counts = tff_mf.adaptive_clipping_guarantee(40, schema, count_stddev=5.0, adjacency=adjacency)
        assert (counts.mu, counts.adjacency) == (pytest.approx(2 / 5.0), adjacency)
    assert tff_mf.adaptive_clipping_guarantee(40, schema, count_stddev=0).mu == math.inf


def test_restarts_of_more_rounds_than_a_mechanism_has_are_refused():
    with pytest.raises(tff_mf.InputError, match="rounds=11"):
        tff_mf.restart_sensitivity(tff_mf.Tree(10), 40, tff_mf.SingleParticipation(), restart_every=11)


@pytest.mark.parametrize(
    ("noise", "epoch", "epochs", "published"),
    [(0.149, 1600, 1, 364.74), (1.49, 342, 5, 33.80), (7.53, 68, 24, 10.53), (24.29, 22, 77, 4.57)],
)
def test_restarts_of_every_epoch_have_the_epsilon_of_kairouz(noise, epoch, epochs, published):
    """Table 5 of Kairouz et al. (2021): one tree an epoch, in the conversion from ρ of its time. Tightly, ε is less."""
    schema, trees = tff_mf.MinSep(min_sep=epoch, max_participations=epochs), tff_mf.Tree(epoch, variant="online")
    run = tff_mf.guarantee(trees, epoch * epochs, schema, noise_multiplier=noise, restart_every=epoch)
    assert run.zcdp_rho + 2 * math.sqrt(run.zcdp_rho * math.log(1e6)) == pytest.approx(published, abs=0.0051)
    assert run.epsilon(1e-6) < published
