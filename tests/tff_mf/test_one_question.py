"""Laws of every sampling, whatever its theorem is: one question, one answer, and the same refusals."""

import dataclasses
import math

import numpy as np
import pytest

import tff_mf
from tff_mf.accounting import bands_and_norm
from tff_mf.accounting.b_min_sep import columns_of
from tff_mf.accounting.balls_in_bins import balls_in_bins_gram

from . import outside

TWO_BANDS = tff_mf.BandedToeplitz(column=[1.0, 0.5])
POPULATION = {"population": 100, "clients_per_round": 5}
RUNS = {
    "poisson": (tff_mf.Identity(), 24, tff_mf.Poisson(**POPULATION)),
    "cyclic poisson": (TWO_BANDS, 24, tff_mf.CyclicPoisson(groups=4, **POPULATION)),
    "balls in bins": (TWO_BANDS, 24, tff_mf.BallsInBins(groups=6, clients_per_round=5)),
    "b-min-sep": (TWO_BANDS, 12, tff_mf.BMinSep(min_sep=2, probability=0.1, clients_per_round=5)),
    "min-sep": (TWO_BANDS, 24, tff_mf.MinSep(min_sep=2, max_participations=3)),
}
SECRET = [name for name in RUNS if name != "min-sep"]
BY_SAMPLES, SMALL_DELTAS = ("balls in bins",), ("balls in bins", "b-min-sep")
FEW = {"samples": 20_000}
ON_GRID = {"grid": tff_mf.Grid(bits=16, max_clients=2000), "dimension": 4_050_748}


def both(name, sigma, **more):
    """Returns the guarantee of a run, and of the schema that holds for whoever knows the cohorts."""
    mechanism, rounds, sampling = RUNS[name]
    found = tff_mf.guarantee(mechanism, rounds, sampling, noise_multiplier=sigma, **FEW, **more)
    return found, tff_mf.guarantee(mechanism, rounds, sampling.schema(rounds), noise_multiplier=sigma, **more)


@pytest.mark.parametrize("name", RUNS)
def test_epsilon_and_delta_answer_each_other_and_are_never_above_the_schema(name):
    found, known = both(name, 4.0)
    assert (found.mu, found.zcdp_rho) == (known.mu, known.zcdp_rho)
    level = found.at(delta=1e-5)
    assert level.epsilon == found.epsilon(1e-5) <= known.epsilon(1e-5)
    assert level.direction in {"both", "remove", "add"}
    assert (level.bound == "certified") == (level.failure > 0)
    assert level.failure <= 1e-8 * (1 + 1e-12)
    if name in BY_SAMPLES:
        # Another question of the same content has the same answer: a certificate is not drawn again.
        assert both(name, 4.0)[0].at(delta=1e-5) == level
    if name in BY_SAMPLES:
        with pytest.raises(tff_mf.InputError, match="no δ is certified"):
            found.delta(level.epsilon)
    else:
        assert found.delta(level.epsilon) == pytest.approx(1e-5, rel=0.01)
    if name in SECRET:
        assert level.epsilon < 0.95 * known.epsilon(1e-5)
        assert level.theorem != "unamplified"


@pytest.mark.parametrize("more", [FEW, FEW | ON_GRID], ids=["real numbers", "grid"])
@pytest.mark.parametrize("name", RUNS)
def test_sigma_is_enough_and_hardly_more_and_is_found_once(name, more):
    target = {"epsilon": 0.5, "delta": 1e-5}
    sigma = tff_mf.calibrate_noise_multiplier(*RUNS[name], **target, **more)
    level = tff_mf.guarantee(*RUNS[name], noise_multiplier=sigma, **more).at(delta=1e-5)
    assert level.epsilon <= 0.5
    # All certificates of the search together.
    assert level.failure == (1e-3 * 1e-5 if level.bound == "certified" else 0.0)
    if name in BY_SAMPLES:
        assert tff_mf.calibrate_noise_multiplier(*RUNS[name], **target, **more) == sigma
    less = 0.93 if name in BY_SAMPLES else 0.99
    assert tff_mf.epsilon(*RUNS[name], noise_multiplier=less * sigma, delta=1e-5, **more) > 0.5


@pytest.mark.parametrize("name", RUNS)
@pytest.mark.parametrize("sigma", [0.0, 0.02, 1e4])
def test_extreme_noise(name, sigma):
    found, known = both(name, sigma)
    level = found.at(delta=1e-6)
    assert level.epsilon <= known.epsilon(1e-6)
    assert (level.epsilon == math.inf) == (sigma == 0)
    if name in SMALL_DELTAS and sigma < 1:
        assert level.theorem == "unamplified"


IDENTITY = tff_mf.Identity()
INFINITE = outside.geometric_class(coefficients=lambda self, rounds: np.full(rounds, np.inf))(alpha=0.1, beta=0.5)


