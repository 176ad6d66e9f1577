"""Composed privacy losses, against the exact integral, all outcomes, long doubles, and other machines."""

import dataclasses
import functools
import itertools
import math

import mpmath
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import tff_mf
from tff_mf.accounting import poisson
from tff_mf.numerics import composed_losses
from tff_mf.numerics.composed_losses import Nodes

from ..machines import environments
from . import composed_losses_oracle as oracle
from .composed_losses_oracle import amplified, figures


def one_direction(queries, probability, sigma, delta, takes_part):
    losses = functools.partial(poisson._nodes, probability, 1 / sigma, takes_part)
    return composed_losses.epsilon(losses, queries, delta, most=math.inf)


def finitely_many(losses, masses):
    return lambda s, omega: Nodes(losses=losses, logs=np.log(masses), rounding=8 * np.abs(losses))


@pytest.mark.parametrize(
    "row",
    [row if row[0] in (30, 13527, 10**6) else pytest.param(row, marks=pytest.mark.once) for row in oracle.TABLE],
    ids=str,
)
def test_epsilon_is_that_of_the_exact_integral(row):
    *setting, with_client, without = row
    for takes_part, exact in ((True, with_client), (False, without)):
        assert exact * (1 - 1e-9) <= one_direction(*setting, takes_part) <= exact * 1.003
    worst = max(with_client, without)
    assert worst * (1 - 1e-9) <= amplified(*setting) <= worst * 1.002


@pytest.mark.once
@pytest.mark.parametrize("index", [0, 3])
@pytest.mark.parametrize("contour", [1.0, 0.97])
def test_the_table_is_that_of_the_oracle(index, contour):
    *setting, with_client, without = oracle.TABLE[index]
    for takes_part, exact in ((True, with_client), (False, without)):
        assert oracle.epsilon(*setting, takes_part, contour) == pytest.approx(exact, rel=1e-9)


@given(
    st.lists(st.tuples(st.floats(-3, 3), st.floats(0.05, 1)), min_size=2, max_size=4),
    st.integers(1, 5),
    st.floats(-7, -1).map(lambda exponent: 10.0**exponent),
)
def test_a_bound_of_finitely_many_losses_holds_for_all_outcomes(atoms, count, delta):
    losses = np.array([loss for loss, _ in atoms])
    masses = np.array([mass for _, mass in atoms])
    masses /= np.sum(masses)
    found = composed_losses.epsilon(finitely_many(losses, masses), count, delta, most=math.inf)

    def exact(epsilon):
        total = 0.0
        for each in itertools.product(range(len(atoms)), repeat=count):
            chosen = list(each)
            total += np.prod(masses[chosen]) * max(0.0, -math.expm1(epsilon - np.sum(losses[chosen])))
        return total

    assert exact(found) <= delta * (1 + 1e-9)
    # One more release costs most where ε is near the largest loss.
    assert found < 0.1 or exact(0.95 * found) >= delta * (1 - 1e-9)


@given(st.floats(-4, 3).map(lambda e: 10.0**e), st.floats(-40, -1).map(lambda e: 10.0**e))
def test_one_gaussian_release_is_that_of_the_closed_form(mu, delta):
    found = composed_losses.epsilon(composed_losses.nothing, 1, delta, most=math.inf, gaussian=mu)
    exact = tff_mf.Guarantee(mu=mu).epsilon(delta)
    assert exact * (1 - 1e-9) - 1e-13 <= found <= exact * (1 + 1e-9) + 1e-9


