"""Amplified guarantees of integers: chains of laws, exact laws of short runs, and the room of sums."""

import dataclasses
import itertools
import math

import numpy as np
import pytest
import scipy.stats
from hypothesis import example, given, settings
from hypothesis import strategies as st

import tff_mf
from tests.tff_mf.samplings import bins_level, cyclic_epsilon, cyclic_sigma
from tff_mf.accounting import grid_charge
from tff_mf.accounting.balls_in_bins import widened
from tff_mf.base.errors import InputValueError

GRID = tff_mf.Grid(bits=16, max_clients=2000)
LSTM = 4_050_748
ON_GRID = {"grid": GRID, "dimension": LSTM}
FREE = grid_charge.GridCharge(mu=0.0, tail=0.0, sensitivity=0.0, error=0.0, log_ratio=0.0, limit=12.0)


def hockey_stick(epsilon, one, other):
    return float(np.maximum(0, one - math.exp(epsilon) * other).sum())


def largest_delta_of_chain(level, epsilon, delta, charge):
    """Returns the largest δ(level) that four laws can have, by brute force over the probability of an event.

    The computed release and the ideal one are μ_c-GDP close up to the tail, on both data sets, and the ideal releases
    are (ε, δ)-DP. Of an event of probability x on one data set, the three trade-offs in a row say how probable it is at
    most on the other; there are laws that attain it.
    """
    x = np.concatenate([[0.0], np.logspace(-40, -level / math.log(10), 4001)])

    def close(probability):
        return scipy.stats.norm.cdf(scipy.stats.norm.ppf(np.minimum(probability, 1.0)) + charge.mu)

    ideal = np.minimum(math.exp(epsilon) * close(x + charge.tail) + delta, 1.0)
    return float(np.max(np.minimum(close(ideal) + charge.tail, 1.0) - math.exp(level) * x))


@settings(max_examples=200)
@example(epsilon=0.0, decades=-30.0, mu=1.0, deviations=4.0, tail=0.0)
@example(epsilon=1.0, decades=-30.0, mu=1.0, deviations=5.0, tail=0.0)
@example(epsilon=0.0, decades=-2.0, mu=1.0, deviations=2.8, tail=0.0)
@example(epsilon=0.0, decades=-30.0, mu=0.0, deviations=0.0, tail=1e-3)
@example(epsilon=2.0, decades=-30.0, mu=0.5, deviations=3.0, tail=1e-4)
@example(epsilon=1.0, decades=-5.0, mu=1e-3, deviations=5.0, tail=1e-9)
@given(
    epsilon=st.floats(0, 4),
    decades=st.floats(-12, -0.5),
    mu=st.just(0.0) | st.floats(-4, 0.3).map(lambda exponent: 10.0**exponent),
    deviations=st.floats(0, 7),
    tail=st.just(0.0) | st.floats(-9, -2).map(lambda exponent: 10.0**exponent),
)
def test_no_four_laws_exceed_the_delta_of_their_chain(epsilon, decades, mu, deviations, tail):
    cost, delta, factor = dataclasses.replace(FREE, mu=mu, tail=tail), 10.0**decades, mu * deviations
    bound = grid_charge.delta_of_chain(epsilon, delta, cost, factor=factor)
    exact = largest_delta_of_chain(epsilon + 2 * factor, epsilon, delta, cost)
    assert exact <= bound * (1 + 1e-9) + 1e-14
    # It is reached where the laws differ by their tails and by δ alone.
    if factor == 0 and mu == 0 and bound < 1:
        assert bound <= exact * (1 + 1e-6) + 1e-14


@settings(max_examples=60)
@example(ideal=0.0, decades=-6.0, mu=1.0, tail=0.0)
@example(ideal=1.0, decades=-3.0, mu=0.5, tail=1e-5)
@given(
    ideal=st.floats(0, 4),
    decades=st.floats(-10, -1),
    mu=st.floats(-4, 0.3).map(lambda exponent: 10.0**exponent),
    tail=st.just(0.0) | st.floats(-12, -4).map(lambda exponent: 10.0**exponent),
)
def test_no_four_laws_exceed_the_epsilon_of_their_chain(ideal, decades, mu, tail):
    """Where the ideal release is (ε, δ)-DP for an ε that rises as δ falls, whichever δ was asked for last."""
    cost, delta, asked = dataclasses.replace(FREE, mu=mu, tail=tail), 10.0**decades, []

    def epsilon_from(part):
        asked.append(part)
        return ideal + math.log(delta / part) / 8

    epsilon = grid_charge.epsilon_of_chain(delta, cost, epsilon_from)
    if epsilon < math.inf:
        exact = min(largest_delta_of_chain(epsilon, epsilon_from(part), part, cost) for part in tuple(asked))
        assert exact <= delta * (1 + 1e-9) + 1e-14


