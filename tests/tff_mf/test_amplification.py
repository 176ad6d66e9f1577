"""Amplification by sampling, against integrals, lists of outcomes and simulated runs."""

import math

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from scipy import integrate, stats

import tff_mf
from tests.tff_mf import balls_in_bins_oracle
from tests.tff_mf.samplings import bins_level, cyclic_epsilon, cyclic_event
from tff_mf.accounting import bands_and_norm

STACK_OVERFLOW = {"population": 342_477, "clients_per_round": 1000}


def banded(bands):
    """Returns a mechanism with this number of bands and columns of norm 1, up to rounding."""
    return tff_mf.BandedToeplitz(column=[1.0] + [2.0**-30] * (bands - 1))


def hockey_stick(epsilon, probability, mu, *, removed):
    """Returns δ(ε) of one sampled query, exactly; ε may be negative."""
    # The likelihood ratio 1 − q + q·exp(μx − μ²/2) rises in x.
    ratio = math.exp(epsilon if removed else -epsilon)
    inside = (ratio - 1 + probability) / probability
    at = (math.log(inside) / mu + mu / 2) if inside > 0 else -math.inf
    mixture = (1 - probability) * stats.norm.sf(at) + probability * stats.norm.sf(at - mu)
    if removed:
        return mixture - math.exp(epsilon) * stats.norm.sf(at)
    return stats.norm.cdf(at) - math.exp(epsilon) * (1 - mixture)


def exact_delta(epsilon, queries, probability, mu):
    """Returns δ(ε) of one or two sampled queries, by integration over the first."""

    def both(removed):
        if queries == 1:
            return hockey_stick(epsilon, probability, mu, removed=removed)

        def integrand(x):
            ratio = 1 - probability + probability * math.exp(mu * x - mu * mu / 2)
            density = stats.norm.pdf(x) * (ratio if removed else 1)
            rest = epsilon - math.log(ratio) * (1 if removed else -1)
            return density * hockey_stick(rest, probability, mu, removed=removed)

        return integrate.quad(integrand, -12, 12 + mu, limit=400, epsabs=1e-13)[0]

    return max(both(True), both(False))


@st.composite
def cyclic_runs(draw):
    """A run of one or two queries with its sampling, and the probability q with which a client joins its rounds.

    Groups are of whole clients, and those who are left over take part in none; the last query may miss its last rounds.
    """
    queries, groups, members = draw(st.integers(1, 2)), draw(st.integers(1, 4)), draw(st.integers(1, 6))
    probability = draw(st.floats(0.01, 0.9))
    rounds = groups * queries - draw(st.integers(0, groups - 1))
    column = draw(st.lists(st.floats(-1, 1, width=32), max_size=min(groups, rounds) - 1))
    sampling = tff_mf.CyclicPoisson(
        groups=groups,
        population=groups * members + draw(st.integers(0, groups - 1)),
        clients_per_round=probability * members,
    )
    return tff_mf.BandedToeplitz(column=[draw(st.floats(0.5, 2, width=32)), *column]), rounds, sampling, probability


LEFT_OVER = tff_mf.CyclicPoisson(groups=4, population=7, clients_per_round=0.5)


@settings(max_examples=10)
@example(run=(tff_mf.BandedToeplitz(column=[1.0, -0.75]), 4, LEFT_OVER, 0.5), mu=1.0, decades=-5.0)
@example(run=(tff_mf.BandedToeplitz(column=[2.0, 0.5, 0.5]), 5, LEFT_OVER, 0.5), mu=0.5, decades=-3.0)
@given(run=cyclic_runs(), mu=st.floats(0.2, 3), decades=st.floats(-7, -2))
def test_epsilon_is_never_below_the_integral(run, mu, decades):
    mechanism, rounds, sampling, probability = run
    delta, queries = 10.0**decades, math.ceil(rounds / sampling.groups)
    sigma = float(np.linalg.norm(mechanism.cast_to_float32().encoder(rounds), axis=0).max()) / mu
    epsilon = tff_mf.epsilon(mechanism, rounds, sampling, noise_multiplier=sigma, delta=delta)
    assert exact_delta(epsilon, queries, probability, mu) <= delta * (1 + 1e-7)
    if epsilon > 0:
        assert exact_delta(0.99 * epsilon - 1e-4, queries, probability, mu) > delta


