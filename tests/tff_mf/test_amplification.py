"""Amplification by sampling, against integrals, lists of outcomes and simulated runs."""

import math

import numpy as np
import pytest

import tff_mf
from tests.tff_mf.samplings import cyclic_epsilon, cyclic_event
from tff_mf.accounting import bands_and_norm

STACK_OVERFLOW = {"population": 342_477, "clients_per_round": 1000}


def banded(bands):
    """Returns a mechanism with this number of bands and columns of norm 1, up to rounding."""
    return tff_mf.BandedToeplitz(column=[1.0] + [2.0**-30] * (bands - 1))


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