def test_a_charge_that_leaves_nothing_has_no_epsilon():
    tail = dataclasses.replace(FREE, mu=1e-3, tail=1e-6)
    assert grid_charge.epsilon_of_chain(1e-6, tail, lambda part: 1.0) == math.inf
    assert grid_charge.epsilon_of_chain(1e-6, FREE, lambda part: 800.0) == math.inf
    assert grid_charge.delta_of_chain(800.0, 1e-6, FREE, factor=0.0) == 1.0


def test_an_event_has_what_a_grid_costs():
    """An event of sampled Gaussians would be of real numbers, and its ε smaller than the one of the integers."""
    run = tff_mf.Identity(), 8, tff_mf.Poisson(population=10_000, clients_per_round=1000)
    on_grid = tff_mf.guarantee(*run, noise_multiplier=1.0, **ON_GRID)
    known = tff_mf.guarantee(*run[:2], run[2].schema(8), noise_multiplier=1.0, **ON_GRID)
    assert on_grid.dp_event().noise_multiplier == on_grid.effective_noise_multiplier
    assert on_grid.effective_noise_multiplier <= known.effective_noise_multiplier
    assert not hasattr(tff_mf.guarantee(*run, noise_multiplier=1.0).dp_event(), "noise_multiplier")


def test_without_secrecy_nothing_is_amplified_on_a_grid():
    one = {"population": 1000, "clients_per_round": 1000, "noise_multiplier": 20.0, "delta": 1e-6}
    found = cyclic_epsilon(tff_mf.Identity(), 8, **one, **ON_GRID)
    schema = tff_mf.MinSep(min_sep=1, max_participations=8)
    known = tff_mf.guarantee(tff_mf.Identity(), 8, schema, noise_multiplier=20.0, **ON_GRID).epsilon(1e-6)
    assert found == pytest.approx(known, rel=1e-6)


def test_the_noise_multiplier_on_a_grid_suffices_and_is_the_smallest():
    setting = {"population": 10_000, "clients_per_round": 1000, "delta": 1e-6, **ON_GRID}
    sigma = cyclic_sigma(tff_mf.Identity(), 4, **setting, epsilon=2.0)
    assert cyclic_epsilon(tff_mf.Identity(), 4, **setting, noise_multiplier=sigma) <= 2.0
    assert cyclic_epsilon(tff_mf.Identity(), 4, **setting, noise_multiplier=0.995 * sigma) > 2.0
    fine = {**setting, "grid": tff_mf.Grid(bits=26, max_clients=2000), "dimension": 10**12}
    with pytest.raises(InputValueError, match="fewer bits"):
        cyclic_sigma(tff_mf.Identity(), 4, **fine, epsilon=1.0)


@pytest.mark.parametrize(("mean", "room"), [(3.0, 8), (50.0, 90), (0.2, 3)])
def test_the_room_of_a_sum_bounds_the_tail_of_a_cohort(mean, room):
    for clients, rounds in itertools.product((10, 100, 10_000), (1, 7, 2000)):
        if mean < clients:
            exact = -math.expm1(rounds * math.log1p(-scipy.stats.binom.sf(room, clients, mean / clients)))
            assert exact <= grid_charge.overflow(rounds, max_clients=room, clients_per_round=mean)
    assert grid_charge.overflow(1, max_clients=room, clients_per_round=mean) < 1
    assert grid_charge.overflow(1, max_clients=3, clients_per_round=3.0) == 1.0


def test_cohorts_that_do_not_fit_a_sum_are_part_of_delta():
    setting = {"population": 342_477, "noise_multiplier": 0.8, "delta": 1e-6, "dimension": LSTM}
    little, enough = (
        cyclic_epsilon(
            tff_mf.Identity(), 16, **setting, clients_per_round=900, grid=tff_mf.Grid(bits=16, max_clients=room)
        )
        for room in (901, 1800)
    )
    assert little == math.inf
    assert enough < 1.0


TWO_BANDS = tff_mf.BandedToeplitz(column=[1.0, 0.5])
DELTA, SIGMA = 1e-3, 1.2