@pytest.mark.parametrize("takes_part", [True, False])
@pytest.mark.parametrize(("probability", "mu", "s"), [(0.3, 1.0, 5.0), (1e-4, 1.8, 5.0), (0.01, 0.1, 90.0)])
def test_rounding_errors_are_within_their_bounds(probability, mu, takes_part, s):
    """Of e^((s + iω)L), against long doubles and a finer quadrature."""
    if np.finfo(np.longdouble).eps > 1e-18:
        pytest.skip("long doubles are doubles here")
    unit, side = 0.7, 9
    nodes = poisson._nodes(probability, mu, takes_part, s, unit * side**2)
    logs, errors, log_error = composed_losses._ratios(nodes, s, unit, side)
    losses, weights = oracle.nodes(probability, mu, takes_part, s, unit * side**2)
    log = np.log1p(np.sum(np.exp(weights) * np.expm1(s * losses)))
    assert abs(nodes.log_moment(s) - log) <= log_error
    angles = np.multiply.outer(np.arange(side**2) * np.longdouble(unit), losses)
    exact = np.exp(1j * angles) @ np.exp(weights + s * losses - log)
    differences = np.abs(np.exp(logs.astype(np.clongdouble)) - exact).astype(float)
    assert np.all(differences <= errors + 2e-17)
    # Tens of thousands of units.
    assert np.max(errors) < 1e-11


@pytest.mark.once
@pytest.mark.parametrize("name", environments.cases("oldest"))
def test_other_machines_state_the_same_epsilon(name):
    """To less than the 1e-9 by which a stated ε may be below a recomputed one."""
    there = environments.call(name, oracle.__file__, "figures")
    assert there == pytest.approx(figures(), rel=2e-10)


@pytest.mark.parametrize("rest", [0.5, 0.01, 1e-3, 1e-6, 1e-9, 1e-12])
def test_the_loss_of_a_client_who_nearly_always_takes_part_is_as_exact_as_claimed(rest):
    """log(1 − q + q·e^y) cancels where it is far below 0, if it is computed from e^y − 1."""
    probability, mu, x = 1 - rest, 2.0, np.linspace(-30.0, 3.0, 200)
    found, y = poisson._log_ratio(probability, mu, x), mu * (x - mu / 2)
    share = probability * np.exp(y - found)
    claimed = 16 * 2.0**-53 * (np.abs(found) + share * (1 + np.abs(y) + mu * np.abs(x) + mu * mu))
    with mpmath.workdps(60):
        exact = [mpmath.log(1 - mpmath.mpf(probability) * (1 - mpmath.exp(mpmath.mpf(each)))) for each in y.tolist()]
        errors = [abs(float(mpmath.mpf(one) - other)) for one, other in zip(found.tolist(), exact, strict=True)]
    assert np.all(errors <= claimed)


def test_a_bound_that_is_no_number_allows_no_epsilon():
    one = np.ones(1)
    bound = composed_losses._Bound(s=1.0, log=0.0, omegas=one, sizes=one * math.nan, phases=one, slack=0.0)
    assert not bound.delta(1.0) <= 1.0


@pytest.mark.parametrize("delta", [1e-300, 2.79775e-319, 5e-324])
def test_a_delta_that_is_hardly_a_number_has_no_smaller_epsilon(delta):
    guarantee = tff_mf.Guarantee(mu=23.250856674007444)
    assert guarantee.epsilon_by_pld(delta) >= guarantee.epsilon(delta) * (1 - 1e-9)


def test_an_epsilon_that_is_known_is_returned_only_if_errors_of_the_moments_allow_it():
    """Chernoff's bound decides it, of moments that a quadrature gives with an error."""
    losses, masses, count, delta = np.array([-1.0, 1.0]), 1 / (1 + np.exp([1.0, -1.0])), 100, 1e-6
    exact = finitely_many(losses, masses)
    s = np.geomspace(1e-2, 1e2, 2000)
    moments = np.log(np.exp(np.multiply.outer(s, losses)) @ masses)
    chernoff = np.min((count * moments - np.log(delta) - np.log1p(s)) / s - np.log1p(1 / s))
    known = chernoff * (1 + 1e-6)
    assert composed_losses.epsilon(exact, count, delta, most=np.inf, least=known) == known
    nodes = dataclasses.replace(exact(1.0, 0.0), error=0.1)
    assert composed_losses.epsilon(lambda s, omega: nodes, count, delta, most=np.inf, least=known) > 1.05 * known
