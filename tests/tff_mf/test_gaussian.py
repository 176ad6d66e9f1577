"""(ε, δ) of the Gaussian, compared with the same formula in 60 digits and more."""

import math

import mpmath
import numpy as np
import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from tff_mf.numerics import gaussian

RELATIVE, ABSOLUTE = 1e-9, 1e-14

mus = st.floats(-6, 3).map(lambda exponent: 10.0**exponent)
epsilons = st.floats(-6, 5).map(lambda exponent: 10.0**exponent)
deltas = st.one_of(
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


@given(epsilons, mus)
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
    assert gaussian.log_delta(epsilon, mu) == pytest.approx(float(mpmath.log(exact)), rel=1e-14, abs=tolerance)


@given(deltas, mus)
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


@given(deltas, epsilons)
@example(0.99, 1e5)
@example(1e-300, 1e-6)
def test_mu_is_a_tight_lower_bound(delta, epsilon):
    mu = gaussian.mu_from(epsilon, delta)
    assert exact_delta(epsilon, mu) <= delta
    larger = mu * (1 + RELATIVE + ABSOLUTE / epsilon)
    assert exact_delta(epsilon, larger) > delta


@given(deltas, mus)
def test_epsilon_is_zero_only_where_delta_alone_covers_it(delta, mu):
    alone = mpmath.erf(mpmath.mpf(mu) / (2 * mpmath.sqrt(2)))
    if gaussian.epsilon_from_delta(delta, mu) == 0:
        assert alone <= delta
    else:
        assert alone > delta * (1 - 1e-12) - 1e-14


@given(st.floats(0, 80))
@example(1e-300)
@example(1.0)
@example(np.nextafter(math.sqrt(2), 0))
def test_scaled_tail_is_within_its_error_bound(x):
    with mpmath.workdps(60):
        exact = mpmath.exp(mpmath.mpf(x) ** 2 / 2) * mpmath.erfc(mpmath.mpf(x) / mpmath.sqrt(2))
        error = abs(gaussian._scaled_tail(x) / exact - 1)
    assert error <= 0.75 * gaussian._SLACK


def test_ends_of_the_range():
    assert gaussian.epsilon_from_delta(1e-6, 0.0) == 0.0
    assert gaussian.epsilon_from_delta(1e-6, math.inf) == math.inf
    assert gaussian.epsilon_from_delta(1e-6, 1e200) == math.inf
    assert gaussian.epsilon_from_delta(5e-324, 1e6) >= 5e11
    assert 0 < gaussian.epsilon_from_delta(1e-300, 1e-300) < 1e-297
    assert 0 < gaussian.mu_from(1e308, 1e-6) < 1.5e154
    assert 0 < gaussian.mu_from(1e-300, 1e-300) < 1e-300


def test_epsilon_grows_with_mu():
    values = [gaussian.epsilon_from_delta(1e-6, mu) for mu in np.geomspace(1e-8, 1e4, 400)]
    assert values == sorted(values)
