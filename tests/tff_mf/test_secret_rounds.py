"""Of every sampling: the stated ε is not below the true one, for real numbers and for what a grid costs.

The true one is a quadrature over all outputs of a short run, for a list of all rounds that a client may have.
"""

import dataclasses
import itertools
import math

import numpy as np
import pytest

import tff_mf
from tff_mf.accounting import grid_charge
from tff_mf.accounting.question import Question

from . import secret_rounds_oracle as oracle

TWO_BANDS = tff_mf.BandedToeplitz(column=[1.0, 0.5])
SIGNED = tff_mf.BandedToeplitz(column=[1.0, -0.5])
MIXED = tff_mf.Dense(matrix=[[1.0, 0, 0], [0.7, 0.5, 0], [0.2, 0.9, 1.5]])
# One client is left over, who takes part in none.
CYCLIC = tff_mf.CyclicPoisson(groups=2, population=5, clients_per_round=0.5)
RARE = tff_mf.CyclicPoisson(groups=2, population=300, clients_per_round=3)
# C, rounds, sampling, and the share of ε that is too small; none where the bound is known to be loose.
RUNS = {
    "poisson": (tff_mf.Identity(), 2, tff_mf.Poisson(population=10, clients_per_round=3), 0.99),
    "cyclic poisson, both signs": (SIGNED, 4, CYCLIC, 0.99),
    "cyclic poisson, few clients": (TWO_BANDS, 4, RARE, 0.99),
    "cyclic poisson, an epoch that is cut off": (tff_mf.Identity(), 3, CYCLIC, 0.99),
    "two bins": (TWO_BANDS, 7, tff_mf.BallsInBins(groups=2), 0.96),
    "two bins, both signs": (SIGNED, 2, tff_mf.BallsInBins(groups=2), 0.96),
    "three bins": (MIXED, 3, tff_mf.BallsInBins(groups=3), 0.96),
    "three bins, of other sizes": (tff_mf.Identity(), 7, tff_mf.BallsInBins(groups=3), 0.96),
    "b-min-sep": (TWO_BANDS, 3, tff_mf.BMinSep(min_sep=2, probability=0.3), None),
    "b-min-sep, both signs": (SIGNED, 2, tff_mf.BMinSep(min_sep=2, probability=0.3), None),
    "b-min-sep, a client that hardly waits": (TWO_BANDS, 3, tff_mf.BMinSep(min_sep=3, probability=0.9), None),
}  # fmt: skip
FEW = {"samples": 20_000}
# Quadrature in three dimensions is coarse.
ROUNDING = 2e-3


@pytest.mark.parametrize(("sigma", "delta"), [(0.8, 1e-7), (1.2, 1e-5), (2.5, 1e-3), (8.0, 1e-2)])
@pytest.mark.parametrize("name", RUNS)
def test_epsilon_is_not_below_quadrature(name, sigma, delta):
    mechanism, rounds, sampling, too_small = RUNS[name]
    encoder = mechanism.cast_to_float32().encoder(rounds)
    epsilon = tff_mf.guarantee(mechanism, rounds, sampling, noise_multiplier=sigma, **FEW).at(delta=delta).epsilon
    assert oracle.worst_quadrature(encoder, sampling, sigma, epsilon) <= delta * (1 + ROUNDING)
    if too_small and epsilon > 0.01:
        assert oracle.worst_quadrature(encoder, sampling, sigma, too_small * epsilon - 1e-4) > delta


DELTA, SIGMA = 1e-3, 1.2
CHARGE = grid_charge.GridCharge(mu=0.0, tail=0.0, sensitivity=0.0, error=0.0, log_ratio=0.0, limit=12.0)
COSTS = [{"mu": 0.02}, {"sensitivity": 0.1}, {"tail": 2e-5}, {"mu": 0.1, "sensitivity": 0.05, "tail": 1e-5}]
CHARGED = ("poisson", "two bins", "b-min-sep")