@pytest.mark.parametrize(
    ("mechanism", "kind", "fields", "message"),
    [
        (TWO_BANDS, tff_mf.Poisson, POPULATION, "mechanism has 2 bands, and 1 groups"),
        (TWO_BANDS, tff_mf.CyclicPoisson, {"groups": 1, **POPULATION}, "mechanism has 2 bands, and 1 groups"),
        (tff_mf.BLT(theta=[0.9], omega=[0.1]), tff_mf.BMinSep, {"min_sep": 3, "probability": 0.1}, "8 bands"),
        (IDENTITY, tff_mf.BallsInBins, {"groups": 13}, "groups=13 must be at most the number of rounds, 8"),
        (IDENTITY, tff_mf.BallsInBins, {"groups": 0}, "groups=0 must be at least 1"),
        (IDENTITY, tff_mf.BMinSep, {"min_sep": 1, "probability": 0.1}, "min_sep=1 is Poisson sampling"),
        (IDENTITY, tff_mf.BMinSep, {"min_sep": 3, "probability": 1.5}, "probability=1.5 must be at most 1"),
        (IDENTITY, tff_mf.BMinSep, {"min_sep": 3, "probability": 0}, "probability=0"),
        (IDENTITY, tff_mf.CyclicPoisson, {"groups": 2, "population": 1, "clients_per_round": 1}, "population=1"),
        (IDENTITY, tff_mf.Poisson, {"population": 50, "clients_per_round": 51}, "clients_per_round=51"),
        (INFINITE, tff_mf.BallsInBins, {"groups": 2}, "entries of C that are not finite"),
        ("tree", tff_mf.CyclicPoisson, {"groups": 1, **POPULATION}, "mechanism='tree'"),
        (IDENTITY, str, {}, "sampling=''"),
    ],
)
def test_what_no_theorem_covers_is_refused_by_its_condition(mechanism, kind, fields, message):
    with pytest.raises(tff_mf.InputError, match=message):
        tff_mf.guarantee(mechanism, 8, kind(**fields), noise_multiplier=4.0)


@pytest.mark.parametrize("name", SECRET)
@pytest.mark.parametrize("changed", [{"restart_every": 6}, {"adjacency": "replace-one"}], ids=str)
def test_what_no_theorem_amplifies_is_refused(name, changed):
    with pytest.raises(tff_mf.InputError, match=next(iter(changed))):
        tff_mf.guarantee(*RUNS[name], noise_multiplier=4.0, **changed)


@pytest.mark.parametrize("name", SECRET)
def test_nothing_is_amplified_in_what_is_made_of_an_amplified_guarantee(name):
    found, known = both(name, 4.0)
    for changed in (
        lambda each: each.replace_one(),
        lambda each: tff_mf.compose_guarantees(each, each),
        lambda each: dataclasses.replace(each, mu=2 * each.mu),
    ):
        assert changed(found).epsilon(1e-5) == changed(known).epsilon(1e-5)


@pytest.mark.parametrize("name", SECRET)
def test_a_delta_that_float64_hardly_tells_from_0_is_refused(name):
    delta = 1e-320 if name in SMALL_DELTAS else 1e-13
    with pytest.raises(tff_mf.InputError, match=f"delta={delta}"):
        both(name, 4.0)[0].at(delta=delta)


def test_how_a_bound_is_known():
    exact = both("min-sep", 4.0)[0]
    assert (exact.bound, exact.at(delta=1e-5).bound) == ("exact", "exact")
    poisson = both("poisson", 4.0)[0].at(delta=1e-5)
    assert (poisson.bound, poisson.theorem, poisson.failure) == ("proved", "Poisson sampling", 0.0)
    for wrong in ({}, {"delta": 0.1, "epsilon": 1.0}):
        with pytest.raises(tff_mf.InputError):
            exact.at(**wrong)
    fine = tff_mf.CyclicPoisson(groups=2, **POPULATION)
    assert (tff_mf.Poisson(**POPULATION).probability, fine.probability) == (0.05, 0.1)


def test_entries_below_zero_by_rounding_alone_are_charged():
    """The optimum of a dense C may have them; a theorem about entries of at least 0 takes their absolute values."""
    optimum = tff_mf.optimize_dense(rounds=8, participation=tff_mf.MinSep(min_sep=2, max_participations=4))
    matrix = np.array(optimum.encoder(8))
    matrix[6, 1] = -2e-9
    signed = tff_mf.Dense(matrix=matrix)
    released = signed.cast_to_float32().encoder(8)
    assert -1e-8 < released[6, 1] < 0
    charged = np.abs(released)
    columns = charged @ np.tile(np.eye(4), 2).T
    assert balls_in_bins_gram(signed, 8, bins=4) == pytest.approx(columns.T @ columns, rel=1e-12)
    shifted = [[charged[t + i, t] if t + i < 8 else 0.0 for i in range(8)] for t in range(8)]
    assert columns_of(signed, 8, 8) == pytest.approx(np.array(shifted), rel=1e-12)
    for sampling in (tff_mf.BallsInBins(groups=4), tff_mf.BMinSep(min_sep=8, probability=0.1)):
        level = tff_mf.guarantee(signed, 8, sampling, noise_multiplier=4.0, **FEW).at(delta=1e-3)
        assert 0 < level.epsilon < math.inf


@pytest.mark.parametrize(
    "more", [{"clients_per_round": 5e-324, "population": 100}, {"clients_per_round": 1, "population": 10**400}]
)
def test_a_probability_that_is_no_float_is_refused(more):
    with pytest.raises(tff_mf.InputError, match="clients_per_round="):
        tff_mf.Poisson(**more)


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
