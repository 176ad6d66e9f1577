"""Random allocation, against lists of all allocations and quadrature, and against Poisson sampling."""

import math

import numpy as np
import pytest

import tff_mf
from tests.tff_mf import balls_in_bins_oracle, secret_rounds_oracle
from tests.tff_mf.samplings import allocated_epsilon, bins_level, cyclic_epsilon
from tff_mf.accounting.allocation import Atoms, one_of_many
from tff_mf.numerics import composed_losses

IDENTITY = tff_mf.Identity()


@pytest.mark.parametrize(("bins", "sigma"), [(2, 0.5), (3, 1.0)])
def test_one_of_many_is_just_above_quadrature(bins, sigma):
    atoms = one_of_many(bins, 1 / sigma, 1e-6)
    for epsilon in (0.05, 1.0):
        for remove in (True, False):
            exact = balls_in_bins_oracle.quadrature(np.eye(bins) / sigma**2, epsilon, remove=remove)
            if exact > 1e-9:
                assert exact * (1 - 1e-4) <= atoms.delta(epsilon, remove=remove) <= 1.03 * exact + 1e-11


@pytest.mark.parametrize(("rounds", "turns", "sigma"), [(3, 2, 0.8), (3, 2, 2.0), (3, 3, 1.0), (3, 1, 1.0)])
def test_not_below_the_list_of_all_allocations(rounds, turns, sigma):
    delta = 1e-4
    found = allocated_epsilon(IDENTITY, rounds, participations=turns, noise_multiplier=sigma, delta=delta)
    rows, chances = secret_rounds_oracle.allocations(rounds, turns)
    setting = {"points": 121, "reach": 6.5}
    for share, holds in ((1.0, True), (0.8 if turns < 3 else 0.98, False)):
        exact = max(
            secret_rounds_oracle.quadrature(
                np.eye(rounds), rows, chances, sigma, share * found, remove=remove, **setting
            )
            for remove in (True, False)
        )
        # Trapezoids of this width are off by less.
        assert (exact <= delta * 1.01) == holds


def test_all_rounds_are_not_amplified():
    setting = {"noise_multiplier": 1.5, "delta": 1e-6}
    found = allocated_epsilon(IDENTITY, 5, participations=5, **setting)
    schema = tff_mf.MinSep(min_sep=1, max_participations=5)
    assert found == pytest.approx(tff_mf.epsilon(IDENTITY, 5, schema, **setting), rel=1e-9)


def test_products_of_poisson_rounds_are_what_the_accountant_of_poisson_sampling_has():
    """1 − q + qX per round, through the same grid, against quadrature without a grid."""
    q, delta = 0.1, 1e-6
    one = Atoms.lognormal(1.0, delta)
    level = Atoms(points=1 - q + q * one.points, masses=one.masses, spill=q * one.spill, rounding=one.rounding)
    losses = [level.losses(remove=remove) for remove in (True, False)]
    found = composed_losses.epsilon(losses, 10, delta, most=50.0)
    expected = cyclic_epsilon(IDENTITY, 10, population=100, clients_per_round=10, noise_multiplier=1.0, delta=delta)
    assert expected * (1 - 2e-4) <= found <= expected * (1 + 1e-3)


def test_means_and_masses_are_kept():
    atoms = one_of_many(20, 1.2, 1e-8)
    assert atoms.masses.sum() == pytest.approx(1, rel=1e-9)
    assert atoms.masses @ atoms.points + atoms.spill == pytest.approx(1, rel=1e-7)
    assert np.all(atoms.masses >= 0)
    assert np.all(np.diff(atoms.points) > 0)


def test_balls_in_bins_of_the_identity_are_bounded_without_samples():
    """Of 7 rounds and 3 bins, one bin has 3 rounds, and others 2: all are taken for as large as the largest."""
    found = bins_level(IDENTITY, 7, bins=3, noise_multiplier=2.0, delta=1e-5)
    assert (found.theorem, found.samples, found.failure, found.bound) == ("allocation", 0, 0.0, "proved")
    gram = np.diag([3.0, 2.0, 2.0]) / 4
    exact = [balls_in_bins_oracle.quadrature(gram, found.epsilon, remove=each) for each in (True, False)]
    assert max(exact) <= 1e-5
    again = bins_level(IDENTITY, 7, bins=3, noise_multiplier=2.0, epsilon=found.epsilon)
    assert again.theorem == "allocation"
    assert max(exact) <= again.delta <= 1.001e-5


def test_products_beyond_what_float64_holds():
    """The product of 32 such likelihood ratios has points far above e^709. Each is at least half of its round's."""
    found = allocated_epsilon(IDENTITY, 64, participations=32, noise_multiplier=0.09, delta=1e-12)
    schema = tff_mf.MinSep(min_sep=1, max_participations=32)
    plain = tff_mf.epsilon(IDENTITY, 64, schema, noise_multiplier=0.09, delta=1e-12)
    assert plain - 32 * math.log(2) <= found < plain
