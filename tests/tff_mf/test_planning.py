"""The plan of a run: sampling and accountant are one object, and the guarantee is that of what runs."""

import dataclasses
import math
import re

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import tff_mf
from tff_mf import accounting
from tff_mf.planning import MechanismSetting, compare

SCHEMA = tff_mf.MinSep(min_sep=10, max_participations=3)
SETTING = {"mechanism": tff_mf.Identity(), "rounds": 30, "delta": 1e-6, "clients_per_round": 10}
POISSON = tff_mf.Poisson(population=1000, clients_per_round=10)


def planned(**changes):
    return tff_mf.plan(**{**SETTING, "sampling": SCHEMA, **changes})


@pytest.mark.parametrize(
    "sampling",
    [SCHEMA, POISSON, tff_mf.BallsInBins(groups=10)],
    ids=lambda each: type(each).__name__,
)
def test_the_schema_is_that_of_the_sampling_and_states_epsilon_of_known_cohorts(sampling):
    plan = planned(sampling=sampling, noise_multiplier=4.0)
    assert plan.participation == sampling.schema(30)
    run = (plan.mechanism, plan.rounds, plan.participation)
    assert plan.epsilon == tff_mf.epsilon(*run, noise_multiplier=4.0, delta=1e-6)


def test_only_secret_cohorts_amplify():
    known, secret = (planned(sampling=POISSON, noise_multiplier=1.0, secret_cohorts=each) for each in (False, True))
    assert secret.epsilon == tff_mf.epsilon(tff_mf.Identity(), 30, POISSON, noise_multiplier=1.0, delta=1e-6)
    assert secret.epsilon < 0.1 * known.epsilon
    assert secret.zcdp_rho == known.zcdp_rho
    calibrated = planned(sampling=POISSON, epsilon=2.0, secret_cohorts=True)
    assert (
        1.9
        < calibrated.epsilon
        <= 2.0
        < planned(sampling=POISSON, noise_multiplier=calibrated.noise_multiplier).epsilon
    )


@pytest.mark.parametrize(
    "changes",
    [
        {"sampling": SCHEMA},
        {"cohort": 100},
        {"restart_every": 10},
        {"restart_every": 10, "adaptive_count_stddev": 5.0},
        {"insecure_seed": 1},
    ],
    ids=str,
)
def test_what_no_theorem_covers_is_not_amplified(changes):
    with pytest.raises(tff_mf.InputError, match="secret_cohorts"):
        planned(**{"sampling": POISSON, "noise_multiplier": 1.0, "secret_cohorts": True, **changes})


@pytest.mark.parametrize("level", [{"epsilon": 2.0}, {"noise_multiplier": 3.0}], ids=str)
def test_a_plan_for_a_model_has_its_grid(level):
    floats = planned(**level, cohort=800)
    plan = floats.for_model(1000)
    assert plan == planned(**level, cohort=800, grid=tff_mf.Grid(bits=14, max_clients=1600), dimension=1000)
    assert plan.noise_multiplier >= floats.noise_multiplier
    assert plan.epsilon <= level.get("epsilon", 1.001 * floats.epsilon)
    assert plan.for_model(10) == plan
    with pytest.raises(tff_mf.InputError, match="dimension=1000"):
        plan.for_model(1001)


RUNS = {
    "adjacency": st.sampled_from(["zero-out", "replace-one"]),
    "grid": st.none() | st.integers(8, 20).map(lambda bits: tff_mf.Grid(bits=bits, max_clients=1000)),
    "every": st.sampled_from([4, 7, 12, 29]),
    "sigma": st.floats(0.5, 20),
    "stddev": st.none() | st.floats(0.5, 50),
    "dimension": st.integers(1, 10**6),
}
GRID = tff_mf.Grid(bits=8, max_clients=1000)
BLT = tff_mf.BLT(theta=[0.9, 0.4], omega=[0.2, 0.5])


def sums_and_counts(mechanism, every, sigma, stddev, grid, dimension, adjacency="zero-out"):
    """Returns μ and the tail of 30 rounds: sums with restarts beside counts, each a release of one coordinate."""
    on_grid = {} if grid is None else {"grid": grid, "dimension": dimension}
    setting = {"restart_every": every, "adjacency": adjacency, **on_grid}
    sums = tff_mf.guarantee(mechanism, 30, SCHEMA, noise_multiplier=sigma, **setting)
    if stddev is None:
        return sums.mu, sums.tail
    one = {} if grid is None else {"grid": grid, "dimension": 1}
    counts = tff_mf.guarantee(tff_mf.Identity(), 30, SCHEMA, noise_multiplier=stddev, **one)
    assert counts.mu >= math.sqrt(SCHEMA.max_participations) / stddev
    return math.hypot(sums.mu, counts.mu), sums.tail + counts.tail


@settings(max_examples=12)
@example(adjacency="replace-one", grid=GRID, every=7, sigma=2.0, stddev=3.0, dimension=10**6)
@example(adjacency="replace-one", grid=None, every=12, sigma=2.0, stddev=3.0, dimension=1)
@example(adjacency="zero-out", grid=GRID, every=4, sigma=1.0, stddev=0.5, dimension=10**6)
@given(**RUNS)
def test_a_run_guarantees_what_its_sums_and_its_counts_do_together(adjacency, grid, every, sigma, stddev, dimension):
    question = accounting.Question(
        mechanism=BLT,
        rounds=30,
        sampling=SCHEMA,
        restart_every=every,
        adaptive_count_stddev=stddev,
        adjacency=adjacency,
        grid=grid,
        dimension=None if grid is None else dimension,
    )
    found = question.guarantee(sigma)
    mu, tail = sums_and_counts(BLT, every, sigma, stddev, grid, dimension, adjacency)
    assert found.adjacency == adjacency
    assert mu * (1 - 1e-12) <= found.mu <= mu * (1 + 1e-9)
    assert tail * (1 - 1e-12) <= found.tail <= tail * (1 + 1e-9)