def moved_delta(epsilon, means, chances, cost):
    """Returns the largest δ(ε), in either direction, of laws that are as far from the ideal ones as a grid allows.

    Each law is that of a mean that is moved by μ_c in some direction, for every draw of the rounds another one: exactly
    μ_c-GDP close to the ideal one. Means are longer by what rounding adds to a column of C. The tail is moved into an
    event on one data set, and out of it on the other.
    """
    norms = np.linalg.norm(means, axis=1, keepdims=True)
    means = means * (1 + cost.sensitivity / SIGMA / np.where(norms, norms, np.inf))
    axis = np.arange(-8, 8 + means.max(), 0.06)
    along = means.sum(axis=0) / np.linalg.norm(means.sum(axis=0))
    across = np.array([along[1], -along[0]])
    law = {}

    def density(mean):
        if tuple(mean) not in law:
            one, other = (np.exp(-((axis - place) ** 2) / 2) / math.sqrt(2 * math.pi) * 0.06 for place in mean)
            law[tuple(mean)] = np.outer(one, other)
        return law[tuple(mean)]

    moves = [np.zeros(2)] if cost.mu == 0 else [cost.mu * each for each in (along, -along, across)]
    found = 0.0
    for without, *with_client in itertools.product(moves, repeat=1 + len(means)):
        pair = (
            density(without),
            sum(p * density(mean + move) for p, mean, move in zip(chances, means, with_client, strict=True)),
        )
        for one, other in (pair, pair[::-1]):
            event = one > math.exp(epsilon) * other
            tail = min(cost.tail, one[~event].sum()) + math.exp(epsilon) * min(cost.tail, other[event].sum())
            found = max(found, float(np.sum(np.where(event, one - math.exp(epsilon) * other, 0))) + tail)
    return found


@pytest.mark.parametrize("cost", COSTS, ids=str)
@pytest.mark.parametrize("name", CHARGED)
def test_epsilon_covers_laws_that_are_moved_for_each_draw_of_the_rounds(name, cost):
    mechanism, _, sampling, too_small = RUNS[name]
    cost = dataclasses.replace(CHARGE, **cost)
    run = sampling.run(Question(mechanism=mechanism, rounds=2, sampling=sampling, **FEW))
    charged, ideal = (run.charged(SIGMA, DELTA, each).epsilon for each in (cost, None))
    ((histories, chances),) = oracle.laws(sampling, 2)
    means = histories @ mechanism.encoder(2).T / SIGMA
    assert moved_delta(charged, means, chances, cost) <= DELTA * (1 + ROUNDING)
    # The same laws refute the ε of the ideal release: each part of the charge is needed.
    if too_small:
        assert charged > ideal
        assert moved_delta(ideal, means, chances, cost) > DELTA


@pytest.mark.parametrize("name", CHARGED)
def test_columns_that_rounding_enlarges_cost_as_much_as_a_matrix_that_has_them(name):
    mechanism, _, sampling, _ = RUNS[name]
    first, *others = mechanism.coefficients(2)
    matrices = mechanism, tff_mf.BandedToeplitz(column=[first + 0.5, *others])
    stored, enlarged = (sampling.run(Question(mechanism=C, rounds=2, sampling=sampling, **FEW)) for C in matrices)
    charged = stored.charged(SIGMA, DELTA, dataclasses.replace(CHARGE, sensitivity=0.5)).epsilon
    # Samples are off by less.
    assert charged >= 0.99 * enlarged.charged(SIGMA, DELTA, None).epsilon


@pytest.mark.parametrize("name", CHARGED)
def test_a_small_charge_costs_little(name):
    mechanism, _, sampling, _ = RUNS[name]
    run = sampling.run(Question(mechanism=mechanism, rounds=2, sampling=sampling, **FEW))
    small = dataclasses.replace(CHARGE, mu=1e-6, tail=1e-12)
    assert run.charged(SIGMA, DELTA, small).epsilon <= 1.05 * run.charged(SIGMA, DELTA, None).epsilon