def test_a_sampling_probability_of_one_amplifies_nothing():
    schema = tff_mf.FixedEpoch(min_sep=4, max_participations=3)
    mechanism = tff_mf.BandedToeplitz(column=[1.0, 0.5, 0.25, 0.125])
    sampled = cyclic_epsilon(mechanism, 12, population=40, clients_per_round=10, noise_multiplier=5, delta=1e-6)
    plain = tff_mf.epsilon(mechanism, 12, schema, noise_multiplier=5, delta=1e-6)
    # Theorem 4 uses the largest column norm for all columns; the last column is shorter.
    assert plain <= sampled <= plain * 1.01


def test_the_event_is_that_of_the_paper():
    event = cyclic_event(banded(9), 2052, **STACK_OVERFLOW, noise_multiplier=2.0)
    assert event.count == math.ceil(2052 / 9)
    assert event.event.sampling_probability == 1000 / (342_477 // 9)
    assert event.event.event.noise_multiplier == pytest.approx(2.0, rel=1e-9)
    assert event.event.event.noise_multiplier <= 2.0


def test_bands_are_counted_from_the_entries():
    assert bands_and_norm(tff_mf.BandedToeplitz(column=[1.0, 0.0, 0.0]), 9) == (1, 1.0)
    dense = tff_mf.Dense(matrix=[[3.0, 0, 0], [4, 1, 0], [0, 0, 1]])
    released = float(np.linalg.norm(dense.cast_to_float32().encoder(3)[:, 0]))
    assert bands_and_norm(dense, 3) == (2, pytest.approx(released, rel=1e-15)) == (2, pytest.approx(5))
    assert bands_and_norm(tff_mf.optimize_banded(rounds=12, bands=4), 12)[0] == 4
    assert bands_and_norm(tff_mf.Tree(4), 4)[0] == 4


@pytest.mark.once
def test_the_best_number_of_bands():
    """Choquette-Choo et al. (2023), table 3, has the number fall as ε falls and as k rises."""
    few = tff_mf.amplified_bands(rounds=64, population=64, clients_per_round=16, epsilon=0.125, delta=1e-6)
    many = tff_mf.amplified_bands(
        rounds=64, population=64, clients_per_round=1, epsilon=8, delta=1e-6, bands=[1, 8, 64]
    )
    assert few[0].bands < many[0].bands == 64
    assert [each.rms_error for each in many] == sorted(each.rms_error for each in many)
    # One band is DP-SGD.
    sgd = next(each for each in few if each.bands == 1)
    assert sgd.rms_error == pytest.approx(sgd.noise_multiplier * tff_mf.rms_error(tff_mf.Identity(), 64), rel=1e-6)


def test_delta_is_1_where_nothing_less_is_known():
    """Each client is in each of two rounds: δ(0) is 2Φ(√2/(2σ)) − 1, which is nearer to 1 than any float."""
    sampling = tff_mf.Poisson(population=1, clients_per_round=1)
    found = tff_mf.guarantee(tff_mf.Identity(), 2, sampling, noise_multiplier=0.05)
    assert found.at(epsilon=0.0).delta == 1.0


def test_cohorts_of_more_clients_than_a_grid_was_charged_for_are_refused():
    sampling = tff_mf.BMinSep(min_sep=2, probability=0.5, clients_per_round=1)
    with pytest.raises(tff_mf.InputError, match="clients=1000"):
        sampling.cohorts(1000, 20)
    of_three = tff_mf.BMinSep.of_population(min_sep=2, population=9, clients_per_round=3)
    assert len(of_three.cohorts(9, 4)) == 4


def test_balls_in_bins_of_the_identity_are_just_above_quadrature():
    """Of 7 rounds and 3 bins, one bin has 3 rounds, and others 2."""
    found = bins_level(tff_mf.Identity(), 7, bins=3, noise_multiplier=2.0, delta=1e-5)
    gram = np.diag([3.0, 2.0, 2.0]) / 4
    exact = [balls_in_bins_oracle.quadrature(gram, found.epsilon, remove=each) for each in (True, False)]
    # Its bound is one of samples, which claims a little more.
    assert 0.85e-5 <= max(exact) <= 1e-5