def integers(bits, sent):
    """Returns the exact law of the two integers that a run with TWO_BANDS releases, for what the client sends."""
    scale, span = SIGMA * 2**bits, round(9 * SIGMA * 2**bits)
    n = np.arange(-span, span + 1)
    first = scipy.stats.norm.cdf((n + 0.5) / scale) - scipy.stats.norm.cdf((n - 0.5) / scale)
    # n_1 = R(s·z − n_0/2): both integers are moved by what is sent, and the second depends on the noise of the first.
    second = np.array(
        [scipy.stats.norm.cdf((n + 0.5 + m / 2) / scale) - scipy.stats.norm.cdf((n - 0.5 + m / 2) / scale) for m in n]
    )
    law, wide = first[:, np.newaxis] * second, 2**bits
    found = np.zeros((len(n) + 2 * wide, len(n) + 2 * wide))
    begin = [wide + each for each in sent]
    found[begin[0] : begin[0] + len(n), begin[1] : begin[1] + len(n)] = law
    return found


@pytest.mark.parametrize("signs", [(1, 1), (1, -1)])
def test_epsilon_covers_the_exact_law_of_integers(signs):
    bits = 3
    sends = (signs[0] * 2**bits, 0), (0, signs[1] * 2**bits)
    one, other = sum(0.5 * integers(bits, each) for each in sends), integers(bits, (0, 0))
    epsilon = bins_level(TWO_BANDS, 2, bins=2, noise_multiplier=SIGMA, delta=DELTA, samples=20_000).epsilon
    worst = max(hockey_stick(epsilon, one, other), hockey_stick(epsilon, other, one))
    assert worst <= DELTA
    # It is not vacuous: integers of so few bits tell nearly as much as real numbers do.
    assert signs == (1, -1) or worst > 0.5 * DELTA


def test_a_matrix_that_is_rounded_has_inner_products_below_the_bound():
    generator = np.random.default_rng(5)
    for _ in range(20):
        entries = np.tril(generator.uniform(size=(8, 8)))
        change = generator.normal(size=(8, 8)) * np.tril(generator.uniform(0, 0.1, size=(8, 8)))
        groups = np.tile(np.eye(4), 2)
        norm = float(np.linalg.norm(change, axis=0).max())
        rounded, plain = (entries + change) @ groups.T, entries @ groups.T
        assert np.all(rounded.T @ rounded <= widened(plain.T @ plain, 2 * norm) + 1e-12)


RUNS = {
    "balls in bins": (TWO_BANDS, 8, tff_mf.BallsInBins(groups=4, clients_per_round=100)),
    "b-min-sep": (TWO_BANDS, 8, tff_mf.BMinSep(min_sep=2, probability=0.5, clients_per_round=100)),
}
FEW = {"samples": 4000, "delta": 1e-4}


@pytest.mark.once
@pytest.mark.parametrize("name", RUNS)
def test_a_calibrated_noise_multiplier_suffices_on_a_grid(name):
    plain, sigma = (tff_mf.calibrate_noise_multiplier(*RUNS[name], epsilon=1.0, **FEW, **on) for on in ({}, ON_GRID))
    assert tff_mf.epsilon(*RUNS[name], noise_multiplier=sigma, **FEW, **ON_GRID) <= 1.0
    assert sigma > 0.98 * plain


@pytest.mark.once
@pytest.mark.parametrize("name", RUNS)
def test_a_cohort_without_room_has_no_epsilon_and_no_noise_multiplier(name):
    mechanism, rounds, sampling = RUNS[name]
    run = mechanism, rounds, dataclasses.replace(sampling, clients_per_round=1999.0)
    found = tff_mf.guarantee(*run, noise_multiplier=2.0, samples=1000, **ON_GRID).at(delta=1e-4)
    assert (found.epsilon, found.failure) == (math.inf, 0.0)
    with pytest.raises(InputValueError):
        tff_mf.calibrate_noise_multiplier(*run, epsilon=1.0, delta=1e-4, samples=1000, **ON_GRID)


def test_what_a_grid_needs_goes_together():
    setting = {"bins": 4, "noise_multiplier": 2.0, "delta": 1e-4, "clients_per_round": 100, **ON_GRID}
    for missing, message in (("dimension", "together"), ("grid", "together"), ("clients_per_round", "is missing")):
        some = {name: value for name, value in setting.items() if name != missing}
        with pytest.raises(InputValueError, match=message):
            bins_level(TWO_BANDS, 8, **some)