@pytest.mark.parametrize("grid", [None, GRID], ids=["floats", "grid"])
def test_a_plan_guarantees_all_that_its_run_releases(grid):
    """For the cohort that a round stands for, and for the clients that train with less noise."""
    run = {"mechanism": BLT, "every": 7, "grid": grid, "dimension": 10**6}
    on_grid = {} if grid is None else {"grid": grid, "dimension": 10**6}
    plan = planned(
        mechanism=BLT, noise_multiplier=2.0, cohort=40, restart_every=7, adaptive_count_stddev=3.0, **on_grid
    )
    mu, tail = sums_and_counts(sigma=2.0, stddev=3.0, **run)
    assert mu * (1 - 1e-12) <= plan.guarantee.mu <= mu * (1 + 1e-9)
    assert plan.guarantee.tail >= tail * (1 - 1e-12)
    as_run = sums_and_counts(sigma=0.5, stddev=0.75, **run)[0]
    assert tff_mf.Guarantee(mu=as_run * (1 - 1e-9)).epsilon(1e-6) <= plan.epsilon_as_run
    calibrated = plan.calibrated(plan.epsilon)
    assert calibrated.epsilon <= plan.epsilon
    assert calibrated.noise_multiplier <= 2.0 * (1 + 1e-6)


def test_a_noise_multiplier_that_was_given_stays():
    plan = planned(noise_multiplier=3.0)
    assert plan.target_epsilon is None
    assert plan.for_model(1000).noise_multiplier == 3.0
    assert dataclasses.replace(planned(epsilon=2.0), noise_multiplier=3.0).target_epsilon == 2.0


def test_what_is_not_given_is_chosen_as_the_comparison_recommends():
    known = {"rounds": 60, "clients_per_round": 10, "delta": 1e-6, "epsilon": 4.0}
    plan = tff_mf.plan(population=155, **known)
    assert plan.participation == tff_mf.MinSep(min_sep=15, max_participations=4)
    setting = MechanismSetting(rounds=60, participation=plan.participation)
    found = compare.options(setting, delta=1e-6, epsilon=4.0)
    chosen, why = compare.recommend(found)
    assert (plan.mechanism, plan.why) == (chosen.mechanism, why)
    assert plan.epsilon <= 4.0
    assert plan.chosen.name == chosen.name
    losses = {each.name: each.noise_beside(plan.chosen) for each in plan.options}
    expected = {each.name: each.figures["rms_loss"] / chosen.figures["rms_loss"] for each in found}
    assert losses == pytest.approx(expected)
    # Independent noise is named, however many are better.
    assert sum(loss < losses["identity"] for loss in losses.values()) > 4
    assert "; identity: " in str(plan)
    replaced = dataclasses.replace(plan, mechanism=tff_mf.Identity())
    assert replaced.chosen is None
    assert "instead" not in str(replaced)
    assert tff_mf.plan(population=700, **known).participation == tff_mf.SingleParticipation()


def test_a_mechanism_may_be_named(tmp_path):
    tff_mf.save(tff_mf.Tree(30), tmp_path / "file")
    for named, expected in (
        ("tree-full", tff_mf.Tree(30)),
        ("production:b100", tff_mf.BLT.production("b100")),
        (tmp_path / "file", tff_mf.Tree(30)),
    ):
        plan = planned(mechanism=named, noise_multiplier=1.0)
        assert (plan.mechanism, plan.why) == (expected, "")


SAVED = {
    "grid": {"epsilon": 4.0, "grid": tff_mf.Grid(bits=14, max_clients=1000), "dimension": 77, "population": 100},
    "chosen": {"mechanism": None, "epsilon": 4.0, "clip_norm": 0.25},
    "secret": {"sampling": POISSON, "secret_cohorts": True, "noise_multiplier": 1.0, "population": 1000},
    "search": {"epsilon": 8.0, "search": tff_mf.Search(mean=8, shape=math.inf)},
    "simulated": {"sampling": tff_mf.BMinSep(min_sep=3, probability=0.25), "noise_multiplier": 1.0, "cohort": 200},
    "test only": {"sampling": tff_mf.SingleParticipation(), "noise_multiplier": 1.0, "insecure_seed": 3},
}


@pytest.mark.parametrize("name", SAVED)
def test_a_saved_plan_is_the_same(tmp_path, name):
    plan = planned(**SAVED[name])
    plan.save(tmp_path / "plan")
    loaded = tff_mf.Plan.load(tmp_path / "plan")
    assert loaded == plan
    assert (loaded.why, loaded.epsilon) == (plan.why, plan.epsilon)
    assert plan.target_epsilon is None or 0.99 * plan.target_epsilon < plan.epsilon <= plan.target_epsilon
    assert str(loaded) == str(dataclasses.replace(plan, options=()))


def test_a_plan_shows_an_epsilon_that_is_not_too_small():
    for sigma in (0.7, 1.3, 5.0):
        plan = planned(noise_multiplier=sigma)
        shown = float(re.search(r"epsilon=([0-9.]+)", str(plan))[1])
        assert plan.epsilon <= shown <= plan.epsilon + 1e-3
    assert "epsilon" not in str(planned(noise_multiplier=1.0, insecure_seed=1))
