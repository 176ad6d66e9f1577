"""Amplified guarantees of integers: the chain of laws against worst cases that are integrated, and the room of sums."""

import dataclasses
import itertools
import math

import numpy as np
import pytest
import scipy.stats

import tff_mf
from tests.tff_mf.samplings import cyclic_epsilon, cyclic_sigma
from tff_mf.accounting import grid_chain, grid_charge
from tff_mf.base.errors import InputValueError
from tff_mf.numerics import gaussian

GRID = tff_mf.Grid(bits=16, max_clients=2000)
LSTM = 4_050_748
ON_GRID = {"grid": GRID, "dimension": LSTM}
STACK_OVERFLOW = {"population": 342_477, "clients_per_round": 1000}
FREE = grid_charge.GridCharge(mu=0.0, tail=0.0, sensitivity=0.0, error=0.0, log_ratio=0.0, limit=12.0)
X = np.linspace(-20, 20, 20_001)


def cells(mean):
    """Returns the probabilities of a fine partition under N(mean, 1), those above the mean by their upper tails."""
    return np.where(X[1:] <= mean, np.diff(scipy.stats.norm.cdf(X - mean)), -np.diff(scipy.stats.norm.sf(X - mean)))


def hockey_stick(epsilon, one, other):
    return float(np.maximum(0, one - math.exp(epsilon) * other).sum())


def worst_delta(epsilon, probability, mu, charge):
    """Returns the largest δ(ε), in either direction, of a sampled query whose laws are moved as far as they may be.

    For every draw of the cohort, each law is that of a mean moved by ±μ_c: exactly μ_c-GDP close to the ideal one.
    """
    found = 0.0
    for absent, present, without in itertools.product((-charge, 0.0, charge), repeat=3):
        one = (1 - probability) * cells(absent) + probability * cells(mu + present)
        other = cells(without)
        found = max(found, hockey_stick(epsilon, one, other), hockey_stick(epsilon, other, one))
    return found


@pytest.mark.parametrize(
    ("probability", "mu", "charge", "exponent"),
    [(0.5, 1.0, 0.1, -6), (0.02, 2.0, 0.03, -6), (0.9, 0.3, 0.01, -3), (0.3, 0.5, 0.3, -3)],
)
def test_epsilon_covers_laws_that_are_moved_for_each_draw_of_the_cohort(probability, mu, charge, exponent):
    delta, cost = 10.0**exponent, dataclasses.replace(FREE, mu=charge)

    def ideal(part):
        setting = {"population": 10**6, "clients_per_round": probability * 10**6}
        return cyclic_epsilon(tff_mf.Identity(), 1, **setting, noise_multiplier=1 / mu, delta=part)

    epsilon = grid_chain.epsilon_of_chain(delta, cost, ideal)
    assert worst_delta(epsilon, probability, mu, charge) <= delta * (1 + 1e-6)
    # The same laws refute the ε of the ideal release: the charge is needed.
    if charge >= 1e-2 and ideal(delta) > 0.01:
        assert worst_delta(ideal(delta), probability, mu, charge) > delta


@pytest.mark.parametrize("mu", [1e-3, 0.05])
def test_the_chain_by_brute_force_over_events(mu):
    """Of tests of the form {x > t}, which are the best of a Gaussian shift, through all four laws."""
    cost, ideal, delta = dataclasses.replace(FREE, mu=mu, tail=1e-9), 1.0, 1e-5
    sigma = 1 / gaussian.mu_from(ideal, delta)
    for factor in (0.0, mu, 5 * mu):
        bound = grid_chain.delta_of_chain(ideal, delta, cost, factor=factor)
        threshold = np.linspace(-5, 12, 4001)
        one = scipy.stats.norm.sf(threshold - 1 / sigma - 2 * mu) + cost.tail
        other = np.maximum(0, scipy.stats.norm.sf(threshold) - cost.tail)
        assert np.max(one - math.exp(ideal + 2 * factor) * other) <= bound


def test_a_charge_that_leaves_nothing_has_no_epsilon():
    tail = dataclasses.replace(FREE, mu=1e-3, tail=1e-6)
    assert grid_chain.epsilon_of_chain(1e-6, tail, lambda part: 1.0) == math.inf
    assert grid_chain.epsilon_of_chain(1e-6, FREE, lambda part: 800.0) == math.inf
    assert grid_chain.delta_of_chain(800.0, 1e-6, FREE, factor=0.0) == 1.0


@pytest.mark.parametrize("bands", [4])
def test_a_grid_raises_an_amplified_epsilon_by_its_charge(bands):
    mechanism = tff_mf.BandedToeplitz(column=[1.0, 0.5, 0.3, 0.2][:bands])
    plain = cyclic_epsilon(mechanism, 16, **STACK_OVERFLOW, noise_multiplier=0.8, delta=1e-8)
    charged = cyclic_epsilon(mechanism, 16, **STACK_OVERFLOW, noise_multiplier=0.8, delta=1e-8, **ON_GRID)
    charge = grid_charge.charge(mechanism, 16, 1, noise_multiplier=0.8, **ON_GRID)
    # Two steps of a, each some 7 standard deviations of μ_c; and the share of δ that is left to what is beyond.
    assert plain + 4 * charge.mu < charged < 1.003 * plain + 20 * charge.mu
    known = tff_mf.guarantee(
        mechanism,
        16,
        tff_mf.FixedEpoch(min_sep=bands, max_participations=16 // bands),
        noise_multiplier=0.8,
        **ON_GRID,
    )
    assert charged < known.epsilon(1e-8)


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
    for clients in (10, 100, 10_000):
        if mean < clients:
            exact = scipy.stats.binom.sf(room, clients, mean / clients)
            assert exact <= grid_charge.overflow(1, max_clients=room, clients_per_round=mean) < 1
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
