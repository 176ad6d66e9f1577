"""One question for every sampling: what holds for all of them, whatever their theorems are."""

import dataclasses
import math

import pytest

import tff_mf

TWO_BANDS = tff_mf.BandedToeplitz(column=[1.0, 0.5])
RUNS = {
    "poisson": (tff_mf.Identity(), 24, tff_mf.Poisson(population=100, clients_per_round=5)),
    "cyclic poisson": (TWO_BANDS, 24, tff_mf.CyclicPoisson(groups=4, population=100, clients_per_round=5)),
    "balls in bins": (TWO_BANDS, 24, tff_mf.BallsInBins(groups=6)),
    "random allocation": (tff_mf.Identity(), 24, tff_mf.RandomAllocation(participations=2)),
    "shuffled epochs": (tff_mf.Identity(), 4000, tff_mf.ShuffledEpochs(epochs=2)),
    "min-sep": (TWO_BANDS, 24, tff_mf.MinSep(min_sep=2, max_participations=3)),
}
SLOW = ("random allocation", "shuffled epochs")
NAMES = [pytest.param(name, marks=pytest.mark.once) if name in SLOW else name for name in RUNS]


@pytest.mark.parametrize("name", NAMES)
def test_epsilon_and_delta_answer_each_other_and_are_never_above_the_schema(name):
    mechanism, rounds, sampling = RUNS[name]
    found = tff_mf.guarantee(mechanism, rounds, sampling, noise_multiplier=4.0)
    known = tff_mf.guarantee(mechanism, rounds, sampling.schema(rounds), noise_multiplier=4.0)
    assert (found.mu, found.zcdp_rho) == (known.mu, known.zcdp_rho)
    level = found.at(delta=1e-5)
    assert level.epsilon == found.epsilon(1e-5) <= known.epsilon(1e-5)
    assert level.direction in {"both", "remove", "add"}
    # Certificates of ε and of δ have samples of their own.
    apart = 0.2 if level.bound == "certified" else 0.01
    assert found.delta(level.epsilon) == pytest.approx(1e-5, rel=apart)
    if name != "min-sep":
        assert level.epsilon < 0.95 * known.epsilon(1e-5)
        assert level.theorem != "unamplified"


@pytest.mark.parametrize("name", [name for name in NAMES if name != "balls in bins"])
def test_sigma_is_enough_and_hardly_more(name):
    target = {"epsilon": 0.5, "delta": 1e-5}
    sigma = tff_mf.calibrate_noise_multiplier(*RUNS[name], **target)
    assert tff_mf.epsilon(*RUNS[name], noise_multiplier=sigma, delta=1e-5) <= 0.5
    assert tff_mf.epsilon(*RUNS[name], noise_multiplier=0.99 * sigma, delta=1e-5) > 0.5


def test_more_groups_than_bands_are_amplified_and_fewer_are_refused():
    population = {"population": 100, "clients_per_round": 5}
    fine = tff_mf.CyclicPoisson(groups=2, **population)
    assert math.isfinite(tff_mf.epsilon(TWO_BANDS, 24, fine, noise_multiplier=4.0, delta=1e-5))
    with pytest.raises(tff_mf.InputError, match="mechanism has 2 bands"):
        tff_mf.guarantee(TWO_BANDS, 24, tff_mf.Poisson(**population), noise_multiplier=4.0)
    assert tff_mf.Poisson(**population).probability == 0.05
    assert fine.probability == 0.1


@pytest.mark.parametrize("name", [name for name in RUNS if name != "min-sep"])
@pytest.mark.parametrize("changed", [{"restart_every": 6}, {"adjacency": "replace-one"}])
def test_what_no_theorem_amplifies_is_refused(name, changed):
    with pytest.raises(tff_mf.InputError, match=next(iter(changed))):
        tff_mf.guarantee(*RUNS[name], noise_multiplier=4.0, **changed)


@pytest.mark.parametrize("name", [name for name in RUNS if name != "min-sep"])
def test_nothing_is_amplified_in_what_is_made_of_an_amplified_guarantee(name):
    mechanism, rounds, sampling = RUNS[name]
    found = tff_mf.guarantee(mechanism, rounds, sampling, noise_multiplier=4.0)
    known = tff_mf.guarantee(mechanism, rounds, sampling.schema(rounds), noise_multiplier=4.0)
    assert found.replace_one().epsilon(1e-5) == known.replace_one().epsilon(1e-5)
    assert tff_mf.compose_guarantees(found, found).epsilon(1e-5) == tff_mf.compose_guarantees(known, known).epsilon(
        1e-5
    )
    larger = dataclasses.replace(found, mu=2 * found.mu)
    assert larger.epsilon(1e-5) == dataclasses.replace(known, mu=2 * known.mu).epsilon(1e-5)


def test_how_a_bound_is_known():
    exact = tff_mf.guarantee(*RUNS["min-sep"], noise_multiplier=4.0)
    assert (exact.bound, exact.at(delta=1e-5).bound) == ("exact", "exact")
    poisson = tff_mf.guarantee(*RUNS["poisson"], noise_multiplier=4.0).at(delta=1e-5)
    assert (poisson.bound, poisson.theorem, poisson.failure) == ("proved", "Poisson sampling", 0.0)
    for wrong in ({}, {"delta": 0.1, "epsilon": 1.0}):
        with pytest.raises(tff_mf.InputError):
            exact.at(**wrong)
    with pytest.raises(tff_mf.InputError, match="sampling="):
        tff_mf.guarantee(TWO_BANDS, 24, "poisson", noise_multiplier=4.0)
